package core

import (
	"cmp"
	"fmt"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Verb is an action on a workload.
type Verb uint8

// The verbs. The core never asks the shell for Nothing or Wait.
const (
	Nothing      Verb = iota
	Wait              // do nothing until a given time
	Look              // ask the engine for its state
	Ensure            // create, replace or start
	Halt              // stop the instance and keep it
	Restart           // stop, then ensure: restarts the same instance
	Recreate          // remove, then ensure: a new instance
	Remove            // remove instances and volumes of a deleted workload
	RemoveFormer      // remove the instance of the workload's previous type
)

func (v Verb) String() string {
	return [...]string{"nothing", "wait", "look", "ensure", "halt", "restart", "recreate", "remove", "remove former"}[v]
}

// starts reports whether the verb may start an instance of a workload whose desired state is
// running.
func (v Verb) starts() bool { return v == Ensure || v == Restart || v == Recreate }

// decision is the next step for a workload.
type decision struct {
	do    Verb
	until time.Time // set for Wait
}

// desired holds the fields of an intent and of the workload's memory that decide needs.
type desired struct {
	running  bool
	content  string // content label of the instance
	deleting bool
	// recreate: the workload was applied again before its delete was carried out.
	recreate bool
	restart  bool
	// asked: an order arrived after the last attempt. It overrides the back-off and a restart policy
	// that keeps ended workloads stopped.
	asked bool
	// keepEnded: the restart policy keeps an ended workload stopped.
	keepEnded bool
	// waits: the workload is exclusive and was restored from the state file. The schedulers may have
	// placed it on another node, so it is not started until it is ordered again.
	waits bool
	// lapsed: the lease of the workload has ended. The workload is stopped, and only a newer order
	// starts it.
	lapsed bool
	// over: the workload exceeds its disk limit and is kept stopped.
	over bool
}

// observation holds the fields of an engine's answer that decide needs.
type observation struct {
	state   workload.State // Absent when the engine does not list it
	content string         // "" when unknown
	current bool           // content is unknown, but the revision is the desired one
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
// * subject to the back-off of f. If the desired state is running, an instance with other content is
// replaced, except in state Unknown.
func decide(d desired, o observation, f Failure, now time.Time) decision {
	present := o.state != workload.Absent
	if d.deleting {
		// A delete is also carried out if the instance is absent, because volumes may remain. A new
		// order does not override the back-off of a delete. A delete is retried without limit.
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
		if d.restart { // Pending includes a paused VM, which only a restart can resume
			return held(decision{do: Restart}, d, f, now)
		}
		return decision{}
	case workload.Absent:
		return held(decision{do: Ensure}, d, f, now)
	case workload.Stopped, workload.Failed:
		// A failed start is not an end, so it is retried.
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

// Policy sets how often and when a failed step is retried (contract/semantics.md, section 6).
type Policy struct {
	Base   time.Duration // delay before the second attempt: 5 s; doubled on each retry
	Max    time.Duration // maximum delay: 2 min
	Limit  int           // attempts, 3
	Stable time.Duration // run time after which failures are forgotten
	// Endless: the agent retries at the Max interval after the last attempt, because no scheduler
	// decides.
	Endless bool
}

func (p Policy) delay(attempt int) time.Duration {
	d := p.Base
	for i := 1; i < attempt && d < p.Max; i++ {
		d *= 2
	}
	return min(d, p.Max)
}

// lingers is how long a removed instance may still hold a port.
const lingers = 2 * time.Second

// after counts a failed step of an intent. A delete is retried until it succeeds. A port conflict is
// retried while another instance on this machine is ending, because that instance may hold the port.
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

// failed counts a failed step of a class.
func (p Policy) failed(f Failure, class workload.Class, message string, now time.Time) Failure {
	f.Class, f.Message, f.At = class, message, now
	if class == workload.RuntimeUnhealthy {
		// An engine failure does not use up the attempts of the workload.
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
		// Missing space, quota and credentials may be fixed on the machine.
		f.Next, f.Final = now.Add(p.Max), true
	}
	return f
}

// settle updates the failure count from an observation. Each end of a workload whose desired state
// is running counts once, and so does each failed start. Failures are forgotten after the workload
// ran for Stable.
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
		// A workload without a start time counts as just started.
		if f.Attempts > 0 && !o.StartedAt.IsZero() && now.Sub(o.StartedAt) >= p.Stable {
			return Failure{}
		}
	case workload.Stopped, workload.Failed:
		if o.FinishedAt.IsZero() && o.State == workload.Stopped {
			return f // created, not started yet
		}
		class, message := cmp.Or(o.Class, workload.RuntimeError), cmp.Or(o.Message, fmt.Sprintf("ended with exit code %d", o.ExitCode))
		if o.StartedAt.IsZero() && o.FinishedAt.IsZero() {
			// A failed start is not an end. The failed Act has counted it already, unless the count
			// was lost.
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
			f.Ended = mark // the instance ended before the order that will start it
			return f
		}
		ran := o.FinishedAt.Sub(o.StartedAt)
		if d.keepEnded {
			f = Failure{Class: class, Message: message, At: now, Ended: mark, Final: o.State == workload.Failed}
			return f
		}
		if !o.StartedAt.IsZero() && ran >= p.Stable {
			f = Failure{} // the workload ran for Stable: restart it without delay
			f.Ended = mark
			return f
		}
		f = p.failed(f, class, message, now)
		f.Ended = mark
	}
	return f
}
