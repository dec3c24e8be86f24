package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/persys/compute/fsm"
)

// Fault is a set of kinds of faults.
type Fault uint32

// The kinds of faults.
const (
	ReplicaCrash  Fault = 1 << iota // a scheduler dies and restarts from a snapshot
	ReplicaPause                    // a scheduler process is paused
	ReplicaCut                      // a scheduler cannot reach the others
	LeaderChange                    // leadership moves without any other trouble
	AgentCrash                      // an agent dies, its workloads run on
	AgentPause                      // an agent is paused, its workloads run on
	PowerLoss                       // a machine dies and comes back with its disk
	Reinstall                       // a machine dies and comes back empty under its old id
	StateLoss                       // an agent's file is lost, its workloads run on
	LinkCut                         // a node and schedulers cannot reach each other, one way or both
	MessageLoss                     //
	MessageDelay                    // long enough to arrive after the deadline
	MessageDup                      //
	InstanceCrash                   // a workload ends by itself
	BadSpec                         // specifications that cannot or sometimes do not work
	Operator                        // cordon, drain, fence, remove
	ModeChange                      // the control plane is frozen for a while
	ClockTrouble                    // offsets and drift
	FencedReturns                   // a machine that was fenced comes back with its disk
	lastFault
)

// Drift makes the leader compare nodes with the state during the whole run, and makes
// nodes differ from it once the world is at rest. It is not in AllFaults, so that it does
// not change the draws of committed seeds.
const Drift Fault = 1 << 31

// StopTrouble makes stops fail: an agent refuses one, accepts it and forgets it, or its
// engine fails to stop the workload. It is not in AllFaults, for the same reason.
const StopTrouble Fault = 1 << 30

// Fencers makes every exclusive workload one that its node's fencers stop when the lease
// ends (on_lost_lease: stop), and every node self-fencing. It is not in AllFaults, for the
// same reason.
const Fencers Fault = 1 << 29

// Rollouts has users start rolling updates of the group g again and again. It is not in
// AllFaults, for the same reason.
const Rollouts Fault = 1 << 28

var faultNames = []string{
	"ReplicaCrash", "ReplicaPause", "ReplicaCut", "LeaderChange", "AgentCrash", "AgentPause", "PowerLoss", "Reinstall",
	"StateLoss", "LinkCut", "MessageLoss", "MessageDelay", "MessageDup", "InstanceCrash", "BadSpec", "Operator",
	"ModeChange", "ClockTrouble", "FencedReturns",
}

// String names the kinds of a set.
func (f Fault) String() string {
	var out []string
	for i, name := range faultNames {
		if f&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, "|")
}

// AllFaults are the kinds that the design promises to survive: all there are.
const AllFaults = lastFault - 1

// Sabotage switches off one fence, to test that the simulator finds it.
type Sabotage uint8

// The fences that can be switched off.
const (
	NoSabotage        Sabotage = iota
	NoEpochFence               // agents take orders of any epoch
	NoGenerationFence          // agents take orders of any generation
	NoTombstones               // agents forget what was deleted
	NoLeaseConfirm             // leases are extended without a Confirm
	NoAwaitStop                // the planner does not see which nodes still run a workload
	NoReceipts                 // request ids do not reach the log
	ShortLeases                // the leader ends leases before the time that it told
	AckBeforeCommit            // a user's call is acknowledged before it is committed
	SkipAnEntry                // one replica does not apply one command
	NoDurableEpoch             // an agent's epoch is lost when it restarts
	NoInstanceFence            // agents take orders that are for another instance of their node
	NoStopRetry                // the planner orders a stop once
	NoFencer                   // fencers do nothing at the end of a lease
	AllAtOnce                  // updates of the group go through more members than the user said
	ShortBound                 // a node registers a fence bound that its fencers cannot keep
	AnswerBeforeStore          // agents answer an order before they store it
)

// Config determines a run completely.
type Config struct {
	Seed     uint64
	Faults   Fault // 0 = AllFaults
	Sabotage Sabotage
	// Stress loses, delays and repeats more messages than a bad network would.
	Stress bool
	// Trouble is how long faults and users go on; 0 = drawn, 60 s to 180 s.
	Trouble time.Duration
	// Settle is how long the world may take to come to rest after the faults; 0 = 25 min.
	Settle time.Duration
	// Check runs State.Check at every n-th entry; 0 = 8.
	Check int
	// Keep is how many trace lines are kept; 0 = 4000.
	Keep int
}

// Violation is a broken promise.
type Violation struct {
	Rule     string // short and stable
	Detail   string
	Workload string
	Node     string
	At       time.Duration // since the start
}

// Report is the result of a run.
type Report struct {
	Config    Config
	Violation *Violation
	Events    int
	Drifts    int // differences that were on record and closed again
	Entries   int
	Virtual   time.Duration
	Hash      uint64 // of the whole trace
	trace     []line
}

type line struct {
	at             int64
	workload, node string
	text           string
}

// start is when every run begins, Unix nanoseconds.
const start = int64(1_790_000_000) * sec

type world struct {
	clock
	cfg    Config
	report Report
	calm   bool // faults and users have stopped
	hash   *xxhash.Digest
	lines  []line

	log      raftLog
	truth    fsm.State // all that is committed, applied
	oracle   oracle
	replicas []*replica
	machines []*machine
	users    users
	loss     int // messages in a thousand
	delays   int
	dups     int
}

// Run simulates one seed.
func Run(cfg Config) Report {
	if cfg.Faults == 0 {
		cfg.Faults = AllFaults
	}
	if cfg.Check <= 0 {
		cfg.Check = 8
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 4000
	}
	if cfg.Settle <= 0 {
		cfg.Settle = 25 * time.Minute
	}
	w := &world{cfg: cfg, hash: xxhash.New(), truth: fsm.New()}
	w.clock = clock{now: start, rng: rand.New(rand.NewPCG(cfg.Seed, 0x9e3779b97f4a7c15))}
	w.report.Config = cfg
	w.build()
	trouble := w.between(60, 180) * sec
	if cfg.Trouble > 0 {
		trouble = int64(cfg.Trouble)
	}
	end := start + trouble
	for w.report.Violation == nil && w.next(end) {
	}
	if w.report.Violation == nil {
		w.heal()
		w.settle(end + int64(cfg.Settle))
		if w.report.Violation == nil && w.has(Drift) {
			w.drift()
			w.settle(w.now + int64(cfg.Settle))
		}
	}
	w.report.Events, w.report.Entries = w.events, len(w.log.entries)
	w.report.Virtual = time.Duration(w.now - start)
	w.report.Hash = w.hash.Sum64()
	w.report.trace = w.lines
	return w.report
}

// settle runs until the world is at rest, or the bound is reached.
func (w *world) settle(bound int64) {
	rested := int64(0)
	for w.report.Violation == nil {
		until := w.now + 5*sec
		for w.report.Violation == nil && w.next(until) {
		}
		if w.report.Violation != nil {
			return
		}
		rule, why, workload, node := w.unrest()
		switch {
		case why == "" && rested == 0:
			rested = w.now
			w.users.restEntries = len(w.log.entries)
		case why == "" && w.now-rested < 60*sec:
			w.users.restEntries = len(w.log.entries) // late messages, explanations and forgiveness are to come
		case why == "" && w.now-rested >= 90*sec:
			own := 0
			for _, e := range w.log.entries[w.users.restEntries:] {
				if len(e.cmds[0].GetHead().GetRequest()) == 0 {
					own++ // not a user's word that came late, or twice
				}
			}
			if own > 0 {
				w.violate("quiet", "", "", "%d entries were committed in the last 30 s of a world in which all is well, the last one %s",
					own, w.log.entries[len(w.log.entries)-1].cmds[0])
			}
			return
		case why == "":
		case w.now >= bound:
			w.violate(rule, workload, node, "%s, %s after the faults stopped", why, w.cfg.Settle)
			return
		default:
			rested = 0
		}
	}
}

// violate records the first broken promise; the run ends with it.
func (w *world) violate(rule, workload, node, format string, args ...any) {
	if w.report.Violation != nil {
		return
	}
	v := &Violation{Rule: rule, Workload: workload, Node: node, Detail: fmt.Sprintf(format, args...), At: time.Duration(w.now - start)}
	w.report.Violation = v
	w.tracef(workload, node, "VIOLATION of %s: %s", rule, v.Detail)
}

// tracef adds one line to the trace.
func (w *world) tracef(workload, node, format string, args ...any) {
	l := line{w.now, workload, node, fmt.Sprintf(format, args...)}
	fmt.Fprintf(w.hash, "%d %s %s %s\n", l.at, l.workload, l.node, l.text)
	if len(w.lines) >= 2*w.cfg.Keep {
		w.lines = slices.Clone(w.lines[w.cfg.Keep:])
	}
	w.lines = append(w.lines, l)
}

// Trace returns the last n lines about a workload, a node or the cluster as a whole. If
// workload and node are both empty, it returns the last n lines about anything.
func (r Report) Trace(workload, node string, n int) string {
	var out []string
	for _, l := range r.trace {
		about := workload == "" && node == "" || l.workload == "" && l.node == "" ||
			workload != "" && l.workload == workload || node != "" && l.node == node && l.workload == ""
		if about {
			out = append(out, fmt.Sprintf("%10.3f %-6s %-4s %s", float64(l.at-start)/float64(sec), l.workload, l.node, l.text))
		}
	}
	return strings.Join(out[max(0, len(out)-n):], "\n")
}

// String describes a run and its violation, with everything that is needed to repeat it.
func (r Report) String() string {
	if r.Violation == nil {
		return fmt.Sprintf("seed %d: %d events, %d entries, %s", r.Config.Seed, r.Events, r.Entries, r.Virtual)
	}
	v := r.Violation
	return fmt.Sprintf("seed %d (faults %s, sabotage %d, trouble %s) breaks %q at %s, workload %q, node %q: %s\n%s",
		r.Config.Seed, r.Config.Faults, r.Config.Sabotage, r.Config.Trouble, v.Rule, v.At, v.Workload, v.Node, v.Detail,
		r.Trace(v.Workload, v.Node, 60))
}

// Shrink looks for a smaller Config that breaks the same promise, with fewer kinds of faults
// and less time. It makes at most two dozen runs.
func Shrink(r Report) Report {
	if r.Violation == nil {
		return r
	}
	best := r
	try := func(cfg Config) {
		if again := Run(cfg); again.Violation != nil && again.Violation.Rule == best.Violation.Rule {
			best = again
		}
	}
	if r.Violation.At > 0 && r.Config.Trouble == 0 {
		cfg := best.Config
		cfg.Trouble = r.Violation.At + time.Second
		try(cfg)
	}
	for f := Fault(1); f < lastFault; f <<= 1 {
		if cfg := best.Config; cfg.Faults&f != 0 && cfg.Faults != f {
			cfg.Faults &^= f
			try(cfg)
		}
	}
	return best
}

func (w *world) has(f Fault) bool { return w.cfg.Faults&f != 0 }

// keys returns the keys of a map in order, so that no run depends on map order.
func keys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
