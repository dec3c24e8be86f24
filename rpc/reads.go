package rpc

import (
	"context"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/limits"
)

// Limits of the calls to agents that only read, and that a replica makes for people. Agents limit the calls
// of each scheduler; with these limits no viewer can use up the calls that agents accept from this replica.
// Reads use the connection of streams, so orders do not wait for them.
const (
	readsOfPerson, readsOfPersonRate = 16, 100 // concurrent calls, and calls per second
	readsOfNode, readsOfNodeRate     = 64, 400
	// checksAtATime is the number of checks of networks that one replica runs at a time. A person has one check or
	// trace at a time.
	checksAtATime = 4
)

// person returns whose calls are counted: the person for whom a gateway calls, or else the caller. ok is false if the
// call is not counted: schedulers have no limit, and under -insecure callers cannot be distinguished.
func (s *Server) person(c caller) (who limits.Peer, ok bool) {
	if s.cfg.TLS == nil || c.relayed || c.id.Role == pki.RoleScheduler {
		return who, false
	}
	switch {
	case c.id.IsZero():
		return limits.Peer{Kind: "host", Name: c.from}, true
	case !c.behalf.IsZero():
		return limits.Peer{Kind: string(c.behalf.Role), Name: c.behalf.ID}, true
	case c.user != "":
		return limits.Peer{Kind: "oidc", Name: c.user}, true
	}
	return limits.Peer{Kind: string(c.id.Role), Name: c.id.ID}, true
}

// enterRead counts a call that reads from agents against the limit of its person.
func (s *Server) enterRead(ctx context.Context) (*limits.Entry, error) {
	who, ok := s.person(callOf(ctx).caller)
	if !ok {
		return nil, nil
	}
	e, err := s.reads.Enter(who)
	if err != nil {
		return nil, errorf(KindBusy, "too many calls of %s %s that agents must answer: at most %d at a time and %d a second at one scheduler; try again in a moment",
			who.Kind, who.Name, readsOfPerson, readsOfPersonRate)
	}
	return e, nil
}

// enterCheck counts a check of a network or a trace of a connection. These keep agents busy for seconds, so a person
// has one of them at a time.
func (s *Server) enterCheck(ctx context.Context) (*limits.Entry, error) {
	who, ok := s.person(callOf(ctx).caller)
	if !ok {
		return nil, nil
	}
	e, err := s.checks.Enter(who)
	if err != nil {
		return nil, errorf(KindBusy, "another check of a network, or trace of a connection, of %s %s runs at this scheduler: try again when it has ended", who.Kind, who.Name)
	}
	return e, nil
}

// reader returns the connection for a call that only reads from the agent of a node. The caller calls Leave of the
// entry when the call has ended.
func (a *Agents) reader(n *fsm.Node) (agentv1.AgentServiceClient, *limits.Entry, error) {
	e, err := a.reads.Enter(limits.Peer{Kind: "node", Name: n.ID})
	if err != nil {
		return nil, nil, errorf(KindBusy, "too many calls for the agent of node %s at this scheduler: at most %d at a time and %d a second; try again in a moment", n.ID, readsOfNode, readsOfNodeRate)
	}
	c, err := a.freshAt(n, true)
	if err != nil {
		e.Leave()
		return nil, nil, err
	}
	return c, e, nil
}
