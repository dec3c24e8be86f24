package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/receipts"
)

// Command is one entry of the log's vocabulary. It is never modified here, and
// records share its bytes: whoever made it must not change it afterwards.
type Command = *commandv1.Command

// Meta is where in the log a command stands. Commands of one batch share it.
type Meta struct{ Index, Term uint64 }

// Tx applies the commands of one log entry to a private copy of a state. It is
// for one goroutine; nobody sees its effects before Commit.
type Tx struct {
	r     root
	owned uint32 // bit per table that is private already

	// Of the command being judged:
	meta   Meta
	by     string
	caller string // address that the call came from
	via    string // identity of the gateway that passed the call on
	// confined are the namespaces that whoever asked may act in; none: all.
	confined []string
	next     Generation // handed out to everything the command touches
	from     int        // in changes, where its own begin

	olds   []*Workload            // see replaced
	alone  commandv1.PutWorkloads // see putAlone
	origin []Label                // details of an event that has none but where the call came from

	changes  []Change // of all commands since Begin or Commit
	slabs    slabs
	outcomes outcomes
	scratch  []byte
	hash     xxhash.Digest
	// sideFold is what the command changed in the tables that make no Change
	// (trust.go, tombstones.go, failures.go, drifts.go), as the digest takes it.
	sideFold []byte

	retention receipts.Retention
	rules     []armRule // armRules, unless a test declares a newer version's
}

// Begin opens a transaction. It costs a copy of the root; a table is shared with
// s until the first write to it. s itself stays as it is, but see State for who
// may call Begin.
func (s State) Begin() *Tx { return &Tx{r: *s.r, rules: armRules[:], retention: receipts.Default()} }

// Commit returns the state after everything applied so far. The Tx may go on:
// what it does then is not seen in the State returned here.
func (t *Tx) Commit() State {
	r := t.r
	t.owned, t.changes = 0, nil
	return State{&r}
}

// Expect makes room for what that many commands leave, so that it is made at once.
// Without it everything works the same.
func (t *Tx) Expect(commands int) {
	t.changes = slices.Grow(t.changes, 2*commands)
	t.slabs.expected = commands
}

// slabs are rows of what the commands of an entry leave and what goes as it came, all at
// about the same time: for a collection a row is one object to walk instead of many.
type slabs struct {
	expected int // commands that are still to come
	items    []Item
}

// slabMax is how many stand in a row, and so how many one that is kept for long keeps.
const slabMax = 64

// place puts v into the next free place of a row, as a list of one. Each place is handed
// out once.
func place[V any](s *slabs, row *[]V, v V) []V {
	if len(*row) == 0 {
		*row = make([]V, max(1, min(s.expected, slabMax)))
	}
	one := (*row)[:1:1]
	*row = (*row)[1:]
	one[0] = v
	return one
}

// Changes returns what Apply returned since Begin or Commit, of all commands
// together.
func (t *Tx) Changes() []Change { return slices.Clip(t.changes) }

// Apply judges one command. The result is the same on every replica; a refusal
// is a Result with a Kind, never a Go error. Changes are in the order they were
// made and nil if there are none.
func (t *Tx) Apply(m Meta, c Command) (Result, []Change) {
	head := c.GetHead()
	t.meta, t.next, t.from = m, Generation{}, len(t.changes)
	if by := head.GetBy(); t.by != by {
		t.by = strings.Clone(by) // events outlive commands
	}
	if from := head.GetFrom(); t.caller != from {
		t.caller, t.origin = strings.Clone(from), nil
	}
	if via := head.GetVia(); t.via != via {
		t.via = strings.Clone(via)
	}
	t.confined = head.GetNamespaces()
	t.sideFold = t.sideFold[:0]
	info := &t.r.info
	info.Index, info.Term = m.Index, m.Term
	info.Clock = max(info.Clock, head.GetAt())

	res := t.once(c)
	t.fold(c, res)
	t.slabs.expected--
	if t.from == len(t.changes) {
		return res, nil
	}
	return res, slices.Clip(t.changes[t.from:])
}

// Apply judges one command in a transaction of its own. A caller that has many
// should use one Tx for all of them.
func (s State) Apply(m Meta, c Command) (State, Result, []Change) {
	t := s.Begin()
	res, changes := t.Apply(m, c)
	return t.Commit(), res, changes
}

// judge is what happens to a command that is no repetition.
func (t *Tx) judge(c Command) Result {
	if c.GetBody() == nil {
		return refuse(Unsupported, "the command has no body that this version knows")
	}
	a := armOf(c)
	if level := ruleOf(t.rules, a).level; level > t.r.info.FeatureLevel {
		return refuse(Unsupported, "%s needs feature level %d, the cluster is at %d", a, level, t.r.info.FeatureLevel)
	}
	if err := Permit(t.r.info.Mode, c); err != nil {
		return refuse(Frozen, "%s%s", err.Error(), suffix(": ", t.r.info.ModeReason))
	}
	if a.planned() {
		want := t.r.info.Epoch()
		if got := c.GetHead().GetEpoch(); got.GetIncarnation() != want.Incarnation || got.GetTerm() != want.Term {
			return refuse(StaleEpoch, "%s was planned in epoch %s, this is %s", a,
				Epoch{got.GetIncarnation(), got.GetTerm()}, want)
		}
	}
	if len(t.confined) > 0 {
		if !slices.Contains(within[:], a) {
			return refuse(Denied, "%s is about the whole cluster, and %s acts only in %s", a, t.by, strings.Join(t.confined, ", "))
		}
	}
	switch b := c.GetBody().(type) {
	case *commandv1.Command_InitCluster:
		return t.initCluster(b.InitCluster)
	case *commandv1.Command_PutWorkloads:
		return t.putWorkloads(b.PutWorkloads)
	case *commandv1.Command_SetDesired:
		return t.setDesired(b.SetDesired)
	case *commandv1.Command_DeleteWorkload:
		return t.deleteWorkload(b.DeleteWorkload)
	case *commandv1.Command_RetryWorkload:
		return t.retryWorkload(b.RetryWorkload)
	case *commandv1.Command_RegisterNode:
		return t.registerNode(b.RegisterNode)
	case *commandv1.Command_CordonNode:
		return t.cordonNode(b.CordonNode)
	case *commandv1.Command_DrainNode:
		return t.drainNode(b.DrainNode)
	case *commandv1.Command_RemoveNode:
		return t.removeNode(b.RemoveNode)
	case *commandv1.Command_FenceNode:
		return t.fenceNode(b.FenceNode)
	case *commandv1.Command_SetNodeStates:
		return t.setNodeStates(b.SetNodeStates)
	case *commandv1.Command_Assign:
		return t.assign(b.Assign)
	case *commandv1.Command_Evict:
		return t.evict(b.Evict)
	case *commandv1.Command_ScheduleRetries:
		return t.scheduleRetries(b.ScheduleRetries)
	case *commandv1.Command_ExplainUnplaced:
		return t.explainUnplaced(b.ExplainUnplaced)
	case *commandv1.Command_Report:
		return t.report(b.Report)
	case *commandv1.Command_SetMode:
		return t.setMode(b.SetMode)
	case *commandv1.Command_PutReplica:
		return t.putReplica(b.PutReplica)
	case *commandv1.Command_RemoveReplica:
		return t.removeReplica(b.RemoveReplica)
	case *commandv1.Command_SetFeatureLevel:
		return t.setFeatureLevel(b.SetFeatureLevel)
	case *commandv1.Command_Barrier:
		return Result{}
	case *commandv1.Command_MirrorAttached:
		return t.mirrorAttached(b.MirrorAttached)
	case *commandv1.Command_PinClusterKey:
		return t.pinClusterKey(b.PinClusterKey)
	case *commandv1.Command_SetGossipRing:
		return t.setGossipRing(b.SetGossipRing)
	case *commandv1.Command_PutAuthority:
		return t.putAuthority(b.PutAuthority)
	case *commandv1.Command_DropAuthority:
		return t.dropAuthority(b.DropAuthority)
	case *commandv1.Command_PutToken:
		return t.putToken(b.PutToken)
	case *commandv1.Command_DropToken:
		return t.dropToken(b.DropToken)
	case *commandv1.Command_Admit:
		return t.admit(b.Admit)
	case *commandv1.Command_Revoke:
		return t.revoke(b.Revoke)
	case *commandv1.Command_Audit:
		return t.audit(b.Audit)
	case *commandv1.Command_ForgiveFailures:
		return t.forgiveFailures(b.ForgiveFailures)
	case *commandv1.Command_RecordActions:
		return t.recordActions(b.RecordActions)
	case *commandv1.Command_SetDrifts:
		return t.setDrifts(b.SetDrifts)
	case *commandv1.Command_AdoptDrift:
		return t.adoptDrift(b.AdoptDrift)
	case *commandv1.Command_DropOrphan:
		return t.dropOrphan(b.DropOrphan)
	case *commandv1.Command_PutNamespace:
		return t.putNamespace(b.PutNamespace)
	case *commandv1.Command_DeleteNamespace:
		return t.deleteNamespace(b.DeleteNamespace)
	case *commandv1.Command_AdvanceRollout:
		return t.advanceRollout(b.AdvanceRollout)
	case *commandv1.Command_SetRollout:
		return t.setRollout(b.SetRollout)
	}
	return refuse(Unsupported, "this version has no rule for %s", a)
}

// generation is the one that this command hands out; the first call advances
// the sequence.
func (t *Tx) generation() Generation {
	if t.next.IsZero() {
		t.r.info.Sequence++
		t.next = Generation{t.r.info.Incarnation, t.r.info.Sequence}
	}
	return t.next
}

// Bits of Tx.owned.
const (
	ownWorkloads = 1 << iota
	ownNodes
	ownResiduals
	ownReplicas
	ownEvents
	ownReceipts
	ownByNode
	ownByGroup
	ownPending
	ownUnacked
	ownRetryDue
	ownResidualsOf
	ownPorts
	ownAlloc
	ownAuthorities
	ownTokens
	ownAdmissions
	ownRevocations
	ownGraves
	ownGravesByAge
	ownAudits
	ownDrifts
	ownNamespaces
	ownUses
	ownByUser
	ownRollouts
	ownRolling
)

// own makes one table private before the first write to it. Copying marks the
// original, which readers do not look at (only a writer compares marks).
func own[K cmp.Ordered, V any](t *Tx, m **btree.Map[K, V], bit uint32) *btree.Map[K, V] {
	if t.owned&bit == 0 {
		*m = (*m).Copy()
		t.owned |= bit
	}
	return *m
}

// refuse makes a verdict that changes nothing.
func refuse(k Kind, format string, args ...any) Result {
	return Result{Kind: k, Reason: fmt.Sprintf(format, args...)}
}

// suffix is sep+s, or nothing when s is empty.
func suffix(sep, s string) string {
	if s == "" {
		return ""
	}
	return sep + s
}
