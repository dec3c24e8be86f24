package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// copies holds the known copies of data directories. A process that runs on a copy announces itself
// to the original replica every announceEvery. Each announcement renews the entry of the copy.
type copies struct {
	mu sync.Mutex
	m  map[copyOf]time.Time // for each copy: the time of its last announcement
}

// copyOf identifies a process by its Raft address, addr. The process runs on a copy of the data
// directory of replica id.
type copyOf struct{ id, addr string }

const (
	// copyMemory is how long a copy is remembered after its last announcement. It is longer than
	// the five seconds after which the leader asks the original replica for its copies again.
	copyMemory = 10 * time.Second
	maxCopies  = 16
)

// note records an announcement of a copy and reports whether the copy was unknown before.
func (c *copies) note(id, addr string, now time.Time) (isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[copyOf]time.Time{}
	}
	c.expire(now)
	key := copyOf{id, addr}
	_, known := c.m[key]
	if !known && len(c.m) >= maxCopies {
		return false
	}
	c.m[key] = now
	return !known
}

func (c *copies) expire(now time.Time) {
	for key, at := range c.m {
		if now.Sub(at) > copyMemory {
			delete(c.m, key)
		}
	}
}

// all returns the copies of replica id, or the copies of every replica if id is empty, in a fixed order.
func (c *copies) all(id string, now time.Time) (out []copyOf) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	for key := range c.m {
		if id == "" || key.id == id {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b copyOf) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.addr, b.addr)) })
	return out
}

// copiesOf returns the Raft addresses of the processes that run on copies of the data directory of replica
// id.
func (n *Node) copiesOf(id string) (addrs []string) {
	for _, c := range n.copies.all(id, time.Now()) {
		addrs = append(addrs, c.addr)
	}
	return addrs
}

// refuse halts this replica because its data directory is a copy. It records this in the directory,
// so that the replica halts again after a restart. first is the Raft address of the original
// replica, which receives announcements of this copy as long as this process runs.
func (n *Node) refuse(first, why string) {
	b, err := json.Marshal(refusal{First: first, Why: why})
	if err == nil {
		err = n.logs.setOwn(keyCopied, string(b))
	}
	if err != nil {
		n.log.Warn("cannot store in the data directory that it is a copy", "err", err)
	}
	n.haltCopy(refusal{First: first, Why: why})
}

func (n *Node) haltCopy(r refusal) {
	n.halt(fmt.Errorf("%w: %s; stop this process, empty %s and start it again to join as a new replica", ErrCopied, r.Why, n.cfg.DataDir))
	n.spawn(func() { n.announce(r.First) })
}

// announceEvery is the interval at which a copy announces itself to the original replica.
const announceEvery = 2 * time.Second

// announce tells the original replica about this copy repeatedly, so that the status of both replicas shows
// the copy.
func (n *Node) announce(first string) {
	for {
		ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
		self := n.hello()
		if err := n.port.tell(ctx, n.id, first, &request{Op: opTwin, Hello: &self}); err != nil {
			n.log.Debug("could not tell the original replica about this copy of its data", "addr", first, "err", err)
		}
		cancel()
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(announceEvery):
		}
	}
}

// tell makes one call to another replica on a connection that it opens for this call. Unlike peers.call it
// works after this replica's Raft port was closed.
func (p *port) tell(ctx context.Context, to, addr string, req *request) error {
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	raw, err := p.dial(ctx, addr)
	if err != nil {
		return err
	}
	defer raw.Close()
	conn, err := p.greet(ctx, raw, kindPeer, to, addr)
	if err != nil {
		return err
	}
	res, err := exchange(ctx, conn, body)
	if err == nil && res.Error != "" {
		err = &refusedError{addr: addr, reason: res.Error}
	}
	return err
}

// isCopy handles the leader's message that this replica's data directory is a copy. first is the
// Raft address of the original replica.
func (n *Node) isCopy(by *Hello, first, why string) error {
	if by == nil || by.ClusterID == "" || by.ClusterID != n.clusterID() || by.Instance == n.instance || first == "" {
		return errors.New("refused: the message that this data directory is a copy is not from a leader of this cluster")
	}
	if by.Term < n.raft.CurrentTerm() {
		return errors.New("refused: the message that this data directory is a copy is from a former leader")
	}
	n.refuse(first, why)
	return nil
}

// heardOfTwin handles the announcement of a copy of this replica's data directory.
func (n *Node) heardOfTwin(h *Hello) error {
	if h == nil || h.ID != n.id || h.Instance == n.instance || h.RaftAddr == "" {
		return errors.New("the announcement of a copy is not about this replica")
	}
	if n.copies.note(n.id, h.RaftAddr, time.Now()) {
		n.log.Warn("a copy of this data directory is in use", "copy", h.RaftAddr, "name", h.Name)
	}
	return nil
}

// --- How the leader finds copies ---

// copied reports whether a replica at a new address runs on a copy: another process answers at the old
// address under the same Raft id. In that case copied sends opCopied to the copy, which makes it halt. A copy
// of a machine must not replace the original.
func (m *members) copied(ctx context.Context, s raft.Server, h *Hello, now time.Time) bool {
	n := m.n
	first, err := n.greetAt(ctx, string(s.Address))
	if err != nil || first.ID != h.ID || first.Instance == h.Instance {
		return false
	}
	n.copies.note(h.ID, h.RaftAddr, now)
	why := fmt.Sprintf("replica %s (%s) answers at %s and at %s: one data directory is a copy of the other", h.ID, h.Name, s.Address, h.RaftAddr)
	n.once.warn(n.log, "copied:"+h.ID+h.RaftAddr, "a replica does not move, because its old address answers", "err", why)
	ctx, cancel := context.WithTimeout(ctx, min(time.Second, n.cfg.Timing.RPC))
	defer cancel()
	self := n.hello()
	if _, err := n.peers.call(ctx, h.ID, h.RaftAddr, &request{Op: opCopied, Hello: &self, First: string(s.Address), Reason: why}); err != nil {
		n.log.Debug("could not tell a replica that its data directory is a copy", "addr", h.RaftAddr, "err", err)
	}
	return true
}

// tellTwins handles the replicas that gossip rejected because a live replica has the same Raft id. It tells
// each of them that it is a copy.
func (m *members) tellTwins(ctx context.Context, now time.Time) {
	for id, addr := range m.n.gossip.takeTwins() {
		for _, s := range m.n.servers() {
			if string(s.ID) != id || string(s.Address) == addr {
				continue
			}
			if h, err := m.n.greetAt(ctx, addr); err == nil && h.ID == id {
				m.copied(ctx, s, h, now)
			}
		}
	}
}

// moveGrace times Timing.Reconcile is how long a replica must be at a new address before the leader
// changes its address in the Raft configuration. If a machine and its copy restart at the same
// moment, the original has this time to start and answer at the old address.
const moveGrace = 5

// movesLater reports whether a replica has had its new address for less than moveGrace times
// Timing.Reconcile, so that the leader must not change the configuration yet.
func (m *members) movesLater(h *Hello, now time.Time) bool {
	key := h.ID + "@" + h.RaftAddr
	since, known := m.moves[key]
	if !known {
		if len(m.moves) >= onceKeys {
			clear(m.moves)
		}
		m.moves[key] = now
		since = now
	}
	return now.Sub(since) < moveGrace*m.n.cfg.Timing.Reconcile
}

// The cluster records at most one event about a copy in each interval of eventAgain, even if the leader changes.
const eventAgain = time.Hour

// recordCopies records an event ReplicaCopied for every copy about which no event was recorded within eventAgain.
func (m *members) recordCopies(ctx context.Context, term LeadershipTerm, now time.Time) {
	n := m.n
	var cmds []fsm.Command
	var about []copyOf
	view := n.Store().View()
	for _, c := range n.copies.all("", now) {
		r, known := view.Replica(c.id)
		if !known || m.recorded[c] {
			continue
		}
		if hasCopyEvent(view, c, now) {
			m.recorded[c] = true
			continue
		}
		about = append(about, c)
		cmds = append(cmds, &commandv1.Command{Head: n.head(term.Epoch), Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type:    fsm.EventReplicaCopied,
			Message: fmt.Sprintf("the data directory of replica %s at %s has a copy in use at %s, which is refused", r.Name, r.RaftAddr, c.addr),
			Details: []*commandv1.Label{{Key: "copy", Value: c.addr}, {Key: "raft", Value: r.RaftAddr}, {Key: "replica", Value: c.id}},
		}}})
	}
	if len(cmds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timing.RPC)
	defer cancel()
	results, err := n.Propose(ctx, cmds...)
	if err != nil {
		n.log.Debug("the event about a copy of a data directory was not recorded; trying again", "err", err)
		return
	}
	for i, r := range results {
		if r.Err() != nil {
			n.once.warn(n.log, "copy event:"+r.Reason, "the event about a copy of a data directory was refused", "err", r.Err())
		}
		m.recorded[about[i]] = true
	}
}

// hasCopyEvent reports whether an event about this copy was recorded within the last hour.
func hasCopyEvent(view fsm.View, c copyOf, now time.Time) (found bool) {
	view.EventsBack(func(e *fsm.Event) bool {
		if e.At < now.Add(-eventAgain).UnixNano() {
			return false
		}
		found = e.Type == fsm.EventReplicaCopied && slices.Contains(e.Details, fsm.Label{Key: "copy", Value: c.addr}) && slices.Contains(e.Details, fsm.Label{Key: "replica", Value: c.id})
		return !found
	})
	return found
}
