package fsm

import (
	"cmp"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/order"
)

// A move takes the local volumes of one workload, and the workload, from one node to another (ADR 72). The workload
// stays assigned to the node From until one command assigns it to the node To and changes the node of the volumes'
// records at the same time. So at every index exactly one copy is in use: the copy of the node in the volume's record.
//
// The agents enforce the same: an order names the id of the copy in use (Volume.Copy), and an agent that has set its
// copy aside for a move starts no workload on it, unless the order says that this move was undone (Volume.Undone).

// MovePhase is the phase of a move.
type MovePhase string

// The phases of a move. A copy is deleted only in the phases MoveDone and MoveDropping, each by one node, after the other
// node has proved that it has its copy, or after a person has said so.
const (
	MoveCopying  MovePhase = "copying"  // To copies the data while the workload runs
	MoveStopping MovePhase = "stopping" // the workload is being stopped
	MoveFinal    MovePhase = "final"    // From has set its copy aside, and To copies what has changed
	MovePlaced   MovePhase = "placed"   // the volumes are on To; From keeps its copy until the workload has run healthy on To for a while
	MoveDone     MovePhase = "done"     // From deletes its copy
	MoveUndone   MovePhase = "undone"   // the volumes stay on From, which takes its copy back into use and must confirm that it has it
	MoveDropping MovePhase = "dropping" // To deletes its copy, unless that copy was ever used
	MoveKept     MovePhase = "kept"     // nobody knows which copy is the newest, or nobody uses it: a person must end the move
)

// Ends of a move that a user can request.
const (
	MoveCancel = "cancel" // the volumes stay on From, or return to it
	MoveSettle = "settle" // From deletes its copy now
)

// MaxMoves is the maximum number of moves at the same time.
const MaxMoves = 256

// MaxMovesIn is the maximum number of moves of one namespace at the same time, so that others can move volumes too.
const MaxMovesIn = 32

// MinMoveRate is the lowest limit of the speed of a move in bytes per second.
const MinMoveRate = 1 << 20

// maxMoveWhy is the maximum size of the reason of a step in bytes.
const maxMoveWhy = 1024

// Move is the record of a move. A record in the state is never modified; a change stores a new record.
type Move struct {
	ID         Generation // a later move has a higher id, also after a restore
	Workload   string
	Namespace  string   // "" = the default namespace
	Volumes    []string // names of the local volumes, sorted
	From, To   string
	Phase      MovePhase
	PhaseSince int64 // Unix nanoseconds
	StartedAt  int64
	Reason     string
	By         string
	Rate       int64   // most bytes of content per second; 0 = no limit
	Resume     bool    // the workload ran before it was stopped for the move
	RunsSince  int64   // since when the workload has run healthy on To, in phase MovePlaced; 0 = it does not
	Demand     *Demand // what is reserved on the node that Reserves returns; never changed
}

// In returns the name of the namespace of the volumes.
func (m *Move) In() string { return cmp.Or(m.Namespace, DefaultNamespace) }

// Open reports whether the volumes are still on From, and the move has not been undone.
func (m *Move) Open() bool {
	return m.Phase == MoveCopying || m.Phase == MoveStopping || m.Phase == MoveFinal
}

// Returnable reports whether the volumes are on To, and From keeps its copy so that the workload can return to it.
func (m *Move) Returnable() bool { return m.Phase == MovePlaced }

// Ends reports whether a copy is being deleted, after which the record is removed.
func (m *Move) Ends() bool { return m.Phase == MoveDone || m.Phase == MoveDropping }

// Stops reports whether the workload must be stopped.
func (m *Move) Stops() bool { return m.Phase == MoveStopping || m.Phase == MoveFinal }

// Reserves returns the node, besides that of the workload, on which the demand of the workload is reserved; "" for
// none. Before the switch this is To; afterwards it is From, so that the workload can return there.
func (m *Move) Reserves() string {
	switch {
	case m.Open():
		return m.To
	case m.Returnable():
		return m.From
	}
	return ""
}

// Has reports whether a local volume on a node is one of the two copies of the move.
func (m *Move) Has(namespace, name, node string) bool {
	return (node == m.From || node == m.To) && m.In() == namespace && slices.Contains(m.Volumes, name)
}

// MoveView is the part of View with the moves of volumes.
type MoveView interface {
	// Move returns the move of a workload's volumes that has not ended. Moves scans all of them, by workload.
	Move(workload string) (*Move, bool)
	Moves(fn func(*Move) bool)
}

// Move returns the move of a workload's volumes that has not ended.
func (s State) Move(workload string) (*Move, bool) { return s.r.moves.Get(workload) }

// Moves scans all moves that have not ended, by workload.
func (s State) Moves(fn func(*Move) bool) {
	s.r.moves.Scan(func(_ string, m *Move) bool { return fn(m) })
}

// MoveOf returns the move of which a local volume on a node is one of the copies.
func MoveOf(v MoveView, namespace, name, node string) (found *Move) {
	v.Moves(func(m *Move) bool {
		if m.Has(namespace, name, node) {
			found = m
		}
		return found == nil
	})
	return found
}

// MovesInto returns why a workload without a node may not be placed on a node: a volume of the name that it uses is moved from
// or to this node for another workload, or the node has a copy of its own volumes that is not in use, on which no agent starts
// it. It returns "" if there is no such move.
func MovesInto(v MoveView, w *Workload, node string) string {
	if len(w.Demand.Volumes) == 0 {
		return ""
	}
	return cmp.Or(movesOfOthers(v, w, node), awaitsMove(v, w, node))
}

// NodesInMoves returns the nodes for which MovesInto returns a reason.
func NodesInMoves(v MoveView, w *Workload) (nodes []string) {
	if len(w.Demand.Volumes) == 0 {
		return nil
	}
	v.Moves(func(m *Move) bool {
		for _, node := range [...]string{m.From, m.To} {
			if !slices.Contains(nodes, node) && (m.takes(w, node) != "" || m.Workload == w.ID && awaitsMove(v, w, node) != "") {
				nodes = append(nodes, node)
			}
		}
		return true
	})
	return nodes
}

// awaitsMove returns why a workload without a node may not be placed on a node because of the move of its own volumes; "" if it
// may. After a move was undone, the copy of From is in use, and so is that of To once From deletes its own.
func awaitsMove(v MoveView, w *Workload, node string) string {
	m, ok := v.Move(w.ID)
	if !ok || len(w.Demand.Volumes) == 0 {
		return ""
	}
	switch {
	case m.Phase == MoveKept && (node == m.From || node == m.To):
		return m.inProgress()
	case (m.Phase == MoveUndone || m.Phase == MoveDropping) && node == m.To, m.Phase == MoveDone && node == m.From:
		return m.inProgress()
	}
	return ""
}

func movesOfOthers(v MoveView, w *Workload, node string) (why string) {
	if len(w.Demand.Volumes) == 0 {
		return ""
	}
	v.Moves(func(m *Move) bool {
		why = m.takes(w, node)
		return why == ""
	})
	return why
}

// takes returns why a workload may not be placed on a node because m moves a volume of the name that it uses from or to this node
// for another workload; "" if it may.
func (m *Move) takes(w *Workload, node string) string {
	for _, u := range w.Demand.Volumes {
		if m.Workload != w.ID && u.Driver == DriverLocal && m.Has(w.In(), u.Name, node) {
			return "volume " + quoted(u.Name) + " of workload " + m.Workload + " moves from node " + m.From + " to node " + m.To
		}
	}
	return ""
}

// putMove stores m in place of old. Either may be nil.
func (t *Tx) putMove(old, m *Move) {
	table := own(t, &t.r.moves, ownMoves)
	c := Change{Table: TableMove, Old: old, New: m}
	if old != nil {
		c.Key = old.Workload
		t.claimMove(old, t.reservedOn(old), -1)
		table.Delete(old.Workload)
	}
	if m != nil {
		c.Key = m.Workload
		table.Set(m.Workload, m)
		t.claimMove(m, t.reservedOn(m), +1)
	}
	t.changes = append(t.changes, c)
}

// claimMove adds (sign +1) or removes (-1) the resources and ports that a move reserves.
func (t *Tx) claimMove(m *Move, n *Node, sign int) {
	if n == nil {
		return
	}
	t.claimPorts(n.Engine(), m.Demand.Ports, claimWanted, m.ID, n.ID, m.Workload, sign)
	t.claimAmounts(n, m.Demand, sign, 0, 0, sign)
}

// reservedOn returns the node on which a move reserves resources; nil for none.
func (t *Tx) reservedOn(m *Move) *Node {
	n, _ := t.r.nodes.Get(m.Reserves())
	return n
}

// movesReserving returns the moves that reserve resources on a node.
func (t *Tx) movesReserving(node string) (out []*Move) {
	t.state().Moves(func(m *Move) bool {
		if m.Reserves() == node {
			out = append(out, m)
		}
		return true
	})
	return out
}

// step takes a move to its next phase and returns the new record.
func (t *Tx) step(old *Move, phase MovePhase, reason string) *Move {
	m := *old
	m.Phase, m.PhaseSince, m.Reason, m.RunsSince = phase, t.r.info.Clock, reason, 0
	t.putMove(old, &m)
	t.event(m.event())
	return &m
}

func (m *Move) event() Event {
	return Event{
		Type: EventVolumeMove, Workload: m.Workload, Node: m.From, Namespace: m.Namespace, Reason: string(m.Phase),
		Message: "volume " + DataText(m.Volumes) + " from node " + m.From + " to node " + m.To + ": " + string(m.Phase) + suffix(": ", m.Reason),
		Details: details(Label{"to", m.To}, Label{"move", m.ID.String()}),
	}
}

// moveVolume starts a move, or ends one, at the request of a user.
func (t *Tx) moveVolume(b *commandv1.MoveVolume) Result {
	in := cmp.Or(b.GetNamespace(), DefaultNamespace)
	if res, ok := t.mayUse("volume", b.GetName(), in); !ok {
		return res
	}
	if b.GetEnd() != "" {
		return t.endMove(b, in)
	}
	v, ok := t.state().Volume(in, b.GetName(), DriverLocal, b.GetFrom())
	if !ok || b.GetFrom() == "" {
		return refuse(NotFound, "local volume %q does not exist in namespace %q on node %q: persysctl volume list shows them", clip(b.GetName()), clip(in), clip(b.GetFrom()))
	}
	if r := b.GetBytesPerSecond(); r != 0 && r < MinMoveRate {
		return refuse(Invalid, "bytes_per_second: %d is not 0 (no limit) and below %d", r, MinMoveRate)
	}
	users := t.state().UsersOfVolume(v)
	if len(users) != 1 {
		return refuse(Conflict, "%s is used by %d workloads%s; a move needs exactly one, which moves with the volume", v.text(), len(users), suffix(": ", DataText(users)))
	}
	w, ok := t.r.workloads.Get(users[0])
	if !ok {
		return refuse(Conflict, "node %s must still remove workload %q, which uses %s: try again when it has", v.Node, users[0], v.text())
	}
	if res, ok := t.may(w.ID, w.In()); !ok {
		return res
	}
	if m, ok := t.r.moves.Get(w.ID); ok {
		return refuse(Conflict, "%s", m.inProgress())
	}
	if t.r.moves.Len() >= MaxMoves {
		return refuse(Conflict, "%d volumes are being moved, which is the maximum: try again later", t.r.moves.Len())
	}
	if n := t.movesIn(in); n >= MaxMovesIn {
		return refuse(Conflict, "%d volumes of namespace %q are being moved, which is the maximum of a namespace: try again later", n, clip(in))
	}
	names, why := t.movable(w, b.GetTo())
	if why != "" {
		return refuse(Conflict, "%s cannot move with workload %q: %s", v.text(), w.ID, why)
	}
	m := &Move{
		ID: t.generation(), Workload: w.ID, Namespace: w.Namespace, Volumes: names, From: w.Node, To: strings.Clone(b.GetTo()), Phase: MoveCopying,
		PhaseSince: t.r.info.Clock, StartedAt: t.r.info.Clock, By: t.by, Rate: b.GetBytesPerSecond(), Resume: w.Desired == DesiredRunning, Demand: w.Demand,
	}
	t.putMove(nil, m)
	t.event(m.event())
	return Result{Items: []Item{itemOf(w)}}
}

// inProgress is the text of the refusal of a second move.
func (m *Move) inProgress() string {
	text := "the volumes of workload " + quoted(m.Workload) + " move from node " + m.From + " to node " + m.To + " (" + string(m.Phase) + ")"
	switch {
	case m.Open():
		return text + ": wait for its end, or cancel it: " + m.Command(MoveCancel)
	case m.Returnable():
		return text + ", and node " + m.From + " still keeps the former copy: wait, or delete that copy: " + m.Command(MoveSettle)
	}
	switch m.Phase {
	case MoveKept:
		return text + ", and a person must say which copy is used: " + m.Command(MoveCancel) + " (that of node " + m.From + ") or --settle (that of node " + m.To + ")"
	case MoveUndone:
		return text + ": wait until node " + m.From + " has confirmed that it has its copy, or delete the copy of node " + m.To + " now: " + m.Command(MoveSettle)
	}
	return text + ": wait until the node has deleted the copy that is not needed"
}

// movable returns the names of the local volumes of w, which move together, or why they cannot move to a node.
func (t *Tx) movable(w *Workload, to string) (names []string, why string) {
	n, ok := t.r.nodes.Get(to)
	from := t.nodeOf(w)
	switch {
	case w.IsTemplate() || w.Demand.Job != nil:
		return nil, "it is a job or a template"
	case w.IsMember():
		return nil, "it is a member of a system workload, which belongs to its node"
	case w.Demand.Surge:
		return nil, "it exists only during an update"
	case w.Demand.Type == "vm":
		return nil, "it is a virtual machine, and only volumes that are folders can move"
	case w.Desired == DesiredDeleted:
		return nil, "it is being deleted"
	case from == nil || !w.Acknowledged:
		return nil, "its node has not accepted its present order: wait until it has"
	case !from.Up:
		return nil, "its node " + from.ID + " is not up"
	case !ok:
		return nil, "node " + quoted(clip(to)) + " does not exist: persysctl nodes lists them"
	case to == w.Node:
		return nil, "it is on node " + to + " already"
	}
	for _, x := range []*Node{from, n} {
		if !x.Facts.VolumeMoves {
			return nil, "the agent of node " + x.ID + " (version " + clip(x.Facts.AgentVersion) + ") cannot move volumes"
		}
	}
	if g := w.Demand.Group; g != "" {
		if r, ok := t.state().Rollout(g); ok && r.Active() {
			return nil, "its group is being updated: wait until the update has ended"
		}
	}
	for _, u := range w.Demand.Volumes {
		if u.Driver != DriverLocal {
			continue
		}
		if why := t.movableVolume(w, u, to, Generation{}); why != "" {
			return nil, why
		}
		names = append(names, u.Name)
	}
	for _, d := range w.DataOn(from) {
		if name, ok := strings.CutPrefix(d, "volume "); !ok || !slices.Contains(names, name) {
			return nil, "it has other local data on its node, which cannot move: " + d
		}
	}
	if why := t.noPlaceOn(w, to); why != "" {
		return nil, why
	}
	return names, ""
}

// movableVolume returns why a volume of w cannot move from its node to another one; "" if it can. made is the id of the move if it
// is in progress: To may report the copy that this move made, if a backup from before the switch was restored.
func (t *Tx) movableVolume(w *Workload, u VolumeUse, to string, made Generation) string {
	v, ok := t.state().Volume(w.In(), u.Name, DriverLocal, w.Node)
	if !ok || !v.Held {
		return "volume " + quoted(u.Name) + " has no data on node " + w.Node + " yet"
	}
	if v.SizeGB > 0 || u.SizeGB > 0 {
		return "volume " + quoted(u.Name) + " has a size, so it is an image, and only volumes that are folders can move"
	}
	if users := t.state().UsersOfVolume(v); len(users) != 1 || users[0] != w.ID {
		return "volume " + quoted(u.Name) + " is used by other workloads too: " + DataText(users)
	}
	there := *v
	there.Node = to
	if have, ok := t.r.volumes.Get(there.key()); ok && (made.IsZero() || have.Copy != made) {
		return "node " + to + " has a volume " + quoted(u.Name) + " already: delete it (persysctl volume rm " + u.Name + " --node " + to + ") or choose another node"
	}
	if users := t.state().UsersOfVolume(&there); len(users) > 0 {
		return "node " + to + " runs other workloads that use a volume " + quoted(u.Name) + ": " + DataText(users)
	}
	return ""
}

// followMove ends the move of a workload's volumes if the workload has changed so that the move cannot go on: w
// replaces old; w is nil if the record was removed. Any change by a user thus wins over a move.
func (t *Tx) followMove(old, w *Workload) {
	if t.r.moves.Len() == 0 {
		return
	}
	m, ok := t.r.moves.Get(cmp.Or(w, old).ID)
	if !ok {
		return
	}
	deleted := w == nil || w.Desired == DesiredDeleted
	switch {
	case m.Open() && deleted:
		t.abandon(m, "the workload was deleted")
	case m.Open() && w.Node != m.From:
		t.abandon(m, "the workload left node "+m.From)
	case m.Open() && w.Demand != m.Demand:
		t.abandon(m, "the specification of the workload was changed")
	case m.Stops() && w.Desired != DesiredStopped:
		t.abandon(m, "the workload was started again")
	case m.Phase == MovePlaced && deleted:
		t.step(m, MoveKept, "the workload was deleted before it had run long enough")
	case m.Phase == MovePlaced && w.Node != m.To:
		t.step(m, MoveKept, "the workload left node "+m.To)
	case m.Phase == MovePlaced:
		t.followRun(m, old, w)
	}
}

// followRun records since when the workload of a placed move has run healthy and without a restart.
func (t *Tx) followRun(m *Move, old, w *Workload) {
	next := *m
	switch {
	case !w.RunsWell():
		next.RunsSince = 0
	case m.RunsSince == 0, old != nil && old.Actual.RestartCount < w.Actual.RestartCount:
		next.RunsSince = t.r.info.Clock
	}
	if next.RunsSince != m.RunsSince {
		t.putMove(m, &next)
	}
}

// RunsWell reports whether the workload runs by its present order, is healthy if it has a health check, and has no failure
// to clear.
func (w *Workload) RunsWell() bool {
	return w.Desired == DesiredRunning && w.Acknowledged && w.Actual.Generation == w.Generation && w.Actual.State == ActualRunning &&
		(w.Actual.Health == "" || w.Actual.Health == Healthy) && w.Retry.FirstFailureAt == 0
}

// resumes gives w, the copy of a record that leaves its node, the desired state that it had before it was stopped for a
// move.
func (t *Tx) resumes(w *Workload) {
	if m, ok := t.r.moves.Get(w.ID); ok && m.Stops() && m.Resume && w.Desired == DesiredStopped {
		w.Desired = DesiredRunning
	}
}

// keepsForMove returns why a workload must stay on its node, which is up: its volumes are being copied; "" if it may
// leave.
func (t *Tx) keepsForMove(w *Workload) string {
	m, ok := t.r.moves.Get(w.ID)
	if n := t.nodeOf(w); ok && m.Open() && n != nil && n.Up {
		return "the volumes of workload " + quoted(w.ID) + " are being moved to node " + m.To
	}
	return ""
}

// advanceMoves takes moves to the next phases that the planner proposes.
func (t *Tx) advanceMoves(b *commandv1.AdvanceMoves) (res Result) {
	for _, s := range b.GetSteps() {
		m, ok := t.r.moves.Get(s.GetWorkload())
		if !ok || m.ID != order.GenerationOf(s.GetMove()) {
			res.skip("workload " + quoted(clip(s.GetWorkload())) + " has no such move")
			continue
		}
		if why := t.advance(m, MovePhase(s.GetPhase()), strings.Clone(s.GetReason()[:min(len(s.GetReason()), maxMoveWhy)])); why != "" {
			res.skip(why)
		}
	}
	return res
}

// advance takes a move to a phase; it returns why the move may not go there, "" if it has.
func (t *Tx) advance(m *Move, to MovePhase, reason string) string {
	w, ok := t.r.workloads.Get(m.Workload)
	switch {
	case to == MoveUndone && m.Open():
		t.undo(m, reason)
	case to == MoveStopping && m.Phase == MoveCopying && ok:
		if why := t.unsuited(w, m.To); why != "" {
			t.undo(m, why)
			break
		}
		t.stopForMove(m, w)
	case to == MoveFinal && m.Phase == MoveStopping && ok:
		if !w.StoppedForMove() {
			return "workload " + quoted(w.ID) + " is not stopped yet"
		}
		t.step(m, MoveFinal, "")
	case to == MovePlaced && m.Phase == MoveFinal && ok:
		if !w.StoppedForMove() { // for example, a user has requested a retry, and the node has not answered the new order yet
			return "workload " + quoted(w.ID) + " is not confirmed to be stopped"
		}
		if why := t.switchOver(m, w); why != "" {
			t.undo(m, why)
		}
	case to == MoveDone && m.Phase == MovePlaced && ok:
		if n, _ := t.r.nodes.Get(m.To); n == nil || !n.Up || w.Node != m.To || !w.RunsWell() || m.RunsSince == 0 {
			return "workload " + quoted(w.ID) + " does not run healthy on node " + m.To
		}
		t.step(m, to, reason)
	case to == MoveDropping && m.Phase == MoveUndone:
		if n, _ := t.r.nodes.Get(m.From); n == nil || !n.Up {
			return "node " + m.From + " is not up"
		}
		t.step(m, to, reason)
	case to == "" && m.Ends():
		t.putMove(m, nil)
		if reason != "" {
			e := m.event()
			e.Message += ": " + reason
			t.event(e)
		}
	default:
		return "the move of workload " + quoted(m.Workload) + " does not go from " + string(m.Phase) + " to " + quoted(clip(string(to)))
	}
	return ""
}

// StoppedForMove reports whether the node of the workload has confirmed, for the present order, that the workload is
// stopped.
func (w *Workload) StoppedForMove() bool {
	return w.Desired == DesiredStopped && w.Acknowledged && w.Actual.Generation == w.Generation && stopped(w.Actual.State)
}

// stopForMove stops the workload of a move.
func (t *Tx) stopForMove(m *Move, old *Workload) {
	next := *m
	next.Resume = old.Desired == DesiredRunning
	next.Phase, next.PhaseSince, next.Reason = MoveStopping, t.r.info.Clock, ""
	if old.Desired == DesiredRunning {
		w := *old
		w.Desired = DesiredStopped
		w.Retry = Retry{MaxAttempts: old.Retry.MaxAttempts}
		t.newOrder(&w)
		w.Reason = Reason{Code: CodeMoving, Message: next.stopText(), At: t.r.info.Clock}
		t.putMove(m, &next)
		t.putWorkload(old, &w)
	} else {
		t.putMove(m, &next)
	}
	t.event(next.event())
}

func (m *Move) stopText() string {
	return "stopped while its volumes move to node " + m.To + "; it is started there"
}

// switchOver assigns the workload of a move to the new node and gives that node the volumes. It checks all volumes once
// more, and returns why the switch is not possible.
func (t *Tx) switchOver(m *Move, old *Workload) string {
	switch {
	case t.unsuited(old, m.To) != "":
		return t.unsuited(old, m.To)
	case old.Node != m.From || !old.StoppedForMove():
		return "the workload is not stopped on node " + m.From
	}
	var names []string
	for _, u := range old.Demand.Volumes {
		if u.Driver != DriverLocal {
			continue
		}
		if why := t.movableVolume(old, u, m.To, m.ID); why != "" {
			return why
		}
		names = append(names, u.Name)
	}
	if !slices.Equal(names, m.Volumes) {
		return "the volumes of the workload have changed"
	}
	placed := t.step(m, MovePlaced, "")
	for _, name := range m.Volumes {
		if there, ok := t.state().Volume(m.In(), name, DriverLocal, m.To); ok {
			t.storeVolume(there, nil)
		}
		v, _ := t.state().Volume(m.In(), name, DriverLocal, m.From)
		next := *v
		next.Node, next.Copy, next.Former, next.Undone = m.To, m.ID, v.Copy, Generation{}
		t.storeVolume(v, &next)
	}
	t.rebind(placed, old, m.To, false, "moved with its volumes from node "+m.From)
	return ""
}

// rebind assigns the workload of a move to another node, which has the volumes.
func (t *Tx) rebind(m *Move, old *Workload, to string, gone bool, message string) {
	w := *old
	data := w.Data
	if w.Desired == DesiredStopped && m.Resume && to == m.To {
		w.Desired = DesiredRunning
	}
	from := w.Node
	t.release(&w, gone, CodeMoved)
	if r, ok := t.r.residuals.Get(pair(to, w.ID)); ok {
		t.dropResidual(r)
		t.holdPorts(&w, r.Demand.Ports)
	}
	w.Node, w.AssignedAt, w.Data = to, t.r.info.Clock, data
	w.Reason = Reason{}
	t.putWorkload(old, &w)
	t.event(Event{Type: EventRescheduled, Workload: w.ID, Node: to, Reason: CodeMoved, Message: message, Details: []Label{{"previous_node", from}}})
}

// movePB returns the record of m in a snapshot.
func movePB(m *Move) *commandv1.MoveRecord {
	return &commandv1.MoveRecord{
		Id: GenerationPB(m.ID), Workload: m.Workload, Namespace: m.Namespace, Volumes: m.Volumes, From: m.From, To: m.To, Phase: string(m.Phase),
		PhaseSince: m.PhaseSince, StartedAt: m.StartedAt, Reason: m.Reason, By: m.By, BytesPerSecond: m.Rate, Resume: m.Resume, RunsSince: m.RunsSince, Demand: demandPB(m.Demand),
	}
}

func moveOf(p *commandv1.MoveRecord) *Move {
	d := demandValue(p.GetDemand())
	return &Move{
		ID: order.GenerationOf(p.GetId()), Workload: p.GetWorkload(), Namespace: stored(p.GetNamespace()), Volumes: p.GetVolumes(), From: p.GetFrom(), To: p.GetTo(),
		Phase: MovePhase(p.GetPhase()), PhaseSince: p.GetPhaseSince(), StartedAt: p.GetStartedAt(), Reason: p.GetReason(), By: p.GetBy(), Rate: p.GetBytesPerSecond(),
		Resume: p.GetResume(), RunsSince: p.GetRunsSince(), Demand: &d,
	}
}

func (e *encoder) move(m *Move) {
	e.generation(m.ID)
	for _, s := range [...]string{m.Workload, m.Namespace, m.From, m.To, string(m.Phase), m.Reason, m.By} {
		e.str(s)
	}
	e.strs(m.Volumes)
	for _, n := range [...]int64{m.PhaseSince, m.StartedAt, m.Rate, m.RunsSince} {
		e.i64(n)
	}
	e.bool(m.Resume)
	e.demand(m.Demand)
}

// restoreMoves keeps the moves of the state that supplies the facts. A workload that a move has stopped stays stopped. In new
// schedulers (fresh) nobody knows what happened after the backup was made: the volumes may have moved since, or returned. So
// nothing is deleted until a person ends the move, and the agents' own records decide whether the workload may start.
func (t *Tx) restoreMoves(facts State, fresh bool) {
	facts.Moves(func(m *Move) bool {
		_, from := t.r.nodes.Get(m.From)
		_, to := t.r.nodes.Get(m.To)
		undone := m.Phase == MoveUndone || m.Phase == MoveDropping
		if !from || !to && !undone {
			return true
		}
		if fresh {
			held := *m
			held.Phase, held.RunsSince, held.Resume, held.Reason = MoveKept, 0, false, "a backup was restored into new schedulers"
			if undone {
				held.Phase = MoveUndone
			}
			m = &held
		}
		t.r.moves.Set(m.Workload, m)
		return true
	})
}

// settleMoves is called after a restore, when all indexes exist. It ends the moves that no longer fit to the restored
// records.
func (t *Tx) settleMoves(fresh bool) {
	for _, m := range t.r.moves.Values() {
		w, ok := t.r.workloads.Get(m.Workload)
		if fresh && m.Phase == MoveKept && m.onSource(w) {
			t.noEmptyVolumes(m)
			continue
		}
		if ok && m.Open() && w.Node == m.From && demandEqual(w.Demand, m.Demand) {
			next := *m
			next.Demand = w.Demand
			if m.Stops() && w.Desired == DesiredRunning { // the backup is older than the stop
				next.Resume = true
				stop := *w
				stop.Desired = DesiredStopped
				t.newOrder(&stop)
				t.putMove(m, &next)
				t.putWorkload(w, &stop)
				continue
			}
			t.putMove(m, &next)
			continue
		}
		switch {
		case ok:
			t.followMove(w, w)
		case m.Open():
			t.abandon(m, "the workload was removed by a restore")
		case m.Phase == MovePlaced:
			t.step(m, MoveKept, "the workload was removed by a restore")
		}
	}
}

func (c *checker) moves() {
	c.s.r.moves.Scan(func(key string, m *Move) bool {
		c.must(m.Workload == key && bounds.ValidID(key) && len(m.Volumes) > 0, "the move of workload %q is stored under %q with %d volumes", clip(m.Workload), clip(key), len(m.Volumes))
		_, from := c.s.r.nodes.Get(m.From)
		_, to := c.s.r.nodes.Get(m.To)
		c.must(from && (to || m.Phase == MoveUndone || m.Phase == MoveDropping), "the move of workload %q (%s) is from node %q to %q, which do not both exist", clip(key), m.Phase, clip(m.From), clip(m.To))
		c.must(m.RunsSince == 0 || m.Phase == MovePlaced, "the move of workload %q is %s, but its workload runs on the new node since %d", clip(key), m.Phase, m.RunsSince)
		w, ok := c.s.r.workloads.Get(key)
		if m.Open() {
			c.must(ok && w.Node == m.From && w.Desired != DesiredDeleted && w.Demand == m.Demand, "the move of workload %q is %s, but the workload is not on node %q as it was", clip(key), m.Phase, clip(m.From))
			c.must(!m.Stops() || ok && w.Desired == DesiredStopped, "the move of workload %q is %s, but the workload is not to be stopped", clip(key), m.Phase)
		}
		c.must(m.RunsSince == 0 || ok && w.RunsWell(), "the move of workload %q says that the workload runs well since %d, but it does not", clip(key), m.RunsSince)
		if m.Phase == MovePlaced {
			c.must(ok && w.Node == m.To, "the move of workload %q is placed, but the workload is not on node %q", clip(key), clip(m.To))
		}
		return true
	})
}
