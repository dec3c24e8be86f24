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

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// Fault is a set of kinds of faults.
type Fault uint32

// The kinds of faults.
const (
	ReplicaCrash  Fault = 1 << iota // a scheduler dies and restarts from a snapshot
	ReplicaPause                    // a scheduler process is paused for some time
	ReplicaCut                      // a scheduler cannot reach the other schedulers
	LeaderChange                    // leadership moves to another scheduler, without any other fault
	AgentCrash                      // an agent dies, and its workloads keep running
	AgentPause                      // an agent is paused, and its workloads keep running
	PowerLoss                       // a machine loses power and comes back with its disk
	Reinstall                       // a machine fails and comes back with an empty disk under its old node id
	StateLoss                       // an agent's state file is lost, and its workloads keep running
	LinkCut                         // a node and some schedulers cannot reach each other, in one or both directions
	MessageLoss                     // messages are lost
	MessageDelay                    // messages arrive only after their deadline
	MessageDup                      // messages arrive twice
	InstanceCrash                   // a workload ends by itself
	BadSpec                         // some specifications never start, or fail to start sometimes
	Operator                        // operators cordon, drain, fence and remove nodes
	ModeChange                      // the mode of the control plane is frozen for some time
	ClockTrouble                    // clocks have an offset and run too fast or too slow
	FencedReturns                   // a machine that was fenced comes back with its disk
	lastFault
)

// Drift makes the leader compare the nodes with the state during the whole run. Once the cluster is at rest,
// it makes nodes differ from the state. It is not in AllFaults, so that it does not change the random choices
// of committed seeds.
const Drift Fault = 1 << 31

// StopTrouble makes stops fail: an agent refuses one, accepts it and forgets it, or its engine fails to stop
// the workload. It is not in AllFaults, so that it does not change the random choices of committed seeds.
const StopTrouble Fault = 1 << 30

// Fencers gives every node fencers, and every exclusive workload on_lost_lease: stop, so that the fencers
// stop it when the lease ends. It is not in AllFaults, so that it does not change the random choices of
// committed seeds.
const Fencers Fault = 1 << 29

// Rollouts makes users start rolling updates of group g again and again. It is not in AllFaults, so that it
// does not change the random choices of committed seeds.
const Rollouts Fault = 1 << 28

// DiskStalls makes the disk of a replica hang: any append to its log may take very long. One disk hangs at a
// time. It is not in AllFaults, so that it does not change the random choices of committed seeds.
const DiskStalls Fault = 1 << 27

// Crons adds crons that fire each minute, and makes the clocks of schedulers jump forward and back. It is not in
// AllFaults, so that it does not change the random choices of committed seeds.
const Crons Fault = 1 << 26

// NodeTrouble makes each workload fail on one machine, and on other machines for some time, for a cause of the
// machine. It is not in AllFaults, so that it does not change the random choices of committed seeds.
const NodeTrouble Fault = 1 << 25

// Placement gives workloads required rules about their place, and the namespace a node pool that users change. It is
// not in AllFaults, so that it does not change the random choices of committed seeds.
const Placement Fault = 1 << 23

// Rebalancing makes the leader move workloads to even out the load of the nodes. It is not in AllFaults, so that it
// does not change the random choices of committed seeds.
const Rebalancing Fault = 1 << 24

// Jobs makes users apply jobs, some of them exclusive, which end with exit codes. It is not in AllFaults, so that it does
// not change the random choices of committed seeds.
const Jobs Fault = 1 << 22

// Hiccups makes agents and leaders meet local troubles: writes to the state file fail, engines do not answer, drivers are
// replaced when the cluster becomes known, callers give up, and a leader misses changes of the state. Instances are also
// inspected one by one. It is not in AllFaults, so that it does not change the random choices of committed seeds.
const Hiccups Fault = 1 << 21

// Drains makes operators drain nodes that run jobs again and again, with deadlines for the jobs, and makes users change the
// priority of jobs. It is not in AllFaults, so that it does not change the random choices of committed seeds.
const Drains Fault = 1 << 20

var faultNames = []string{
	"ReplicaCrash", "ReplicaPause", "ReplicaCut", "LeaderChange", "AgentCrash", "AgentPause", "PowerLoss", "Reinstall",
	"StateLoss", "LinkCut", "MessageLoss", "MessageDelay", "MessageDup", "InstanceCrash", "BadSpec", "Operator",
	"ModeChange", "ClockTrouble", "FencedReturns",
}

// extraFaults are the kinds that are not in AllFaults.
var extraFaults = map[Fault]string{
	Drift: "Drift", StopTrouble: "StopTrouble", Fencers: "Fencers", Rollouts: "Rollouts", DiskStalls: "DiskStalls",
	Crons: "Crons", NodeTrouble: "NodeTrouble", Placement: "Placement", Rebalancing: "Rebalancing",
	Jobs: "Jobs", Hiccups: "Hiccups", Drains: "Drains",
}

// String returns the names of the kinds of faults in a set.
func (f Fault) String() string {
	var out []string
	for i, name := range faultNames {
		if f&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	for _, kind := range keys(extraFaults) {
		if f&kind != 0 {
			out = append(out, extraFaults[kind])
		}
	}
	return strings.Join(out, "|")
}

// parseFaults is the inverse of String. The texts "" and "AllFaults" stand for all kinds in AllFaults.
func parseFaults(text string) (f Fault, err error) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == '|' }) {
		i := slices.Index(faultNames, word)
		switch {
		case word == "AllFaults":
			f |= AllFaults
			continue
		case i >= 0:
			f |= 1 << i
			continue
		}
		known := false
		for kind, name := range extraFaults {
			if name == word {
				f, known = f|kind, true
			}
		}
		if !known {
			return 0, fmt.Errorf("%q is no kind of fault", word)
		}
	}
	return f, nil
}

// AllFaults are the kinds of faults that the design promises to survive, except the kinds whose comments say
// that they are not in AllFaults.
const AllFaults = lastFault - 1

// Sabotage switches off one safety mechanism, to test that the simulator finds the broken promises that
// follow.
type Sabotage uint8

// The safety mechanisms that can be switched off.
const (
	NoSabotage        Sabotage = iota
	NoEpochFence               // agents accept orders of any epoch
	NoGenerationFence          // agents accept orders of any generation
	NoTombstones               // agents forget which workloads were deleted
	NoLeaseConfirm             // leases are extended without a Confirm
	NoAwaitStop                // the planner ignores which nodes still run a workload
	NoReceipts                 // request ids are not written to the log
	ShortLeases                // the leader ends leases before the time that it told the agents
	AckBeforeCommit            // a user's call is acknowledged before it is committed
	SkipAnEntry                // one replica skips one command of the log
	NoDurableEpoch             // a restarted agent has forgotten the highest epoch that it has seen
	NoInstanceFence            // agents accept orders that are meant for another instance of their node
	NoStopRetry                // the planner orders a stop only once
	NoFencer                   // fencers do not stop workloads at the end of a lease
	AllAtOnce                  // updates of a group change more members at once than the user allowed
	ShortBound                 // a node registers a fence bound that is shorter than its fencers need
	AnswerBeforeStore          // agents answer an order before they store it
	UnnoticedStall             // a leader whose disk hangs goes on leading
	LateRunsDropped            // the planner creates no runs for times that came some seconds ago
	NoMoves                    // no workload leaves a node that cannot run it
	StaleMoves                 // moves that even out the load are found in an old state, and are made all the same
	AnyNode                    // the planner assigns workloads to any nodes that are up
	SuccessIgnored             // the planner orders jobs again that have reported success
	DeadlinesDropped           // drains have no deadline, so that they move running jobs at once
	JobsStay                   // drains never move running jobs
	AdviceToAll                // the operator takes each refused registration as the advice to fence the node
	ExitsForgotten             // an agent that starts removes the ended instances of jobs before it looks at them
)

// Config determines a run completely.
type Config struct {
	Seed     uint64
	Faults   Fault // kinds of faults in the run; 0 = AllFaults
	Sabotage Sabotage
	// Stress makes links lose, delay and repeat more messages than a bad network would.
	Stress bool
	// Trouble is the time for which faults are injected and users are active; 0 selects a random time from 60
	// s to 180 s.
	Trouble time.Duration
	// Settle is the time within which the cluster must come to rest after the faults; 0 means 25 min.
	Settle time.Duration
	// Check runs State.Check after every n-th log entry; 0 means every 8th.
	Check int
	// Keep is the number of trace lines that are kept; 0 means 4000.
	Keep int
}

// Violation is a broken promise.
type Violation struct {
	Rule     string // stable name of the broken promise
	Detail   string
	Workload string
	Node     string
	At       time.Duration // time since the start of the run
}

// Report is the result of a run.
type Report struct {
	Config    Config
	Violation *Violation
	Events    int
	Stalls    int // number of leaders that gave up leadership because their disk hung
	Moves     int // number of times that a workload left a node that could not run it
	Balanced  int // number of moves that evened out the load of the nodes
	Drifts    int // number of drifts that were recorded and closed again
	Runs      int // number of runs that crons created
	Jobs      int // number of jobs that ended
	Spared    int // number of jobs that succeeded on a draining node before the deadline of the drain
	Overdue   int // number of running jobs that a drain moved after its deadline
	Emptied   int // number of checks, in runs without faults, that no workload is left on a node after the deadline of its drain
	Advices   int // number of times that a machine was advised to have its node fenced
	Entries   int
	Virtual   time.Duration
	Hash      uint64 // hash of the whole trace
	trace     []line
}

type line struct {
	at             int64
	workload, node string
	text           string
}

// start is when every run begins, Unix nanoseconds.
const start = int64(1_792_889_820) * sec

type world struct {
	clock
	cfg    Config
	report Report
	calm   bool // faults and users have stopped
	hash   *xxhash.Digest
	lines  []line

	log         raftLog
	truth       fsm.State // the state after all committed entries
	oracle      oracle
	replicas    []*replica
	machines    []*machine
	users       users
	lastBalance fsm.View                   // state of the last search for moves, for StaleMoves
	balance     *commandv1.RebalancePolicy // the cluster's policy for moves by the leader; nil = none
	balancedAt  int64                      // virtual time of the last move that evened out the load
	preemptedAt int64                      // virtual time of the last preemption, which may come when its cool-down has ended

	loss   int // number of lost messages in a thousand
	delays int
	dups   int
}

// Run simulates one cluster as the Config says.
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
		if w.has(Crons) {
			w.suspendCrons(end + int64(cfg.Settle))
		}
		w.settle(w.now + int64(cfg.Settle))
		if w.report.Violation == nil && w.has(Drains) {
			w.lastDrains()
			w.settle(w.now + int64(cfg.Settle))
		}
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

// settle runs the cluster until it is at rest or the time limit bound is reached.
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
			// The number of log entries when the cluster came to rest. Late messages, explanations and
			// cleared failures may still add some.
			w.users.restEntries = len(w.log.entries)
		case why == "" && w.now-rested >= 90*sec:
			own := 0
			for _, e := range w.log.entries[w.users.restEntries:] {
				if len(e.cmds[0].GetHead().GetRequest()) == 0 {
					own++ // the entry is a new decision, not a late or repeated request of a user
				}
			}
			if own > 0 {
				w.violate("quiet", "", "", "%d entries were committed in the last 30 s, in which the cluster was at rest, the last one by %s",
					own, w.log.entries[len(w.log.entries)-1].cmds[0])
			}
			return
		case why == "":
		case w.now >= bound:
			w.violate(rule, workload, node, "%s, %s after the last fault", why, w.cfg.Settle)
			return
		default:
			rested = 0
		}
	}
}

// violate records the first broken promise, which ends the run.
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

// String describes a run and its violation, with everything that is needed to repeat the run.
func (r Report) String() string {
	if r.Violation == nil {
		return fmt.Sprintf("seed %d: %d events, %d entries, %s", r.Config.Seed, r.Events, r.Entries, r.Virtual)
	}
	v := r.Violation
	return fmt.Sprintf("seed %d (faults %s, sabotage %d, trouble %s) breaks %q at %s, workload %q, node %q: %s\n%s",
		r.Config.Seed, r.Config.Faults, r.Config.Sabotage, r.Config.Trouble, v.Rule, v.At, v.Workload, v.Node, v.Detail,
		r.Trace(v.Workload, v.Node, 60))
}

// Shrink searches for a smaller Config that breaks the same promise, with fewer kinds of faults and less
// time. It makes at most two dozen runs.
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

// keys returns the sorted keys of a map, so that no run depends on the iteration order of a map.
func keys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
