package cluster

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// maxTermLeap is the largest number of terms by which a peer's term may be ahead of this replica's. Elections without a
// pause need 3.6 days for so many terms, so a term that is further ahead comes from damaged data. If it were adopted,
// it would spread to every replica, and after the highest possible term no leader could be elected any more.
const maxTermLeap = 1 << 20

// leap returns an error if a peer's term is too far ahead to be adopted. A replica that has no term yet
// accepts any term.
func (t *transport) leap(from string, term uint64) error {
	r := t.raft.Load()
	if r == nil {
		return nil
	}
	now := r.CurrentTerm()
	if now == 0 || term <= now || term-now <= maxTermLeap {
		return nil
	}
	err := fmt.Errorf("%w: replica %s names term %d, and this replica is at term %d; if its data is damaged, stop it, move the folder raft of its data directory away and start it: it joins again", ErrTermLeap, from, term, now)
	t.port.n.cfg.Metrics.TermRefused()
	t.port.n.once.warn(t.log, "leap:"+from, "the term of another replica was not adopted", "err", err)
	return err
}

// checkTerm returns an error if the term of an incoming Raft call must not be adopted.
func (t *transport) checkTerm(command any) error {
	switch r := command.(type) {
	case *raft.AppendEntriesRequest:
		return t.leap(string(r.ID), r.Term)
	case *raft.RequestVoteRequest:
		return t.leap(string(r.ID), r.Term)
	case *raft.RequestPreVoteRequest:
		return t.leap(string(r.ID), r.Term)
	case *raft.InstallSnapshotRequest:
		return t.leap(string(r.ID), r.Term)
	}
	return nil
}

// SetHeartbeatHandler sets the function with which the library handles heartbeats. Heartbeats do not pass through the
// channel of Consumer, so their term is checked here.
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		err := t.checkTerm(rpc.Command)
		if r, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && err == nil && !t.port.n.stall.hears(r) {
			err = errStalled
		}
		if err != nil {
			rpc.Respond(nil, err)
			return
		}
		handle(rpc)
	})
}
