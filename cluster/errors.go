package cluster

import (
	"context"
	"errors"
	"fmt"
)

// What Propose, Confirm and Read can say besides success; compare with
// errors.Is. Everything but ErrUnknownOutcome means that nothing happened.
var (
	// ErrNotLeader: another replica has to be asked. The error is a
	// *NotLeaderError when the leader is known.
	ErrNotLeader = errors.New("this replica is not the leader")
	// ErrBusy: the command was not taken before the deadline, or the queue is
	// full. Try again.
	ErrBusy = errors.New("too many commands in flight")
	// ErrTooLarge: one command is over the limit of a log entry.
	ErrTooLarge = errors.New("command too large")
	// ErrUnknownOutcome: the command was handed to Raft, and whether it was or
	// will be committed cannot be known here. Ask again with the same request
	// id (fsm/DESIGN.md).
	ErrUnknownOutcome = errors.New("the outcome is not known")
	// ErrClosed: the node was closed or has halted.
	ErrClosed = errors.New("this replica is stopped")
)

// Why a replica does not start or has stopped; compare with errors.Is. One more
// is fsm.ErrUnknownCommand: the log holds what this version cannot apply.
var (
	// ErrNoWayIn: no data, nothing to join, nothing to form.
	ErrNoWayIn = errors.New("nothing to start from")
	// ErrInUse: another process holds the data directory.
	ErrInUse = errors.New("data directory is in use")
	// ErrCorrupt: log or snapshot cannot be read as it was written.
	ErrCorrupt = errors.New("corrupt data")
	// ErrWrongCluster: data, configuration or peer belong to another cluster.
	ErrWrongCluster = errors.New("wrong cluster")
	// ErrDiverged: this replica's state differs from what a majority agrees on.
	// Its Raft directory was moved aside: start it again, and it joins anew.
	ErrDiverged = errors.New("this replica's state has diverged from the majority")
	// ErrRemoved: the cluster has removed this replica. To join again it has to
	// start with an empty data directory.
	ErrRemoved = errors.New("this replica was removed from the cluster")
	// ErrLeft: this replica left the cluster because it was asked to. What was
	// said of ErrRemoved holds for it, too.
	ErrLeft = errors.New("this replica has left the cluster")
	// ErrStorage: the log store failed, e.g. because the disk is full.
	ErrStorage = errors.New("log store failed")
)

// NotLeaderError is ErrNotLeader with a hint.
type NotLeaderError struct{ Leader LeaderInfo }

func (e *NotLeaderError) Error() string {
	return fmt.Sprintf("%v: ask %s at %s", ErrNotLeader, e.Leader.Name, e.Leader.GRPCAddr)
}

// Is makes it ErrNotLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

func (n *Node) notLeader() error {
	if l, ok := n.Leader(); ok && l.ID != n.id {
		return &NotLeaderError{Leader: l}
	}
	return ErrNotLeader
}

func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrUnknownOutcome, cause) }

// isCanceled reports whether err only says that a context ended.
func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
