package lease

import (
	"slices"
	"time"
)

// State is what one fencer knows. Set Settings, First and Lease before the first Step. A State is
// never changed in place: Step returns the next one.
type State struct {
	Settings
	// First: this fencer serves the agent. The second one only reads the file and waits.
	First bool
	Lease Lease

	unconfirmed lapse
	idleSince   time.Duration // since when nothing is to do and no agent lives; 0 = not
	looking     bool
	halting     []Workload
}

// Settings of a fencer.
type Settings struct {
	// Grace is what a workload gets to end by itself.
	Grace time.Duration
	// UntilIdle ends the fencer when its agent is dead and nothing is left to stop, after IdleFor.
	UntilIdle bool
	IdleFor   time.Duration
}

// lapse is one that an agent has to confirm, and since when this fencer has known it.
type lapse struct {
	agent  Process
	number uint64
	since  time.Duration
}

// Input is one thing that a fencer learns: Renewal of an agent, Tick, Looked, or Halted.
type Input interface{ input() }

// Tick is a look at the clock. For the second fencer the shell reads the file before it, if ReadsFile
// says so.
type Tick struct {
	// AgentAlive: the process Lease.Agent exists.
	AgentAlive bool
}

// Looked is the answer to Look: what is not known to be stopped. Failed: some engine did not answer.
type Looked struct {
	Look
	Running    []Workload
	Failed     bool
	AgentAlive bool
}

// Halted: one Halt has ended, with or without success.
type Halted struct{ Workload Workload }

func (Renewal) input() {}
func (Tick) input()    {}
func (Looked) input()  {}
func (Halted) input()  {}

// Effect is one thing that the shell does, in the order of the list.
type Effect interface{ effect() }

// Save replaces the file. If it fails and Required is set, the shell drops the new State, so that the
// first fencer holds nothing that the second cannot know.
type Save struct{ Required bool }

// Answer is for the agent that sent a Renewal.
type Answer struct{ Status Status }

// Lapse: the lease has ended.
type Lapse struct{}

// Kill kills the agent: it did not confirm the end of its lease in time.
type Kill struct{ Agent Process }

// Look asks the engines which of Of are not known to be stopped.
type Look struct {
	Cluster string
	Of      []Workload
	Lapses  uint64
	// Patience bounds the call.
	Patience time.Duration
}

// Halt stops a workload and gives it Grace to end by itself.
type Halt struct {
	Cluster  string
	Workload Workload
	Grace    time.Duration
}

// Stopped: everything that was to be stopped is known to be stopped.
type Stopped struct{ Workloads int }

// Exit ends the fencer: it is not needed any more.
type Exit struct{}

func (Save) effect()    {}
func (Answer) effect()  {}
func (Lapse) effect()   {}
func (Kill) effect()    {}
func (Look) effect()    {}
func (Halt) effect()    {}
func (Stopped) effect() {}
func (Exit) effect()    {}

// ReadsFile reports whether a second fencer has to read the file before its next Tick. The first
// fencer tells it nothing, and it needs the lease only when the deadline it knows has passed.
func (s State) ReadsFile(now time.Duration) bool {
	return !s.First && (now >= s.Lease.Deadline+SecondWaits || s.Lease.Idle() || s.Lease.Lapsed)
}

// Step applies one input at a time since the machine started.
func Step(s State, now time.Duration, in Input) (State, []Effect) {
	switch in := in.(type) {
	case Renewal:
		s.Lease.renew(in, now)
		l := s.Lease
		return s, []Effect{Save{Required: true}, Answer{Status{
			Deadline: l.Deadline, Lapses: l.Lapses, Lapsed: l.Lapsed, Grace: s.Grace, Guarded: slices.Clone(l.Guarded),
		}}}
	case Tick:
		return s.tick(now, in.AgentAlive)
	case Looked:
		return s.looked(now, in)
	case Halted:
		s.halting = slices.DeleteFunc(slices.Clone(s.halting), func(w Workload) bool { return w == in.Workload })
	}
	return s, nil
}

func (s State) tick(now time.Duration, agentAlive bool) (State, []Effect) {
	var out []Effect
	end := now
	if !s.First {
		end -= SecondWaits
	}
	if s.Lease.lapse(end) {
		out = append(out, Save{}, Lapse{})
	}
	l := s.Lease
	if l.Lapsed && !l.confirmed() {
		// An agent that has just started has its own time to confirm.
		if s.unconfirmed.agent != l.Agent || s.unconfirmed.number != l.Lapses {
			s.unconfirmed = lapse{l.Agent, l.Lapses, now}
		}
		if now-s.unconfirmed.since > KillAfter && agentAlive {
			out = append(out, Kill{l.Agent})
		}
	}
	if len(l.ToStop) > 0 && !s.looking {
		s.looking = true
		// A fencer that waits long for a slow engine does not stop workloads in time.
		patience := 10 * time.Second
		if now < l.Deadline+Bound(s.Grace) {
			patience = time.Second
		}
		out = append(out, Look{Cluster: l.Cluster, Of: slices.Clone(l.ToStop), Lapses: l.Lapses, Patience: patience})
	}
	if !s.UntilIdle || !l.Idle() || agentAlive {
		s.idleSince = 0
		return s, out
	}
	if s.idleSince == 0 {
		s.idleSince = now
	}
	if now-s.idleSince >= s.IdleFor {
		out = append(out, Exit{})
	}
	return s, out
}

// looked halts what runs. It forgets what is known to be stopped once the agent cannot start it any
// more: the agent has confirmed the lapse, or is dead.
func (s State) looked(now time.Duration, in Looked) (State, []Effect) {
	s.looking = false
	l := s.Lease
	if in.Failed {
		in.Running = in.Of // a workload that cannot be seen may run
	}
	var out []Effect
	for _, w := range in.Running {
		if slices.Contains(s.halting, w) || !slices.Contains(l.ToStop, w) {
			continue
		}
		s.halting = append(slices.Clone(s.halting), w)
		// Grace counts from the deadline: a fencer that comes late has no time left to give.
		grace := min(max(l.Deadline+s.Grace-now, 0), s.Grace)
		out = append(out, Halt{in.Cluster, w, grace})
	}
	if !in.Failed && len(in.Running) == 0 && l.Lapses == in.Lapses && slices.Equal(l.ToStop, in.Of) &&
		(l.confirmed() || !in.AgentAlive) && s.First {
		s.Lease.ToStop = nil
		out = append(out, Stopped{len(in.Of)}, Save{})
	}
	return s, out
}
