package core

import (
	"cmp"
	"fmt"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Verb is one thing to do to a workload.
type Verb uint8

// The verbs. The core never asks the shell for Nothing or Wait.
const (
	Nothing      Verb = iota
	Wait              // nothing until a time
	Look              // ask the engine about it
	Ensure            // create, replace or start
	Halt              // stop, keep
	Restart           // stop, then ensure: the same instance again
	Recreate          // remove, then ensure: a new instance
	Remove            // carry out a delete: instances and volumes
	RemoveFormer      // remove the instance of a former type
)

func (v Verb) String() string {
	return [...]string{"nothing", "wait", "look", "ensure", "halt", "restart", "recreate", "remove", "remove former"}[v]
}

// starts reports whether the verb may start an instance of a workload that is to run.
func (v Verb) starts() bool { return v == Ensure || v == Restart || v == Recreate }

// decision is the next step for a workload.
type decision struct {
	do    Verb
	until time.Time // of Wait
}

// desired is the part of an intent, and of the memory of a workload, that decide needs.
type desired struct {
	running  bool
	content  string // content label of the instance
	deleting bool
	// recreate: the workload was ordered anew before its delete was carried out.
	recreate bool
	restart  bool
	// asked: an order came since the last attempt. It overrides the back-off, and a restart policy that
	// leaves ended workloads alone.
	asked bool
	// keepEnded: by its restart policy, an ended workload stays ended.
	keepEnded bool
	// waits: the workload is exclusive and known only from the file of a former process. The schedulers may
	// have placed it elsewhere meanwhile, so it is not started until they order it.
	waits bool
	// lapsed: the lease of the workload has ended. It is stopped, and only a newer order starts it.
	lapsed bool
	// over: the workload occupies more than its disk limit, and is kept stopped.
	over bool
}

// observation is the part of an engine's answer that decide needs.
type observation struct {
	state   workload.State // Absent when the engine does not list it
	content string         // "" when unknown
	current bool           // content is unknown but counts as the desired one
}

// decide chooses the next step for one workload:
//
//	            Absent   Pending  Running  Stopped  Failed   Unknown
//	deleting    remove*  remove*  remove*  remove*  remove*  remove*
//	running     ensure*  –        –        ensure*  ensure*  –
//	restart     ensure*  restart* restart* ensure*  ensure*  –
//	stopped     –        halt     halt     –        –        halt
//
//	waits       –        –        as running  –  –       –
//	lapsed      –        halt     halt     –        –        halt
//	over        –        halt     halt     –        –        halt
//
// * subject to the back-off of f. An instance with another content is replaced if the workload is to run,
// in every state but Unknown: an engine that cannot tell the state is left alone.
func decide(d desired, o observation, f Failure, now time.Time) decision {
	present := o.state != workload.Absent
	if d.deleting {
		// Also if the instance is absent: its volumes may still be there. A new order does not override the
		// back-off of a delete, and a delete is never given up.
		if now.Before(f.Next) {
			return decision{do: Wait, until: f.Next}
		}
		return decision{do: Remove}
	}
	if d.lapsed && d.running {
		switch o.state {
		case workload.Running, workload.Pending, workload.Unknown:
			return decision{do: Halt}
		}
		return decision{}
	}
	if d.waits && d.running && o.state != workload.Running {
		return decision{}
	}
	if d.recreate && present {
		return held(decision{do: Recreate}, d, f, now)
	}
	if !d.running {
		switch o.state {
		case workload.Running, workload.Pending, workload.Unknown:
			return held(decision{do: Halt}, d, f, now)
		}
		return decision{}
	}
	if present && o.state != workload.Unknown && o.content != d.content && !o.current {
		return held(decision{do: Ensure}, d, f, now)
	}
	if d.over {
		switch o.state {
		case workload.Running, workload.Pending, workload.Unknown:
			return decision{do: Halt}
		}
		return decision{}
	}
	switch o.state {
	case workload.Running, workload.Pending:
		if d.restart { // also for a guest that its hypervisor has paused: only a restart makes it run
			return held(decision{do: Restart}, d, f, now)
		}
		return decision{}
	case workload.Absent:
		return held(decision{do: Ensure}, d, f, now)
	case workload.Stopped, workload.Failed:
		// A start that failed is not an end: it is tried again.
		if d.keepEnded && f.Ended != "" && f.Attempts == 0 && !d.asked && !d.restart {
			return decision{}
		}
		return held(decision{do: Ensure}, d, f, now)
	}
	return decision{}
}

// held delays a decision by the back-off.
func held(s decision, d desired, f Failure, now time.Time) decision {
	switch {
	case d.asked || f.Attempts == 0:
		return s
	case f.Next.IsZero():
		return decision{}
	case now.Before(f.Next):
		return decision{do: Wait, until: f.Next}
	}
	return s
}

// Policy says how often and how long a failed step is tried again (contract/semantics.md, section 6).
type Policy struct {
	Base   time.Duration // before the second attempt: 5 s; doubled each time
	Max    time.Duration // 2 min
	Limit  int           // attempts, 3
	Stable time.Duration // a workload that ran this long is healthy again
	// Endless: no scheduler decides after the last attempt, so the agent goes on at the slow rate.
	Endless bool
}

func (p Policy) delay(attempt int) time.Duration {
	d := p.Base
	for i := 1; i < attempt && d < p.Max; i++ {
		d *= 2
	}
	return min(d, p.Max)
}

// lingers is how long an instance that was removed may still bind a port.
const lingers = 2 * time.Second

// after counts one failed step of an intent. A delete is tried until it succeeds. A port that could not be
// bound is tried again if another instance is ending on this machine, because that one may bind it.
func (p Policy) after(f Failure, in *Intent, class workload.Class, message string, ending bool, now time.Time) Failure {
	if in.Deleting {
		p.Endless = true
		f = p.failed(f, class, message, now)
		f.Next = now.Add(p.delay(min(f.Attempts, 10)))
		return f
	}
	if class == workload.PortBindConflict && ending {
		f = p.failed(f, workload.RuntimeUnhealthy, message, now)
		f.Class = class
		return f
	}
	return p.failed(f, class, message, now)
}

// failed counts one failed step of a class.
func (p Policy) failed(f Failure, class workload.Class, message string, now time.Time) Failure {
	f.Class, f.Message, f.At = class, message, now
	if class == workload.RuntimeUnhealthy {
		// The engine does not work, which is not the workload's fault: it costs no attempts.
		f.Attempts, f.Next, f.Final = max(f.Attempts, 1), now.Add(p.Base), false
		return f
	}
	f.Attempts++
	switch {
	case class.Permanent():
		f.Next, f.Final = time.Time{}, true
	case class.Transient() && f.Attempts < p.Limit:
		f.Next, f.Final = now.Add(p.delay(f.Attempts)), false
	case class.Transient() && !p.Endless:
		f.Next, f.Final = time.Time{}, true
	default:
		// Space, quota and credentials may be mended on the machine.
		f.Next, f.Final = now.Add(p.Max), true
	}
	return f
}

// settle brings the count of failures up to date with an observation. Each end of a workload that should
// run counts once, and so does each failed start. After Stable of running, the failures are forgotten.
func (p Policy) settle(d desired, o workload.Observed, f Failure, now time.Time) Failure {
	if d.deleting {
		return f
	}
	if !d.running {
		if o.State == workload.Stopped || o.State == workload.Absent {
			return Failure{}
		}
		return f
	}
	switch o.State {
	case workload.Running:
		// Without a start time the workload counts as just started.
		if f.Attempts > 0 && !o.StartedAt.IsZero() && now.Sub(o.StartedAt) >= p.Stable {
			return Failure{}
		}
	case workload.Stopped, workload.Failed:
		if o.FinishedAt.IsZero() && o.State == workload.Stopped {
			return f // created, not started yet
		}
		class, message := cmp.Or(o.Class, workload.RuntimeError), cmp.Or(o.Message, fmt.Sprintf("ended with exit code %d", o.ExitCode))
		if o.StartedAt.IsZero() && o.FinishedAt.IsZero() {
			// Its start failed, which is not an end. The failed act has counted it, unless the agent forgot that.
			if d.asked || f.Attempts > 0 && (f.Final || !f.Next.IsZero()) {
				return f
			}
			return p.failed(f, class, message, now)
		}
		mark := fmt.Sprintf("%s/%d/%d", o.RuntimeID, o.FinishedAt.UnixNano(), o.RestartCount)
		if mark == f.Ended {
			return f
		}
		if d.asked {
			f.Ended = mark // it ended before the order that is about to start it
			return f
		}
		ran := o.FinishedAt.Sub(o.StartedAt)
		if d.keepEnded {
			f = Failure{Class: class, Message: message, At: now, Ended: mark, Final: o.State == workload.Failed}
			return f
		}
		if !o.StartedAt.IsZero() && ran >= p.Stable {
			f = Failure{} // it ran for long: start it at once
			f.Ended = mark
			return f
		}
		f = p.failed(f, class, message, now)
		f.Ended = mark
	}
	return f
}
