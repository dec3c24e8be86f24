package core

import (
	"cmp"
	"fmt"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Verb is an action on a workload.
type Verb uint8

// Values of Verb. Nothing and Wait need no driver. So they never are the Verb of an Act, which is an action
// that a driver carries out.
const (
	Nothing      Verb = iota
	Wait              // do nothing before the time decision.until
	Look              // ask the engine for the current state of the instance
	Ensure            // create, replace or start the instance
	Halt              // stop the instance and keep it
	Restart           // stop the instance, then ensure it: the same instance starts again
	Recreate          // remove the instance, then ensure it: a new instance is made
	Remove            // remove instances and volumes of a deleted workload
	RemoveFormer      // remove the instance of the workload's previous type
	Refresh           // change the files in memory of the running instance in place, and signal it
)

func (v Verb) String() string {
	return [...]string{"nothing", "wait", "look", "ensure", "halt", "restart", "recreate", "remove", "remove former", "refresh"}[v]
}

// starts reports whether the verb may start an instance of a workload whose desired state is
// running.
func (v Verb) starts() bool { return v == Ensure || v == Restart || v == Recreate }

// decision is the next action on a workload.
type decision struct {
	do    Verb
	until time.Time // end of the delay; set only for the verb Wait
	heals bool      // the verb is Restart, because the workload is unhealthy
}

// desired holds what decide needs of an Intent (the stored order) and of Workload.memory (what the core
// remembers without storing it).
type desired struct {
	running  bool
	content  string // content label that the instance must have
	deleting bool
	// recreate: a new order arrived before the delete of the workload was carried out, so the instance must be
	// replaced.
	recreate bool
	restart  bool
	// refresh: files that the running instance reads from memory (such as secrets) changed, and
	// must be replaced without a new instance.
	refresh bool
	// asked: an order arrived after the last attempt to start the workload. The workload is then started in
	// spite of the back-off, and in spite of a restart policy that keeps ended workloads stopped.
	asked bool
	// keepEnded: the restart policy keeps an ended workload stopped.
	keepEnded bool
	// waits: the workload is exclusive and was restored from the state file. The schedulers may have
	// placed it on another node, so it is not started until it is ordered again.
	waits bool
	// lapsed: the lease of this node has ended. The workload is stopped, and only a newer order
	// starts it.
	lapsed bool
	// over: the instance uses more disk than its limit, so the workload is kept stopped.
	over bool
	// unhealthy: the workload is unhealthy, and its order requires a restart of unhealthy workloads. The restart
	// does not happen before healAt.
	unhealthy bool
	healAt    time.Time
	// healing: the restart of an unhealthy workload has begun and not ended. It is continued, whatever the
	// restart policy says, because the agent itself stopped the workload.
	healing bool
	// former: the instance was made for another specification than the present one.
	former bool
}

// observation holds the fields of an engine's answer about one instance that decide needs.
type observation struct {
	state   workload.State // Absent if the engine does not list the instance
	content string         // content label of the instance; "" when unknown
	current bool           // the content is unknown, but the instance has the desired revision
	partly  bool           // a stack has failed, and some of its services run, or may run
}

// runs reports whether the instance, or a part of it, runs or may run.
func (o observation) runs() bool {
	switch o.state {
	case workload.Running, workload.Pending, workload.Unknown:
		return true
	}
	return o.state == workload.Failed && o.partly
}

// decide chooses the next action on one workload, from its order (rows) and the state of its instance
// (columns):
//
//	            Absent   Pending  Running  Stopped  Failed   Unknown
//	deleting    remove*  remove*  remove*  remove*  remove*  remove*
//	running     ensure*  –        –        ensure*  ensure*  –
//	restart     ensure*  restart* restart* ensure*  ensure*  –
//	refresh     ensure*  refresh* refresh* ensure*  ensure*  –
//	unhealthy   as running        restart^ as running
//	healing     as running        restart^ ensure*  ensure*  –
//	stopped     –        halt     halt     –        –!       halt
//
//	waits       –        –        as running  –  –       –
//	lapsed      –        halt     halt     –        –!       halt
//	over        –        halt     halt     –        –!       halt
//
// ! halt if other services of the failed stack run.
// * delayed by the back-off after failed actions (parameter f). If the desired state is running, an instance
// with other content is replaced, except in state Unknown. ^ delayed by a separate back-off (heal.go), because
// the restart itself succeeds and is not counted as a failure.
func decide(d desired, o observation, f Failure, now time.Time) decision {
	present := o.state != workload.Absent
	if d.deleting {
		// A delete is also carried out if the instance is absent, because volumes may remain. The back-off
		// after a failed delete applies even if a new order arrives. A delete is retried without limit.
		if now.Before(f.Next) {
			return decision{do: Wait, until: f.Next}
		}
		return decision{do: Remove}
	}
	if d.lapsed && d.running {
		if o.runs() {
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
		if o.runs() {
			return held(decision{do: Halt}, d, f, now)
		}
		return decision{}
	}
	if present && o.state != workload.Unknown && o.content != d.content && !o.current {
		return held(decision{do: Ensure}, d, f, now)
	}
	if d.over {
		if o.runs() {
			return decision{do: Halt}
		}
		return decision{}
	}
	switch o.state {
	case workload.Running, workload.Pending:
		if d.restart { // Pending includes a paused VM, which only a restart can resume
			return held(decision{do: Restart}, d, f, now)
		}
		if d.refresh {
			return held(decision{do: Refresh}, d, f, now)
		}
		if d.unhealthy && o.state == workload.Running {
			if now.Before(d.healAt) {
				return decision{do: Wait, until: d.healAt}
			}
			return decision{do: Restart, heals: true}
		}
		return decision{}
	case workload.Absent:
		return held(decision{do: Ensure}, d, f, now)
	case workload.Stopped, workload.Failed:
		// The restart policy applies to a workload that has ended, not to one whose start failed. A failed
		// start is retried.
		if d.keepEnded && f.Ended != "" && f.Attempts == 0 && !d.asked && !d.restart && !d.healing {
			return decision{}
		}
		return held(decision{do: Ensure}, d, f, now)
	}
	return decision{}
}

// held returns the action s, or Wait while the back-off after the failures in f lasts.
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

// Policy sets how often and when a failed action is retried (contract/semantics.md, section 6).
type Policy struct {
	Base   time.Duration // delay before the second attempt: 5 s; each retry doubles the delay
	Max    time.Duration // maximum delay: 2 min
	Limit  int           // maximum number of attempts if the workload itself is the cause of the failures: 3
	Stable time.Duration // run time after which failures are forgotten
	// Endless: the agent retries without limit, with a delay of at most Max, because there are no schedulers
	// that could move the workload.
	Endless bool
}

func (p Policy) delay(attempt int) time.Duration {
	d := p.Base
	for i := 1; i < attempt && d < p.Max; i++ {
		d *= 2
	}
	return min(d, p.Max)
}

// localMax bounds the delay before the next attempt if the failure has its cause on this machine, such as a
// taken port. The bound may be short, because such an attempt costs only one call of the engine.
const localMax = 15 * time.Second

// passing returns the delay before the next attempt, if the last attempts failed for a temporary reason of
// the given failure class.
func (p Policy) passing(class workload.Class, attempts int) time.Duration {
	switch class {
	case workload.PortBindConflict, workload.NameConflict, workload.StorageAttachFailed, workload.RuntimeResourceMissing, workload.ImageNotOnNode:
		return min(p.delay(attempts), localMax)
	}
	return p.delay(attempts)
}

// after adds one failed action to the failure record f of an intent. A delete is retried until it succeeds.
func (p Policy) after(f Failure, in *Intent, class workload.Class, message string, now time.Time) Failure {
	if in.Deleting {
		p.Endless = true
		f = p.failed(f, class, message, now)
		f.Next = now.Add(p.delay(min(f.Attempts, 10)))
		return f
	}
	return p.failed(f, class, message, now)
}

// failed adds one failed action, described by class and message, to the failure record f.
func (p Policy) failed(f Failure, class workload.Class, message string, now time.Time) Failure {
	f.Class, f.Message, f.At = class, message, now
	if f.OfNode++; !class.OfNode() {
		f.OfNode = 0
	}
	if class == workload.RuntimeUnhealthy {
		// The engine itself failed, so this does not count towards the maximum number of attempts of the
		// workload.
		f.Attempts, f.Next, f.Final = max(f.Attempts, 1), now.Add(p.Base), false
		return f
	}
	f.Attempts++
	switch cause := class.Cause(); {
	case cause == workload.Final:
		f.Next, f.Final = time.Time{}, true
	case cause == workload.Passing:
		f.Next, f.Final = now.Add(p.passing(class, f.Attempts)), false
	case f.Attempts < p.Limit:
		f.Next, f.Final = now.Add(p.delay(f.Attempts)), false
	case !p.Endless:
		f.Next, f.Final = time.Time{}, true
	default:
		f.Next, f.Final = now.Add(p.Max), true
	}
	return f
}

// mark returns a text that identifies one exit of an instance, so that the exit is counted only once.
func mark(o *workload.Observed) string {
	return fmt.Sprintf("%s/%d/%d", o.RuntimeID, o.FinishedAt.UnixNano(), o.RestartCount)
}

// settle updates the failure record f from the observed instance o. For a workload whose desired state is
// running, each exit and each failed start is counted once. Once the workload has run for the time
// Policy.Stable, its failures are forgotten.
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
		// If the engine reports no start time, assume that the workload has just started, and keep its
		// failures.
		if f.Attempts > 0 && !o.StartedAt.IsZero() && now.Sub(o.StartedAt) >= p.Stable {
			return Failure{}
		}
	case workload.Stopped, workload.Failed:
		if o.FinishedAt.IsZero() && o.State == workload.Stopped {
			return f // an instance that was created but not started has not failed
		}
		class, message := cmp.Or(o.Class, workload.RuntimeError), cmp.Or(o.Message, fmt.Sprintf("ended with exit code %d", o.ExitCode))
		if o.StartedAt.IsZero() && o.FinishedAt.IsZero() {
			// The instance never started, so this is a failed start and not an exit. Count the failed start
			// here, unless it was counted when the Act (the driver's action) failed.
			if d.asked || f.Attempts > 0 && (f.Final || !f.Next.IsZero()) {
				return f
			}
			return p.failed(f, class, message, now)
		}
		mark := mark(&o)
		if mark == f.Ended || mark == f.Stopped {
			return f
		}
		if d.asked && d.waits {
			return f // the agent restarted before it carried the order out, so an instance of an older order has ended
		}
		if d.asked || d.restart || d.healing || d.former {
			// The instance ended before the present order arrived, which starts it again, or the agent stopped
			// it for a restart, or for the present specification. So this end is no failure, and no success.
			f.Ended = mark
			return f
		}
		ran := o.FinishedAt.Sub(o.StartedAt)
		if d.keepEnded {
			f = Failure{Class: class, Message: message, At: now, Ended: mark, Final: o.State == workload.Failed}
			return f
		}
		if !o.StartedAt.IsZero() && ran >= p.Stable {
			f = Failure{} // the workload ran for at least Policy.Stable, so it is restarted without delay
			f.Ended = mark
			return f
		}
		f = p.failed(f, class, message, now)
		f.Ended = mark
	}
	return f
}
