package lease

import (
	"slices"
	"time"
)

// State is the state of one fencer. Set Settings, First and Lease before the first Step. A State is
// never changed in place: Step returns the next one.
type State struct {
	Settings
	// First is set if this fencer serves the agent. The second fencer only reads the lease file, and takes over if the
	// first one ends.
	First bool
	Lease Lease

	unconfirmed lapse
	idleSince   time.Duration // time at which the fencer became idle: its agent is dead and it has no workload to stop; 0 while the fencer is needed
	looking     bool
	halting     []Workload
}

// Settings of a fencer.
type Settings struct {
	// Grace is how long a workload may take to stop before it is killed.
	Grace time.Duration
	// UntilIdle: the fencer ends when its agent is dead and no workload has to be stopped, now or later, and
	// both have been so for the time IdleFor.
	UntilIdle bool
	IdleFor   time.Duration
}

// lapse is one end of a lease that an agent has to confirm, and the time at which this fencer learned of it.
type lapse struct {
	agent  Process
	number uint64
	since  time.Duration
}

// Input is an event for a fencer: the Renewal of an agent, Tick, Looked, or Halted.
type Input interface{ input() }

// Tick is a periodic check of the clock. If State.ReadsFile returns true, the caller of Step reads the
// lease file before the Tick.
type Tick struct {
	// AgentAlive: the process Lease.Agent exists.
	AgentAlive bool
}

// Looked is the answer to Look, the action that asks the engines which workloads run. Running are the workloads
// that run, or whose state is unknown. Failed: an engine did not answer.
type Looked struct {
	Look
	Running    []Workload
	Failed     bool
	AgentAlive bool
}

// Halted: the effect Halt for a workload has ended, with or without success.
type Halted struct{ Workload Workload }

func (Renewal) input() {}
func (Tick) input()    {}
func (Looked) input()  {}
func (Halted) input()  {}

// Effect is an action that the caller of Step (package fencer or the simulator) carries out. It carries the
// effects out in the order in which Step returned them.
type Effect interface{ effect() }

// Save replaces the lease file. If it fails and Required is set, the caller of Step drops the new State, so
// that the first fencer never relies on a lease that the second fencer cannot read.
type Save struct{ Required bool }

// Answer is the reply to the agent that sent a Renewal.
type Answer struct{ Status Status }

// Lapse reports that the lease has ended.
type Lapse struct{}

// Kill kills the agent: it did not confirm the end of its lease in time.
type Kill struct{ Agent Process }

// Look asks the engines which workloads in Of run, or may run because their state is unknown.
type Look struct {
	Cluster string
	Of      []Workload
	Lapses  uint64
	// Patience is the time limit of the call to the engines.
	Patience time.Duration
}

// Halt stops a workload. The workload has the time Grace to stop by itself, then it is killed.
type Halt struct {
	Cluster  string
	Workload Workload
	Grace    time.Duration
}

// Stopped reports that all workloads of the ended lease are stopped, as the engines have confirmed.
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

// ReadsFile reports whether a second fencer has to read the lease file before its next Tick. The file is its
// only source, because the first fencer sends it no messages. It reads the file only once the deadline that
// it read last has passed, because the first fencer may have extended the lease since.
func (s State) ReadsFile(now time.Duration) bool {
	return !s.First && (now >= s.Lease.Deadline+SecondWaits || s.Lease.Idle() || s.Lease.Lapsed)
}

// Step applies one input. now is the time since the machine started.
func Step(s State, now time.Duration, in Input) (State, []Effect) {
	switch in := in.(type) {
	case Renewal:
		s.Lease.renew(in, now)
		l := s.Lease
		return s, []Effect{Save{Required: true}, Answer{Status{
			Deadline: l.Deadline, Lapses: l.Lapses, Lapsed: l.Lapsed, Grace: s.Grace, Leased: slices.Clone(l.Leased),
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
		// This is a lapse (the end of a lease) or an agent process that this fencer has not seen before. So
		// the time within which the agent must confirm starts now.
		if s.unconfirmed.agent != l.Agent || s.unconfirmed.number != l.Lapses {
			s.unconfirmed = lapse{l.Agent, l.Lapses, now}
		}
		if now-s.unconfirmed.since > KillAfter && agentAlive {
			out = append(out, Kill{l.Agent})
		}
	}
	if len(l.ToStop) > 0 && !s.looking {
		s.looking = true
		// Until Bound has passed since the deadline, wait only briefly for a slow engine, so that the workloads of other engines are stopped in time.
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

// looked halts the workloads that still run. It drops a stopped workload from the list once the agent cannot
// start it any more, because the agent has confirmed the end of the lease or is dead.
func (s State) looked(now time.Duration, in Looked) (State, []Effect) {
	s.looking = false
	l := s.Lease
	if in.Failed {
		in.Running = in.Of // count a workload as running if its state cannot be read
	}
	var out []Effect
	for _, w := range in.Running {
		if slices.Contains(s.halting, w) || !slices.Contains(l.ToStop, w) {
			continue
		}
		s.halting = append(slices.Clone(s.halting), w)
		// The grace is counted from the deadline. If a fencer starts after the deadline, it gives a workload
		// only the remaining time.
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
