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
// state. All times in the record are second 100.
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
		case "surge": // a surge member that was made
			m.Surge = true
		case "surged": // a surge member that has settled
			m.Surge, m.Settled = true, true
		case "extra": // a surge member that does not exist yet
			m.Content, m.Put, m.TakenAt, m.Surge, s = "", &commandv1.WorkloadPut{Id: id, Content: "new"}, 0, true, Seen{}
		default:
			panic(f)
		}
		if strings.HasSuffix(is, "!") { // a canary
			m.Canary, is = true, strings.TrimSuffix(is, "!")
			r.Policy.Canary++
		}
		r.Policy.StartFirst = r.Policy.StartFirst || m.Surge
		switch is {
		case "up":
			s.Available = true
		case "down":
		case "none":
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
	if d.Await {
		out = append(out, "await")
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
		{"a settled member that is down beyond the deadline fails the update", "a:waiting,up b:updated,down", 160,
			"fail: waited too long for b to be available again: at most 1 may be missing; revert"},
		{"changed and deleted members do not hold up the rollout", "a:waiting,up b:waiting,other c:waiting,gone", 160, "take a"},
		{"the rollout completes with the last member", "a:updated,up b:updating,up", 110, "settle b; complete"},
		{"a rollout completes when all members are updated, even if one is down", "a:updated,up b:updated,down", 110, "complete"},
		{"a member that misses its deadline fails the update", "a:waiting,up b:updating,down", 160, "fail: b was not healthy for 10 s within 60 s; revert"},
		{"a member whose retries are exhausted fails the update", "a:waiting,up b:updating,given-up", 101, "fail: b was given up: RetriesExhausted; revert"},
		{"stopped members are updated at once", "a:waiting,stopped b:waiting,stopped c:waiting,up", 100, "take a,b,c"},
		{"stopped members do not hold up the rollout", "a:updating,stopped b:updated,up", 100, "complete"},
		{"a member that a caller changed is skipped", "a:waiting,other b:updated,up", 100, "complete"},
		{"a deleted member is skipped", "a:waiting,gone b:updating,gone", 100, "complete"},

		{"start-first: the surge member is made first", "a:waiting,up b:waiting,up x:extra,none", 100, "take x"},
		{"start-first: no member is changed before the surge member has settled", "a:waiting,up b:waiting,up x:surge,up", 101, "wait until 110 for x to be healthy for 10 s"},
		{"start-first: then the first member is changed", "a:waiting,up b:waiting,up x:surge,up", 110, "settle x; take a"},
		{"start-first: a settled surge member that is down holds up the rollout", "a:waiting,up b:waiting,up x:surged,down", 110,
			"wait until 160 for x to be available again: start-first keeps 2 members available"},
		{"start-first: a surge member that is down beyond the deadline fails the update", "a:waiting,up b:waiting,up x:surged,down", 160,
			"fail: waited too long for x to be available again: start-first keeps 2 members available; revert"},
		{"start-first: a member that is down is changed first", "a:waiting,up b:waiting,down x:extra,none", 100, "take b"},
		{"start-first: a surge member that is given up fails the update", "a:waiting,up x:surge,given-up", 101, "fail: x was given up: RetriesExhausted; revert"},
		{"start-first: an update of which no surge member is left fails", "a:waiting,up x:surged,gone", 101,
			"fail: no extra member of web is left, because users changed, stopped or deleted them: apply the specification again; revert"},
		{"start-first: a stopped surge member replaces no member", "a:waiting,up b:waiting,up x:surged,up y:surged,stopped", 100, "take a"},
		{"start-first: an update whose surge member's id belongs to another workload fails", "a:waiting,up x:extra,other", 100,
			"fail: no extra member of web is left, because users changed, stopped or deleted them: apply the specification again; revert"},
		{"start-first: the rollout completes without waiting for surge members", "a:updating,up x:surged,down", 110, "settle a; complete"},
		{"start-first: no surge member is made if no member waits", "a:waiting,other x:extra,none", 100, "complete"},

		{"canary: the canary is changed first", "a:waiting,up b:waiting,up!", 100, "take b"},
		{"canary: the other members wait until the canary has settled", "a:waiting,up b:updating,up!", 101, "wait until 110 for b to be healthy for 10 s"},
		{"canary: then the update waits for its promotion", "a:waiting,up b:updating,up!", 110, "settle b; await"},
		{"canary: a member that is down waits for the promotion", "a:waiting,down b:updated,up!", 110, "await"},
		{"canary: a stopped member waits for the promotion", "a:waiting,stopped b:updated,up!", 110, "await"},
		{"canary: a canary that misses its deadline fails the update", "a:waiting,up b:updating,down!", 160, "fail: b was not healthy for 10 s within 60 s; revert"},
		{"canary: an update without other members completes", "a:updated,up b:updated,up!", 110, "complete"},
		{"canary: a canary that a user deleted does not hold up the rollout", "a:waiting,up b:waiting,gone!", 110, "await"},
		{"canary, start-first: only the canaries are made", "a:waiting,up b:waiting,up x:extra,none! y:extra,none", 100, "take x"},
		{"canary, start-first: the other surge members wait for the promotion", "a:waiting,up b:waiting,up x:surged,up! y:extra,none", 100, "await"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, look := members(c.group)
			if got := r.Next(look, c.at*second).line(); got != c.want {
				t.Errorf("the next step of the update is\n     %s\nwant %s", got, c.want)
			}
			if r.Phase, r.Promoted = Running, true; strings.HasPrefix(c.name, "canary") && r.Next(look, 100*second).Await {
				t.Error("a promoted update must not wait for a promotion again, but Next sets Await")
			}
			r.Phase = Paused
			if d := r.Next(look, c.at*second); !d.Idle() || d.WakeAt != 0 {
				t.Errorf("a paused update must propose nothing, but the decision is %s", d.line())
			}
		})
	}
}

// TestPromotedUpdateGoesOn: after a user has promoted the update, the next step changes the members
// that are not canaries.
func TestPromotedUpdateGoesOn(t *testing.T) {
	for group, want := range map[string]string{
		"a:waiting,up b:updated,up!":               "take a",
		"a:waiting,up b:waiting,up x:surged,up!":   "take a",
		"a:waiting,up x:surged,up! y:extra,none":   "take y",
		"a:waiting,down b:waiting,up c:surged,up!": "take a",
	} {
		r, look := members(group)
		r.Promoted = true
		if got := r.Next(look, 100*second).line(); got != want {
			t.Errorf("%s: Next decides %s, want %s", group, got, want)
		}
	}
}

// TestAwaitedPromotion: while an update waits for its promotion, a canary that fails or is not healthy in time
// fails the update.
func TestAwaitedPromotion(t *testing.T) {
	const waits = "wait until 0 for its promotion: persysctl rollout promote web, or abort"
	for _, c := range []struct {
		name, group string
		at          int64
		want        string
		refused     string // why a promotion by a user is refused; "" if it is accepted
	}{
		{"an update with healthy canaries waits", "a:waiting,up b:updated,up!", 999, waits, ""},
		{"an update waits although a member that is no canary is down", "a:waiting,down b:updated,up!", 999, waits, ""},
		{"an update waits although a user deleted its canary", "a:waiting,up b:updated,gone!", 999, waits, ""},
		{"a canary that is down has until its deadline to be available again", "a:waiting,up b:updated,down!", 159, "wait until 160 for b, a canary, to be available again",
			"b, a canary, is not available: wait until it is, or persysctl rollout abort web"},
		{"a canary that is down beyond its deadline fails the update", "a:waiting,up b:updated,down!", 160, "fail: b was not healthy for 10 s within 60 s; revert",
			"b, a canary, is not available: wait until it is, or persysctl rollout abort web"},
		{"a canary that is given up fails the update", "a:waiting,up x:surged,given-up!", 101, "fail: x was given up: RetriesExhausted; revert",
			"x, a canary, is not available: wait until it is, or persysctl rollout abort web"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, look := members(c.group)
			r.Phase = AwaitPromotion
			if got := r.Next(look, c.at*second).line(); got != c.want {
				t.Errorf("the next step of the update is\n     %s\nwant %s", got, c.want)
			}
			if got := r.Unpromotable(look); got != c.refused {
				t.Errorf("a promotion by a user is refused with %q, want %q (empty: it is accepted)", got, c.refused)
			}
		})
	}
}

// TestRevertWithSurgeMembers: an update with surge members (extra members that start first) failed and is
// reverted. For each available surge member, one more member may be unavailable. The revert does not wait for
// unavailable surge members.
func TestRevertWithSurgeMembers(t *testing.T) {
	for group, want := range map[string]string{
		"a:waiting,up b:updated,up x:surged,up":                  "take a",
		"a:waiting,up b:waiting,down x:surged,up":                "take b",
		"a:waiting,up b:waiting,up x:surged,down":                "take a",
		"a:updated,up b:updated,up x:surged,up":                  "complete",
		"a:updating,down b:waiting,up x:surged,down y:surged,up": "wait until 160 for a to be healthy for 10 s",
		"a:updated,down b:waiting,up x:surged,up":                "wait until 160 for a to be available again: start-first keeps 2 members available",
		"a:updated,up b:waiting,up! c:waiting,up x:surged,up":    "take b",
	} {
		r, look := members(group)
		r.Reverting = true
		if got := r.Next(look, 100*second).line(); got != want {
			t.Errorf("%s: Next decides\n     %s\nwant %s", group, got, want)
		}
	}
}

func TestSurgeCount(t *testing.T) {
	for _, c := range []struct {
		first                             bool
		parallel, canary, members, surges int
	}{
		{false, 2, 1, 5, 0}, {true, 1, 0, 5, 1}, {true, 2, 0, 5, 2}, {true, 9, 0, 5, 5}, {true, 1, 3, 5, 3}, {true, 2, 1, 5, 2}, {true, 1, 1, 0, 1},
	} {
		p := Policy{MaxParallel: c.parallel, StartFirst: c.first, Canary: c.canary}
		if got := p.SurgeCount(c.members); got != c.surges {
			t.Errorf("an update with policy %+v of a group with %d members has %d surge members, want %d", p, c.members, got, c.surges)
		}
	}
}

// TestStartFirstKeepsAllMembersAvailable updates a random group in which nothing fails by itself: instances start at
// random times, users pause, resume, promote and abort. At every step as many members are available as the group
// has, the update ends, and no surge member (an extra member that starts before old ones stop) is left.
func TestStartFirstKeepsAllMembersAvailable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n, now := rapid.IntRange(1, 6).Draw(rt, "members"), 100*second
		r := &Rollout{Group: "web", Phase: Running, ProgressAt: now, Policy: Policy{
			MaxParallel: rapid.IntRange(1, 4).Draw(rt, "parallel"), MinHealthy: 10 * second, Deadline: 9999 * second,
			StartFirst: true, Canary: rapid.IntRange(0, n).Draw(rt, "canary"),
		}}
		surges := r.Policy.SurgeCount(n)
		seen := map[string]*Seen{}
		for i := range n + surges {
			id := fmt.Sprint("web-", i)
			m := Member{ID: id, Put: &commandv1.WorkloadPut{Id: id, Content: "new"}, Surge: i >= n, Canary: i >= n && i < n+r.Policy.Canary}
			seen[id] = &Seen{}
			if !m.Surge {
				m.Content = "old"
				seen[id] = &Seen{There: true, Content: "old", Available: true, Since: now}
			}
			r.Members = append(r.Members, m)
		}
		look := func(id string) Seen { return *seen[id] }
		step := func() {
			d := r.Next(look, now)
			if d.Failure != "" {
				rt.Fatalf("an update in which no instance fails must not fail, but its failure is: %s", d.Failure)
			}
			for i := range r.Members {
				if m := &r.Members[i]; slices.Contains(d.Settled, m.ID) {
					m.Settled, r.ProgressAt = true, now
				}
			}
			if why := r.Allows(look, d.Take); why != "" {
				rt.Fatalf("Allows must permit what Next proposed (%s), but refused: %s", d.line(), why)
			}
			for i := range r.Members {
				m := &r.Members[i]
				if m.Put == nil || !slices.Contains(d.Take, m.ID) {
					continue
				}
				if r.gated() && !m.Canary {
					rt.Fatalf("member %s, which is no canary, must not be changed before the promotion, but was", m.ID)
				}
				m.Content, m.TakenAt, r.ProgressAt = m.Put.GetContent(), now, now
				m.Put = nil
				*seen[m.ID] = Seen{There: true, Content: m.Content, Since: now}
			}
			switch {
			case d.Complete:
				r.Phase = Completed
				r.Members = slices.DeleteFunc(r.Members, func(m Member) bool {
					if m.Surge {
						*seen[m.ID] = Seen{}
					}
					return m.Surge
				})
			case d.Await:
				r.Phase = AwaitPromotion
			}
		}
		abort := func() { // what package fsm does for an abort
			r.Reverting, r.Phase = true, Running
			r.Members = slices.DeleteFunc(r.Members, func(m Member) bool {
				drop := m.Surge && !look(m.ID).Available
				if drop {
					*seen[m.ID] = Seen{}
				}
				return drop
			})
			for i := range r.Members {
				switch m := &r.Members[i]; {
				case m.Surge:
					m.Settled = true
				case m.Put == nil:
					m.Put, m.Settled = &commandv1.WorkloadPut{Id: m.ID, Content: "old"}, false
				default:
					m.Put, m.Settled = nil, true
				}
			}
		}
		for round := 0; r.Phase != Completed; round++ {
			if round > 400 {
				rt.Fatalf("the update must have ended, but is %+v with the next step %s", r, r.Next(look, now).line())
			}
			now += int64(rapid.IntRange(0, 12).Draw(rt, "later")) * second
			for i := range n + surges {
				id := fmt.Sprint("web-", i)
				if s := seen[id]; s.There && !s.Available && rapid.IntRange(0, 2).Draw(rt, id) > 0 {
					s.Available, s.Since = true, now
				}
			}
			switch what := rapid.IntRange(0, 40).Draw(rt, "user"); {
			case r.Phase == Paused:
				r.Phase = Running
			case r.Phase == AwaitPromotion && what > 10 && r.Unpromotable(look) == "":
				r.Phase, r.Promoted = Running, true
			case what == 0:
				r.Phase = Paused
			case what == 1 && !r.Reverting:
				abort()
			}
			step()
			up, extra := 0, 0
			for i := range n + surges {
				if s := seen[fmt.Sprint("web-", i)]; s.Available {
					up++
				}
				if s := seen[fmt.Sprint("web-", i)]; s.There && i >= n {
					extra++
				}
			}
			if up < n {
				rt.Fatalf("during the update %d members are available, want at least %d", up, n)
			}
			if extra > surges || r.Phase == Completed && extra > 0 {
				rt.Fatalf("the update has %d surge members in phase %s, want at most %d", extra, r.Phase, surges)
			}
		}
		want := "new"
		if r.Reverting {
			want = "old"
		}
		for i := range n {
			if s := seen[fmt.Sprint("web-", i)]; s.Content != want {
				rt.Fatalf("after the update member web-%d has content %s, want %s", i, s.Content, want)
			}
		}
	})
}

func TestNextTakesAsManyAsMaxParallel(t *testing.T) {
	r, look := members("a:waiting,up b:waiting,up c:waiting,up d:waiting,down")
	for n, want := range map[int]string{1: "take d", 2: "take d,a", 3: "take d,a,b", 9: "take d,a,b,c"} {
		r.Policy.MaxParallel = n
		if got := r.Next(look, 100*second).line(); got != want {
			t.Errorf("with MaxParallel %d the next step of the update is %s, want %s", n, got, want)
		}
	}
}

func TestFailedUpdateRevertsIfItCan(t *testing.T) {
	for name, change := range map[string]func(*Rollout){
		"a failed update without auto_revert does not revert":                         func(r *Rollout) { r.Policy.AutoRevert = false },
		"a failed update does not revert if no member was available before it":        func(r *Rollout) { r.FormerRan = false },
		"a failed update does not revert if the former specifications are not stored": func(r *Rollout) { r.Former = nil },
		"a failed revert does not revert":                                             func(r *Rollout) { r.Reverting = true },
		"a failed update reverts":                                                     nil,
	} {
		r, look := members("a:updating,given-up")
		if change != nil {
			change(r)
		}
		if d := r.Next(look, 101*second); d.Failure == "" || d.Revert != (change == nil) {
			t.Errorf("%s, but the next step of the update is %s", name, d.line())
		}
	}
}

func TestHoldsKeepsAvailableMembers(t *testing.T) {
	r, look := members("a:updating,down b:waiting,up c:updated,up")
	if !r.Holds(look, "b") || !r.Holds(look, "c") || r.Holds(look, "a") {
		t.Error("while member a is down, Holds must return true for the available members b and c, and false for a")
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
				rt.Fatalf("step %s of the update made %d members unavailable, which is more than MaxParallel; before the step there were %d", d.line(), got, before)
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
