package cluster

import (
	"context"
	"errors"
	"fmt"
)

// Errors of Propose, Confirm and Read; compare with errors.Is. All but ErrUnknownOutcome mean that nothing
// was changed.
var (
	// ErrNotLeader: ask another replica. The error is a *NotLeaderError if the leader is known.
	ErrNotLeader = errors.New("this replica is not the leader")
	// ErrBusy: the command was not accepted before the deadline, or the queue is full. Try again.
	ErrBusy = errors.New("too many commands in flight")
	// ErrTooLarge: one command is larger than a log entry may be.
	ErrTooLarge = errors.New("command too large")
	// ErrUnknownOutcome: the command was handed to Raft, and this replica cannot know whether it is or will
	// be committed. Repeat the call with the same request id (fsm/DESIGN.md).
	ErrUnknownOutcome = errors.New("the outcome is not known")
	// ErrClosed: the node was closed or has halted.
	ErrClosed = errors.New("this replica is stopped")
)

// Reasons why a replica does not start or has stopped; compare with errors.Is. Another one is
// fsm.ErrUnknownCommand: this version cannot apply an entry of the log.
var (
	// ErrNoWayIn: the replica has no data, nothing to join, and may not form a cluster.
	ErrNoWayIn = errors.New("nothing to start from")
	// ErrInUse: another process uses the data directory.
	ErrInUse = errors.New("data directory is in use")
	// ErrCorrupt: the log or a snapshot is damaged.
	ErrCorrupt = errors.New("corrupt data")
	// ErrWrongCluster: the data, the configuration or a peer belongs to another cluster.
	ErrWrongCluster = errors.New("wrong cluster")
	// ErrDiverged: this replica's state differs from the one that a majority agrees on. Its Raft directory
	// was moved aside. Open the replica again, and it joins as a new one.
	ErrDiverged = errors.New("this replica's state has diverged from the majority")
	// ErrRemoved: the cluster has removed this replica. It can join again with an empty data directory.
	ErrRemoved = errors.New("this replica was removed from the cluster")
	// ErrLeft: this replica left the cluster on request. It can join again with an empty data directory.
	ErrLeft = errors.New("this replica has left the cluster")
	// ErrStorage: the log store failed, for example because the disk is full.
	ErrStorage = errors.New("log store failed")
)

// NotLeaderError is ErrNotLeader with the leader, if it is known.
type NotLeaderError struct{ Leader LeaderInfo }

func (e *NotLeaderError) Error() string {
	return fmt.Sprintf("%v: ask %s at %s", ErrNotLeader, e.Leader.Name, e.Leader.GRPCAddr)
}

// Is reports that a NotLeaderError is ErrNotLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

func (n *Node) notLeader() error {
	if l, ok := n.Leader(); ok && l.ID != n.id {
		return &NotLeaderError{Leader: l}
	}
	return ErrNotLeader
}

func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrUnknownOutcome, cause) }

// isCanceled reports whether err means only that a context ended.
func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
