package agent

import (
	"cmp"
	"fmt"
	"iter"
	"time"

	"github.com/persys/compute/agent/driver"
)

// verb is one thing to do to a workload.
type verb uint8

const (
	doNothing  verb = iota
	doWait          // nothing until a time
	doEnsure        // create, replace or start
	doHalt          // stop, keep
	doRestart       // stop, then Ensure: the same instance again
	doRecreate      // remove, then Ensure: a new instance
	doRemove        // remove for good
)

func (v verb) String() string {
	return [...]string{"nothing", "wait", "ensure", "halt", "restart", "recreate", "remove"}[v]
}

// step is a decision.
type step struct {
	do    verb
	until time.Time // for doWait
}

// desired is what decide looks at of an intent.
type desired struct {
	running  bool
	content  string // as engines know it
	deleting bool
	// recreate: it was deleted and ordered anew before the delete was carried out.
	recreate bool
	restart  bool
	// asked: an order came since the last attempt. It overrides the back-off and a policy that
	// leaves ended workloads alone.
	asked bool
	// keepEnded: the spec says that a workload that ended is not to be started again by itself.
	keepEnded bool
	// waits: exclusive, and known only from the file of a former process. Meanwhile the schedulers
	// may have placed it elsewhere, so nothing but what runs already is touched until they order it.
	waits bool
	// lapsed: the lease under which it ran has ended. It is stopped, and started by a newer order only.
	lapsed bool
	// over: it occupies more than its disk limit, and is kept stopped.
	over bool
}

// observation is what decide looks at of an engine's answer.
type observation struct {
	state   driver.State // Absent when the engine does not list it
	content string       // "" when unknown
	current bool         // content is unknown but counts as the desired one
}

// failure is the local memory of what went wrong; zero means nothing did.
type failure struct {
	Class    driver.Class `json:"class,omitempty"`
	Message  string       `json:"message,omitempty"`
	Attempts int          `json:"attempts,omitempty"`
	At       time.Time    `json:"at,omitzero"`
	// Next is when to try again; zero with Attempts > 0 means never: the schedulers decide.
	Next time.Time `json:"next,omitzero"`
	// Final: reported as Failed. Until then the workload is Pending.
	Final bool `json:"final,omitempty"`
	// Ended marks the end of an instance that is already counted.
	Ended string `json:"ended,omitempty"`
}

// decide is the whole of convergence: the next step for one workload.
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
// * subject to the back-off of f. Another content is replaced in every state that is to run; an
// Unknown one is left alone because an engine that cannot tell should not be told either.
func decide(d desired, o observation, f failure, now time.Time) step {
	present := o.state != driver.Absent
	if d.deleting {
		// Also when absent: Remove is idempotent, and volumes may outlive the instance. Nothing overrides the
		// back-off, and nothing ends a delete: it is never given up.
		if now.Before(f.Next) {
			return step{do: doWait, until: f.Next}
		}
		return step{do: doRemove}
	}
	if d.lapsed && d.running {
		switch o.state {
		case driver.Running, driver.Pending, driver.Unknown:
			return step{do: doHalt}
		}
		return step{}
	}
	if d.waits && d.running && o.state != driver.Running {
		return step{}
	}
	if d.recreate && present {
		return held(step{do: doRecreate}, d, f, now)
	}
	if !d.running {
		switch o.state {
		case driver.Running, driver.Pending, driver.Unknown:
			return held(step{do: doHalt}, d, f, now)
		}
		return step{}
	}
	if present && o.state != driver.Unknown && o.content != d.content && !o.current {
		return held(step{do: doEnsure}, d, f, now)
	}
	if d.over {
		switch o.state {
		case driver.Running, driver.Pending, driver.Unknown:
			return step{do: doHalt}
		}
		return step{}
	}
	switch o.state {
	case driver.Running, driver.Pending:
		if d.restart { // also of a guest that its hypervisor has paused: nothing else gets it going
			return held(step{do: doRestart}, d, f, now)
		}
		return step{}
	case driver.Absent:
		return held(step{do: doEnsure}, d, f, now)
	case driver.Stopped, driver.Failed:
		// A start that failed is another thing than an end: it is tried again.
		if d.keepEnded && f.Ended != "" && f.Attempts == 0 && !d.asked && !d.restart {
			return step{}
		}
		return held(step{do: doEnsure}, d, f, now)
	}
	return step{}
}

// held delays a step by the back-off.
func held(s step, d desired, f failure, now time.Time) step {
	switch {
	case d.asked || f.Attempts == 0:
		return s
	case f.Next.IsZero():
		return step{}
	case now.Before(f.Next):
		return step{do: doWait, until: f.Next}
	}
	return s
}

// retryPolicy is how often and how long (contract/semantics.md, section 6).
type retryPolicy struct {
	base   time.Duration // 5 s
	max    time.Duration // 2 min
	limit  int           // attempts, 3
	stable time.Duration // a workload that ran this long is healthy again
	// endless: nobody above decides further, so go on at the slow rate.
	endless bool
}

func (p retryPolicy) delay(attempt int) time.Duration {
	d := p.base
	for i := 1; i < attempt && d < p.max; i++ {
		d *= 2
	}
	return min(d, p.max)
}

// lingers is for how long what has been removed may be what a port was found bound by.
const lingers = 2 * time.Second

// after counts one failed step of an intent. Nothing but success ends a delete. A port that could not be
// bound while something was ending on this machine is tried again: that may have bound it.
func (p retryPolicy) after(f failure, in *intent, err error, ending bool, now time.Time) failure {
	class := driver.ClassOf(err)
	if in.Deleting {
		p.endless = true
		f = p.failed(f, class, err.Error(), now)
		f.Next = now.Add(p.delay(min(f.Attempts, 10)))
		return f
	}
	if class == driver.PortBindConflict && ending {
		f = p.failed(f, driver.RuntimeUnhealthy, err.Error(), now)
		f.Class = class
		return f
	}
	return p.failed(f, class, err.Error(), now)
}

// ending reports whether something is being removed from this machine, or was a moment ago, or is to be
// stopped or made anew and is not yet. Of all that an agent was ordered, works says what the engines show (nil: nothing).
func ending(tombs map[string]*tombstone, works iter.Seq2[*intent, *driver.Observed], now time.Time) bool {
	for _, t := range tombs {
		if !t.Done || now.Sub(t.DeletedAt) < lingers {
			return true
		}
	}
	for in, o := range works {
		if len(in.PreviousTypes) > 0 {
			return true
		}
		if o := in.observed(o); (in.Recreate || !in.running()) && (o.state == driver.Running || o.state == driver.Pending) {
			return true
		}
	}
	return false
}

// failed counts one failed step of a class.
func (p retryPolicy) failed(f failure, class driver.Class, message string, now time.Time) failure {
	f.Class, f.Message, f.At = class, message, now
	if class == driver.RuntimeUnhealthy {
		// The engine's trouble is not the workload's: it does not use up attempts.
		f.Attempts, f.Next, f.Final = max(f.Attempts, 1), now.Add(p.base), false
		return f
	}
	f.Attempts++
	switch {
	case class.Permanent():
		f.Next, f.Final = time.Time{}, true
	case class.Transient() && f.Attempts < p.limit:
		f.Next, f.Final = now.Add(p.delay(f.Attempts)), false
	case class.Transient() && !p.endless:
		f.Next, f.Final = time.Time{}, true
	default:
		// Space, quota, credentials: somebody may mend it on the machine.
		f.Next, f.Final = now.Add(p.max), true
	}
	return f
}

// settle brings the memory of failures up to date with an observation: a workload that should run
// and ended counts once for each end, one whose start failed as that start, and one that has run for a while
// is forgiven.
func (p retryPolicy) settle(d desired, o driver.Observed, f failure, now time.Time) failure {
	if d.deleting {
		return f
	}
	if !d.running {
		if o.State == driver.Stopped || o.State == driver.Absent {
			return failure{}
		}
		return f
	}
	switch o.State {
	case driver.Running:
		// Without a start time it counts as just started, until it has one.
		if f.Attempts > 0 && !o.StartedAt.IsZero() && now.Sub(o.StartedAt) >= p.stable {
			return failure{}
		}
	case driver.Stopped, driver.Failed:
		if o.FinishedAt.IsZero() && o.State == driver.Stopped {
			return f // created, not started yet
		}
		class, message := cmp.Or(o.Class, driver.RuntimeError), cmp.Or(o.Message, fmt.Sprintf("ended with exit code %d", o.ExitCode))
		if o.StartedAt.IsZero() && o.FinishedAt.IsZero() {
			// Its start failed, which is no end. The step that tried has counted it, unless that is forgotten.
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
			f = failure{Class: class, Message: message, At: now, Ended: mark, Final: o.State == driver.Failed}
			return f
		}
		if !o.StartedAt.IsZero() && ran >= p.stable {
			f = failure{} // an old, healthy run: start over, and at once
			f.Ended = mark
			return f
		}
		f = p.failed(f, class, message, now)
		f.Ended = mark
	}
	return f
}
