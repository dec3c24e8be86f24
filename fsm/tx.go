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

// Command is one entry of the vocabulary of the log. Apply never modifies it, but records share
// its bytes, so the caller must not change it afterwards.
type Command = *commandv1.Command

// Meta is the position of a command in the log. Commands of one batch share it.
type Meta struct{ Index, Term uint64 }

// Tx applies the commands of one log entry to a private copy of a state. It is for use by one
// goroutine. Nobody sees its effects before Commit.
type Tx struct {
	r     root
	owned uint32 // one bit per table that this Tx has copied

	// The command that is being judged:
	meta   Meta
	by     string
	caller string // address that the call came from
	via    string // identity of the gateway that passed the call on
	// confined lists the namespaces in which the caller may act; empty means all.
	confined []string
	next     Generation // issued to every record that the command changes
	from     int        // index of its first Change in changes

	olds   []*Workload            // see replaced
	alone  commandv1.PutWorkloads // see putAlone
	origin []Label                // details of an event that holds only the address of the caller

	changes  []Change // of all commands since Begin or Commit
	slabs    slabs
	outcomes outcomes
	scratch  []byte
	hash     xxhash.Digest
	// sideFold holds the encoded changes of tables that make no Change (trust.go, tombstones.go,
	// failures.go, drifts.go, rollouts.go), for the digest.
	sideFold []byte

	retention receipts.Retention
	rules     []armRule // armRules, unless a test declares a newer version's
}

// Begin opens a transaction. It copies the root; tables are shared with s until the first write
// to them. s does not change. See State for who may call Begin.
func (s State) Begin() *Tx { return &Tx{r: *s.r, rules: armRules[:], retention: receipts.Default()} }

// Commit returns the state after all commands applied so far. The Tx may be used further; later
// changes do not affect the returned State.
func (t *Tx) Commit() State {
	r := t.r
	t.owned, t.changes = 0, nil
	return State{&r}
}

// Expect reserves memory for the results of that many commands. It is optional.
func (t *Tx) Expect(commands int) {
	t.changes = slices.Grow(t.changes, 2*commands)
	t.slabs.expected = commands
}

// slabs allocates small objects of one log entry in rows, because they are released at about the
// same time. For the garbage collector one row is one object.
type slabs struct {
	expected int // commands that are not applied yet
	items    []Item
}

// slabMax is the number of items per slab. One live item keeps the whole slab in memory.
const slabMax = 64

// place stores v in the next free item of a slab and returns a list of that item. Each item is
// used once.
func place[V any](s *slabs, row *[]V, v V) []V {
	if len(*row) == 0 {
		*row = make([]V, max(1, min(s.expected, slabMax)))
	}
	one := (*row)[:1:1]
	*row = (*row)[1:]
	one[0] = v
	return one
}

// Changes returns the changes of all commands since Begin or Commit.
func (t *Tx) Changes() []Change { return slices.Clip(t.changes) }

// Apply judges one command. The result is the same on every replica. A refusal is a Result with
// a Kind, not an error. Changes are in the order in which they were made, nil if there are none.
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

// Apply judges one command in a transaction of its own. For many commands, use one Tx.
func (s State) Apply(m Meta, c Command) (State, Result, []Change) {
	t := s.Begin()
	res, changes := t.Apply(m, c)
	return t.Commit(), res, changes
}

// judge applies a command that is not a repeated request.
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

// generation returns the generation that this command issues. The first call advances the
// sequence.
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
	ownTombstones
	ownTombstonesByAge
	ownAudits
	ownDrifts
	ownNamespaces
	ownUses
	ownByUser
	ownRollouts
	ownRolling
)

// own copies a table before the first write to it. Copying also marks the original tree; only
// writers read that mark.
func own[K cmp.Ordered, V any](t *Tx, m **btree.Map[K, V], bit uint32) *btree.Map[K, V] {
	if t.owned&bit == 0 {
		*m = (*m).Copy()
		t.owned |= bit
	}
	return *m
}

// refuse returns a verdict that changes nothing.
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
