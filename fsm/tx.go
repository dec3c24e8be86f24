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

// Command is one command of the log. Apply never modifies it, but records share its memory, so the caller
// must not change it afterwards.
type Command = *commandv1.Command

// Meta is the log index and the term of a command. The commands of one log entry share it.
type Meta struct{ Index, Term uint64 }

// Tx applies the commands of one log entry to a private copy of a state. It is for use by one goroutine.
// Its effects are visible only after Commit.
type Tx struct {
	r     root
	owned uint64 // a bit for each table that this Tx has copied

	// Facts about the command that is being applied:
	meta   Meta
	by     string
	caller string // network address of the caller
	via    string // identity of the gateway that forwarded the call
	// confined lists the namespaces to which the caller is confined; empty means that the caller
	// may act in all.
	confined []string
	// unprivileged means that the policy baseline applies to the caller in namespaces without a bound policy.
	unprivileged bool
	shares       RoomShares // which parts of the size limit of the state (Room) the caller may use
	next         Generation // the generation that this command gives to every order that it changes
	from         int        // index in changes of the first Change by the command

	olds    []*Workload            // present records of the workloads that the command puts; from the method replaced
	alone   commandv1.PutWorkloads // the message that the method putAlone reuses
	offered []*commandv1.Bundle    // bundles that the command carries
	growth  int64                  // bytes by which the puts that the command has not stored yet make the state larger
	pool    string                 // pool of the network that the command may create; "" = it creates none
	// newNetwork is the network that the command creates if it is accepted; nil if it creates none.
	newNetwork *Network
	usedUp     bool     // the command uses a join token for the last time
	renews     bool     // putWorkloads gives workloads another version of an object
	unused     []string // digests of bundles that lost their last reference
	origin     []Label  // event details that have only the address of the caller; shared by events

	changes  []Change // changes made by all commands since Begin or the last Commit
	slabs    slabs
	outcomes outcomes
	scratch  []byte
	hash     xxhash.Digest
	// sideFold holds encoded changes for the digest. They are the changes of the tables that are not in the
	// change feed (trust.go, tombstones.go, failures.go, drifts.go, rollouts.go).
	sideFold []byte

	retention receipts.Retention
	rules     []armRule // armRules, unless a test sets the rules of a newer version
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

// Expect reserves memory for the results of the given number of commands. Calling Expect is optional.
func (t *Tx) Expect(commands int) {
	t.changes = slices.Grow(t.changes, 2*commands)
	t.slabs.expected = commands
}

// slabs allocates many small objects of one log entry in one Go slice. The garbage collector then
// has one object to look at instead of many. The objects of one log entry become garbage at about
// the same time, so a slice rarely stays in memory for a few of its objects.
type slabs struct {
	expected int // number of commands of the log entry that are not applied yet
	items    []Item
}

// slabMax is the number of items per slab. One live item keeps the whole slab in memory.
const slabMax = 64

// place stores v in the next free item of a slab. It returns a slice with that item as its only
// element. Each item is used once.
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
		t.by = strings.Clone(by) // copied, because events are kept longer than the command
	}
	if from := head.GetFrom(); t.caller != from {
		t.caller, t.origin = strings.Clone(from), nil
	}
	if via := head.GetVia(); t.via != via {
		t.via = strings.Clone(via)
	}
	t.confined = head.GetNamespaces()
	t.shares = RoomShares{Namespace: int64(head.GetNamespaceShare()), Reserve: int64(min(head.GetRoomReserve(), 100))}
	t.unprivileged = head.GetUnprivileged() || len(t.confined) > 0
	t.sideFold, t.offered, t.pool, t.newNetwork, t.usedUp = t.sideFold[:0], nil, "", nil, false
	info := &t.r.info
	info.Index, info.Term = m.Index, m.Term
	info.Clock = max(info.Clock, head.GetAt())

	res := t.once(c)
	t.dropBundles()
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

// judge applies a command, unless a check refuses it. The caller has made sure that the command is
// not a repeat with a stored answer.
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
	if res := t.retiredSeal(c); res.Kind != OK {
		return res
	}
	switch b := c.GetBody().(type) {
	case *commandv1.Command_InitCluster:
		return t.initCluster(b.InitCluster)
	case *commandv1.Command_PutWorkloads:
		return t.putWorkloads(b.PutWorkloads, false, true)
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
	case *commandv1.Command_AttachMirror:
		return t.attachMirror(b.AttachMirror)
	case *commandv1.Command_DetachMirror:
		return t.detachMirror()
	case *commandv1.Command_PinClusterKey:
		return t.pinClusterKey(b.PinClusterKey)
	case *commandv1.Command_RotateClusterKey:
		return t.rotateClusterKey(b.RotateClusterKey)
	case *commandv1.Command_Reseal:
		return t.reseal(b.Reseal)
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
	case *commandv1.Command_PutPolicy:
		return t.putPolicy(b.PutPolicy)
	case *commandv1.Command_DeletePolicy:
		return t.deletePolicy(b.DeletePolicy)
	case *commandv1.Command_BindPolicy:
		return t.bindPolicy(b.BindPolicy)
	case *commandv1.Command_PutRole:
		return t.putRole(b.PutRole)
	case *commandv1.Command_DeleteRole:
		return t.deleteRole(b.DeleteRole)
	case *commandv1.Command_BindRole:
		return t.bindRole(b.BindRole)
	case *commandv1.Command_PutAccount:
		return t.putAccount(b.PutAccount)
	case *commandv1.Command_DeleteAccount:
		return t.deleteAccount(b.DeleteAccount)
	case *commandv1.Command_LinkConsole:
		return t.linkConsole(b.LinkConsole)
	case *commandv1.Command_OpenConsole:
		return t.openConsole(b.OpenConsole)
	case *commandv1.Command_EndConsole:
		return t.endConsole(b.EndConsole)
	case *commandv1.Command_LabelNode:
		return t.labelNode(b.LabelNode)
	case *commandv1.Command_TaintNode:
		return t.taintNode(b.TaintNode)
	case *commandv1.Command_FinishJobs:
		return t.finishJobs(b.FinishJobs)
	case *commandv1.Command_ExpireJobs:
		return t.expireJobs(b.ExpireJobs)
	case *commandv1.Command_CreateRuns:
		return t.createRuns(b.CreateRuns)
	case *commandv1.Command_StartRun:
		return t.startRun(b.StartRun)
	case *commandv1.Command_ScaleGroup:
		return t.scaleGroup(b.ScaleGroup)
	case *commandv1.Command_MoveWorkloads:
		return t.moveWorkloads(b.MoveWorkloads)
	case *commandv1.Command_SetRebalancePolicy:
		return t.setRebalancePolicy(b.SetRebalancePolicy)
	case *commandv1.Command_PlaceMembers:
		return t.placeMembers(b.PlaceMembers)
	case *commandv1.Command_PutVolume:
		return t.createVolume(b.PutVolume)
	case *commandv1.Command_DeleteVolume:
		return t.deleteVolume(b.DeleteVolume)
	case *commandv1.Command_ReportVolumes:
		return t.reportVolumes(b.ReportVolumes)
	case *commandv1.Command_MoveVolume:
		return t.moveVolume(b.MoveVolume)
	case *commandv1.Command_AdvanceMoves:
		return t.advanceMoves(b.AdvanceMoves)
	case *commandv1.Command_PutNetwork:
		return t.putNetwork(b.PutNetwork)
	case *commandv1.Command_DeleteNetwork:
		return t.deleteNetwork(b.DeleteNetwork)
	case *commandv1.Command_ReleaseSlices:
		return t.releaseSlices(b.ReleaseSlices)
	case *commandv1.Command_PutObject:
		return t.putObject(b.PutObject)
	case *commandv1.Command_DeleteObject:
		return t.deleteObject(b.DeleteObject)
	}
	return refuse(Unsupported, "this version has no rule for %s", a)
}

// generation returns the new generation that the present command gives to the orders that it
// changes. The first call in a command advances the sequence number.
func (t *Tx) generation() Generation {
	if t.next.IsZero() {
		t.r.info.Sequence++
		t.next = Generation{Incarnation: t.r.info.Incarnation, Sequence: t.r.info.Sequence}
	}
	return t.next
}

// The bits of Tx.owned, one per table.
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
	ownPolicies
	ownPolicyIn
	ownByLabel
	ownAuditLogs
	ownBundles
	ownByMAC
	ownByRule
	ownByPreemption
	ownRoles
	ownBindings
	ownAccounts
	ownConsoles
	ownByOwner
	ownNetworks
	ownObjects
	ownVolumes
	ownByVolume
	ownByIngress
	ownMoves
)

// own returns a table that the transaction may write to. The first call for a table (bit) copies
// its tree. Copying also marks the original tree, which is safe because only writers read that
// mark.
func own[K cmp.Ordered, V any](t *Tx, m **btree.Map[K, V], bit uint64) *btree.Map[K, V] {
	if t.owned&bit == 0 {
		*m = (*m).Copy()
		t.owned |= bit
	}
	return *m
}

// refuse returns the result of a command that is refused and has changed nothing.
func refuse(k Kind, format string, args ...any) Result {
	return Result{Kind: k, Reason: fmt.Sprintf(format, args...)}
}

// suffix returns sep+s, or "" if s is empty.
func suffix(sep, s string) string {
	if s == "" {
		return ""
	}
	return sep + s
}
