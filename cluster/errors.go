package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	bolterrors "go.etcd.io/bbolt/errors"
)

// Errors of Propose, Confirm and Read; compare with errors.Is. After any error but ErrUnknownOutcome, nothing
// was changed.
var (
	// ErrNotLeader: this replica does not lead, so ask another replica. The error is a *NotLeaderError if
	// the leader is known.
	ErrNotLeader = errors.New("this replica is not the leader")
	// ErrBusy: the call was not accepted before its deadline, or too many commands are waiting. Try again.
	ErrBusy = errors.New("too many commands wait for the replicated log")
	// ErrTooLarge: one command is larger than a log entry may be.
	ErrTooLarge = errors.New("command too large")
	// ErrUnknownOutcome: the command was handed to Raft, and this replica cannot know whether the command is
	// committed or will be. Repeat the call with the same request id (fsm/DESIGN.md).
	ErrUnknownOutcome = errors.New("it is not known whether the command was applied")
	// ErrClosed: the node was closed or has halted.
	ErrClosed = errors.New("this replica is stopped")
)

// Reasons why a replica does not start or has stopped; compare with errors.Is. A further reason is
// fsm.ErrUnknownCommand: the program is too old to apply an entry of the log.
var (
	// ErrNoWayIn: the replica has no data and no addresses of replicas to join, and it may not form a
	// cluster.
	ErrNoWayIn = errors.New("nothing to start from")
	// ErrInUse: another process uses the data directory.
	ErrInUse = errors.New("data directory is in use")
	// ErrCorrupt: the log or a snapshot is damaged. See Repair.
	ErrCorrupt = errors.New("corrupt data")
	// ErrTermLeap: a message of a peer has a Raft term that is implausibly far ahead, so the term was not
	// adopted.
	ErrTermLeap = errors.New("implausible term")
	// ErrWrongCluster: the data, the configuration or a peer belongs to another cluster.
	ErrWrongCluster = errors.New("wrong cluster")
	// ErrDiverged: this replica's state differs from the state of a majority. Its Raft directory was moved
	// aside. If Open is called again, the replica joins under a new Raft id.
	ErrDiverged = errors.New("this replica's state has diverged from the majority")
	// ErrRemoved: the cluster has removed this replica. It can join again with an empty data directory.
	ErrRemoved = errors.New("this replica was removed from the cluster")
	// ErrLeft: this replica left the cluster on request. It can join again with an empty data directory.
	ErrLeft = errors.New("this replica has left the cluster")
	// ErrCopied: this data directory is a copy of a directory that another process uses.
	ErrCopied = errors.New("data directory is a copy")
	// ErrStorage: the log store failed, for example because the disk is full.
	ErrStorage = errors.New("log store failed")
)

// environment lists errors of opening or reading a file that are caused by the machine and do not prove that
// the file is damaged.
var environment = []error{
	syscall.EACCES, syscall.EPERM, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT,
	syscall.EROFS, syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.ESTALE, bolterrors.ErrTimeout,
}

// corrupt returns the error for data that could not be read. If the machine caused err, the data may be intact and must
// not be moved aside, so the result wraps only err. Otherwise it wraps ErrCorrupt too.
func corrupt(err error, format string, args ...any) error {
	err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	if slices.ContainsFunc(environment, func(e error) bool { return errors.Is(err, e) }) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// NotLeaderError is an ErrNotLeader that names the leader, if the leader is known.
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

// isCanceled reports whether err says only that a context ended, by cancellation or at its
// deadline.
func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
