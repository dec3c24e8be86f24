package control

import (
	"errors"
	"time"

	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

// confirms lets all calls that come within a short time share one Confirm (proof that this replica still
// leads). A new Confirm may begin while earlier ones are in flight.
type confirms struct {
	next []func(error) // calls that wait for the next Confirm
	last int64         // when the last Confirm began, on the monotonic clock
}

// afterConfirm calls the function then when a Confirm (proof of leadership) that began after this
// call has ended. The argument of then is nil if this replica still leads, otherwise an error.
func (t *Term) afterConfirm(then func(error)) {
	c := &t.confirm
	c.next = append(c.next, then)
	if len(c.next) == 1 {
		t.after(t.until(c.last+int64(t.cfg.ConfirmEvery)), t.beginConfirm)
	}
}

func (t *Term) beginConfirm() {
	c := &t.confirm
	waiting := c.next
	c.next, c.last = nil, t.now.Mono // calls from now on wait for the next Confirm
	t.emit(Confirm{ID: t.await(func(in Input) {
		for _, then := range waiting {
			then(in.(Confirmed).Err)
		}
	})})
}

// heartbeat processes one heartbeat and answers it with the node's lease. The lease is extended only if
// leadership is confirmed after the heartbeat arrived. Otherwise the answer repeats the old end of the lease,
// with Duration 0.
func (t *Term) heartbeat(in Heartbeat) {
	node, ok := t.view.Node(in.Beat.Node)
	if !ok || node.Fenced {
		// A fenced node may send a late heartbeat from before it was fenced. Only a registration ends the
		// fence.
		t.emit(Reply{Call: in.Call, Err: &ErrUnknownNode{Node: in.Beat.Node, Fenced: ok}})
		return
	}
	t.live.observe(node, t.now.Wall)
	if !t.live.hear(&in.Beat, t.now.Mono) {
		t.reply(in.Call, node, false)
		return
	}
	t.heartbeatDiff(node, &in.Beat)
	t.volumesDiff(&in.Beat)
	if len(in.Beat.Moves) > 0 {
		t.signal() // a move may go on
	}
	t.grant(in.Call, node)
}

// registered answers a node whose registration is committed with its lease.
func (t *Term) registered(in Registered) {
	node, ok := t.view.Node(in.Node)
	if !ok {
		t.emit(Reply{Call: in.Call, Err: &ErrUnknownNode{Node: in.Node}})
		return
	}
	t.live.observe(node, t.now.Wall)
	t.live.reregistered(in.Node)
	t.grant(in.Call, node)
}

// grant extends the lease of a node after a heartbeat or a registration, if leadership can be confirmed. The lease counts
// from the arrival of the call. If the wall clock is set before the confirmation, that moment moves with the deadlines.
func (t *Term) grant(call Call, node *fsm.Node) {
	received := t.now.Wall - t.shifted
	t.calls.Set(uint64(call), node)
	t.afterConfirm(func(err error) {
		if _, waits := t.calls.Delete(uint64(call)); !waits {
			return
		}
		if errors.Is(err, ErrNotLeading) {
			t.emit(Reply{Call: call, Err: ErrNotLeading})
			return
		}
		extended := false
		if err == nil {
			var back bool
			if extended, back = t.live.extend(node.ID, received+t.shifted); back {
				t.signal()
			}
		}
		t.reply(call, node, extended)
	})
}

// abandoned is called when a caller no longer waits for a confirmed lease. It answers the call with
// the old lease.
func (t *Term) abandoned(call Call) {
	if node, waits := t.calls.Delete(uint64(call)); waits {
		t.reply(call, node, false)
	}
}

// reply answers the waiting call of a node with the node's lease. If the lease was not extended,
// Duration in the answer is 0.
func (t *Term) reply(call Call, node *fsm.Node, extended bool) {
	n, ok := t.live.nodes.Get(node.ID)
	if !ok || n.granted == 0 {
		// The leader has granted this node no lease that the answer could repeat. With this error
		// the node asks another replica.
		t.emit(Reply{Call: call, Err: ErrNotLeading})
		return
	}
	interval, duration := t.cfg.leaseTerms(n.protocol, t.live.nodes.Len())
	if takesPart(t.view, node.ID) {
		interval = min(interval, moveInterval)
	}
	if !extended {
		duration = 0
	}
	t.emit(Reply{Call: call, Lease: sched.Lease{
		Interval:  int64(interval),
		Duration:  int64(duration),
		ExpiresAt: n.granted,
		Drain:     t.view.Info().Mode.Frozen() || node.Draining,
		SendFull:  !n.full,
		Epoch:     t.epoch,
	}})
}

// moveInterval is the time between heartbeats of a node that takes part in a move of volumes: the workload is stopped
// for some of these heartbeats.
const moveInterval = time.Second

// takesPart reports whether a node takes part in a move of volumes that waits for reports of its nodes.
func takesPart(v fsm.View, node string) (takes bool) {
	v.Moves(func(m *fsm.Move) bool {
		takes = (m.From == node || m.To == node) && m.Open()
		return !takes
	})
	return takes
}
