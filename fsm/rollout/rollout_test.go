package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	commandv1 "github.com/persys/compute/api/command/v1"
)

const second = int64(1e9)

// members returns the rollout record and the state that a text describes, such as "web-0:waiting,up
// web-1:updating,down web-2:updated,up": for each member its phase in the record, and its condition in the
// state. All times are second 100.
func members(text string) (*Rollout, Look) {
	r := &Rollout{
		Group: "web", Phase: Running, Policy: Policy{MaxParallel: 1, MinHealthy: 10 * second, Deadline: 60 * second, AutoRevert: true},
		Former: []*commandv1.WorkloadPut{{Id: "web-0"}}, FormerRan: true, ProgressAt: 100 * second,
	}
	seen := map[string]Seen{}
	for _, f := range strings.Fields(text) {
		id, rest, _ := strings.Cut(f, ":")
		have, is, _ := strings.Cut(rest, ",")
		m, s := Member{ID: id, Content: "new", TakenAt: 100 * second}, Seen{There: true, Content: "new", Since: 100 * second}
		switch have {
		case "waiting":
			m.Content, m.Put, m.TakenAt, s.Content = "old", &commandv1.WorkloadPut{Id: id, Content: "new"}, 0, "old"
		case "updated":
			m.Settled = true
		case "updating":
		default:
			panic(f)
		}
		switch is {
		case "up":
			s.Available = true
		case "down":
		case "stopped":
			s.Stopped = true
		case "given-up":
			s.GivenUp = "RetriesExhausted"
		case "gone":
			s = Seen{}
		case "other":
			s.Content, s.Available = "another", true
		default:
			panic(f)
		}
		r.Members = append(r.Members, m)
		seen[id] = s
	}
	return r, func(id string) Seen { return seen[id] }
}

// line formats a decision as one line of text.
func (d Decision) line() string {
	var out []string
	add := func(word string, ids []string) {
		if len(ids) > 0 {
			out = append(out, word+" "+strings.Join(ids, ","))
		}
	}
	add("settle", d.Settled)
	add("take", d.Take)
	if d.Complete {
		out = append(out, "complete")
	}
	if d.Failure != "" {
		out = append(out, "fail: "+d.Failure)
	}
	if d.Revert {
		out = append(out, "revert")
	}
	if d.Idle() {
		out = append(out, fmt.Sprintf("wait until %d for %s", d.WakeAt/second, d.Waits))
	}
	return strings.Join(out, "; ")
}

func TestNextStepOfAnUpdate(t *testing.T) {
	for _, c := range []struct {
		name, group string
		at          int64 // seconds
		want        string
	}{
		{"the first member is updated first", "a:waiting,up b:waiting,up", 100, "take a"},
		{"a member that is down is updated first", "a:waiting,up b:waiting,down", 100, "take b"},
		{"no other member is updated while one is updating", "a:waiting,up b:updating,down", 101, "wait until 160 for b to be healthy for 10 s"},
		{"a running member has not settled yet", "a:waiting,up b:updating,up", 109, "wait until 110 for b to be healthy for 10 s"},
		{"a member settles after the minimum healthy time", "a:waiting,up b:updating,up", 110, "settle b; take a"},
		{"a settled member that is down holds up the rollout", "a:waiting,up b:updated,down", 101, "wait until 160 for b to be available again: at most 1 may be missing"},
		{"a settled member is down beyond the deadline", "a:waiting,up b:updated,down", 160,
			"fail: waited too long for b to be available again: at most 1 may be missing; revert"},
		{"changed and deleted members do not hold up the rollout", "a:waiting,up b:waiting,other c:waiting,gone", 160, "take a"},
		{"the rollout completes with the last member", "a:updated,up b:updating,up", 110, "settle b; complete"},
		{"a rollout completes when all are updated and one is down", "a:updated,up b:updated,down", 110, "complete"},
		{"a member misses its deadline", "a:waiting,up b:updating,down", 160, "fail: b was not healthy for 10 s within 60 s; revert"},
		{"the retries of a member are exhausted", "a:waiting,up b:updating,given-up", 101, "fail: b was given up: RetriesExhausted; revert"},
		{"stopped members are updated at once", "a:waiting,stopped b:waiting,stopped c:waiting,up", 100, "take a,b,c"},
		{"stopped members do not hold up the rollout", "a:updating,stopped b:updated,up", 100, "complete"},
		{"a member that a caller changed is skipped", "a:waiting,other b:updated,up", 100, "complete"},
		{"a deleted member is skipped", "a:waiting,gone b:updating,gone", 100, "complete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, look := members(c.group)
			if got := r.Next(look, c.at*second).line(); got != c.want {
				t.Errorf("Next decides\n     %s\nwant %s", got, c.want)
			}
			r.Phase = Paused
			if d := r.Next(look, c.at*second); !d.Idle() || d.WakeAt != 0 {
				t.Errorf("a paused update must propose nothing, but the decision is %s", d.line())
			}
		})
	}
}

func TestNextTakesAsManyAsMaxParallel(t *testing.T) {
	r, look := members("a:waiting,up b:waiting,up c:waiting,up d:waiting,down")
	for n, want := range map[int]string{1: "take d", 2: "take d,a", 3: "take d,a,b", 9: "take d,a,b,c"} {
		r.Policy.MaxParallel = n
		if got := r.Next(look, 100*second).line(); got != want {
			t.Errorf("with MaxParallel %d the decision is %s, want %s", n, got, want)
		}
	}
}

func TestFailedUpdateRevertsIfItCan(t *testing.T) {
	for name, change := range map[string]func(*Rollout){
		"auto_revert is off":                       func(r *Rollout) { r.Policy.AutoRevert = false },
		"no former member was available":           func(r *Rollout) { r.FormerRan = false },
		"the former specifications are not stored": func(r *Rollout) { r.Former = nil },
		"the update is a revert":                   func(r *Rollout) { r.Reverting = true },
		"a failed update reverts":                  nil,
	} {
		r, look := members("a:updating,given-up")
		if change != nil {
			change(r)
		}
		if d := r.Next(look, 101*second); d.Failure == "" || d.Revert != (change == nil) {
			t.Errorf("%s: Next decides %s", name, d.line())
		}
	}
}

func TestHoldsKeepsAvailableMembers(t *testing.T) {
	r, look := members("a:updating,down b:waiting,up c:updated,up")
	if !r.Holds(look, "b") || !r.Holds(look, "c") || r.Holds(look, "a") {
		t.Error("a running member must be held while another member is down, and the member that is down must not")
	}
	if r.Policy.MaxParallel = 2; r.Holds(look, "c") {
		t.Error("Holds must return false while fewer than MaxParallel members are unavailable")
	}
	if r.Policy.MaxParallel, r.Phase = 1, Paused; r.Holds(look, "c") {
		t.Error("Holds must return false for a paused update")
	}
}

// TestUpdateKeepsItsBoundAndEnds applies random events to the members and checks:
// - a rollout makes at most MaxParallel members unavailable;
// - Allows permits the decisions of Next, and no decision that breaks this bound;
// - the rollout ends once the events end.
func TestUpdateKeepsItsBoundAndEnds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, now := rapid.IntRange(1, 6).Draw(rt, "members"), 100*second
		r := &Rollout{Group: "web", Phase: Running, ProgressAt: now, Policy: Policy{
			MaxParallel: rapid.IntRange(1, 3).Draw(rt, "parallel"), MinHealthy: 10 * second, Deadline: 60 * second,
		}}
		seen := map[string]*Seen{}
		var ids []string
		for i := range n {
			id := fmt.Sprint("web-", i)
			ids = append(ids, id)
			r.Members = append(r.Members, Member{ID: id, Content: "old", Put: &commandv1.WorkloadPut{Id: id, Content: "new"}})
			seen[id] = &Seen{There: true, Content: "old", Available: true, Since: now}
		}
		look := func(id string) Seen { return *seen[id] }
		missed := func() (out int) {
			for _, s := range seen {
				if s.There && !s.Stopped && !s.Available {
					out++
				}
			}
			return out
		}
		step := func() {
			d := r.Next(look, now)
			for i := range r.Members {
				if m := &r.Members[i]; slices.Contains(d.Settled, m.ID) {
					m.Settled, r.ProgressAt = true, now
				}
			}
			if why := r.Allows(look, d.Take); why != "" {
				rt.Fatalf("Allows must permit what Next proposed (%s), but refused: %s", d.line(), why)
			}
			if all := ids; r.Policy.MaxParallel < n && len(r.count(look).ready) == n && r.Allows(look, all) == "" {
				rt.Fatal("Allows must refuse a change of all members at once")
			}
			before := missed()
			for i := range r.Members {
				if m := &r.Members[i]; slices.Contains(d.Take, m.ID) {
					m.Content, m.Put, m.TakenAt, m.Settled, r.ProgressAt = "new", nil, now, seen[m.ID].Stopped, now
					seen[m.ID].Content, seen[m.ID].Available, seen[m.ID].Since = "new", false, now
				}
			}
			if got := missed(); got > max(before, r.Policy.MaxParallel) {
				rt.Fatalf("after decision %s %d members are unavailable, before it %d: more than MaxParallel", d.line(), got, before)
			}
			if d.Complete {
				r.Phase = Completed
			} else if d.Failure != "" {
				r.Phase, r.Reason = Paused, d.Failure
			}
		}
		for range rapid.IntRange(0, 40).Draw(rt, "events") {
			now += int64(rapid.IntRange(0, 15).Draw(rt, "later")) * second
			s := seen[rapid.SampledFrom(ids).Draw(rt, "member")]
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				s.Available, s.Since = false, now
			case 1:
				s.Stopped, s.Available, s.Since = true, false, now
			case 2:
				s.Stopped, s.Since = false, now
			case 3:
				s.There = rapid.IntRange(0, 3).Draw(rt, "gone") > 0 && s.There
			case 4:
				s.Content, s.Since = "another", now
			default:
				if s.There && !s.Stopped && !s.Available {
					s.Available, s.Since = true, now
				}
			}
			step()
		}
		for range 3*n + 3 {
			for _, s := range seen {
				if s.There && !s.Stopped && !s.Available {
					s.Available, s.Since = true, now
				}
			}
			step()
			now += 10 * second
		}
		if r.Phase == Running {
			rt.Fatalf("the rollout must have ended, but has members %+v and next decision %s", r.Members, r.Next(look, now).line())
		}
		for _, m := range r.Members {
			if s := look(m.ID); r.Phase == Completed && s.There && s.Content == "old" {
				rt.Fatalf("the rollout is completed, but member %s still has the old content", m.ID)
			}
		}
	})
}
