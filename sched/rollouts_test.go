package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

var rolloutEpoch = fsm.Epoch{Incarnation: 1, Term: 4}

// groupWorld is a real state machine with groups that run on one node. An update gives a
// member 60 s to be available for 10 s.
type groupWorld struct {
	t       *testing.T
	state   fsm.State
	index   uint64
	now     int64
	leaving map[string]bool
}

// newGroupWorld has groups run in version 1: "web 3" is web-0 to web-2.
func newGroupWorld(t *testing.T, groups ...string) *groupWorld {
	w := &groupWorld{t: t, state: fsm.New(), now: testStart, leaving: map[string]bool{}}
	w.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1}}})
	w.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "a", Endpoint: "10.0.0.1:50051", CpuMillicores: 64000, MemoryMib: 64000, Protocol: 1, InstanceId: "a", Types: []string{"container"},
	}}})
	for _, g := range groups {
		name, count, _ := strings.Cut(g, " ")
		w.group(name, count, 1, nil)
		w.run(name)
	}
	return w
}

// do applies a command of the leader; a refused or skipped one fails the test.
func (w *groupWorld) do(c *commandv1.Command) {
	w.t.Helper()
	w.index++
	if c.Head == nil {
		c.Head = &commandv1.Head{At: w.now, By: "test", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 4}}
	}
	s, r, _ := w.state.Apply(fsm.Meta{Index: w.index, Term: 4}, c)
	if err := r.Err(); err != nil || r.Skipped > 0 {
		w.t.Fatalf("%v: %v, %d items do not hold: %s", c, err, r.Skipped, r.Reason)
	}
	if err := s.Check(); err != nil {
		w.t.Fatalf("after %v: %v", c, err)
	}
	w.state = s
}

// group puts count members of a group in one version.
func (w *groupWorld) group(name, count string, version int, update *commandv1.UpdatePolicy) {
	w.t.Helper()
	n := 0
	if _, err := fmt.Sscan(count, &n); err != nil {
		w.t.Fatal(err)
	}
	put := &commandv1.PutWorkloads{GroupOf: name, Update: update}
	for i := range n {
		put.Workloads = append(put.Workloads, &commandv1.WorkloadPut{
			Id: fmt.Sprint(name, "-", i), Spec: fmt.Append(nil, "version ", version), Content: fmt.Sprintf("c1:%064d", version), Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 10, Group: name},
		})
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: put}})
}

func (w *groupWorld) get(id string) *fsm.Workload {
	w.t.Helper()
	x, ok := w.state.Workload(id)
	if !ok {
		w.t.Fatalf("workload %s is gone", id)
	}
	return x
}

// run makes the node carry out the orders of a group.
func (w *groupWorld) run(group string, except ...string) {
	w.t.Helper()
	var ids []string
	w.state.Group(group, func(x *fsm.Workload) bool { ids = append(ids, x.ID); return true })
	for _, id := range ids {
		if x := w.get(id); !slices.Contains(except, id) && x.Desired == fsm.DesiredRunning && !x.Available() {
			w.says(id, "Running")
		}
	}
}

// says makes the node accept the present order of a workload and report a state.
func (w *groupWorld) says(id, state string) {
	w.t.Helper()
	generation := func() *commandv1.Generation {
		g := w.get(id).Generation
		return &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
	}
	if w.get(id).Node == "" {
		w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{
			{Workload: id, Node: "a", IfGeneration: generation()}}}}})
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
		{Workload: id, Node: "a", Generation: generation(), State: state, Acknowledged: true, ObservedAt: w.now}}}}})
}

// play carries out one line of a script: an action of a user, a node or another pass.
func (w *groupWorld) play(word string) {
	w.t.Helper()
	f := strings.Fields(word)
	desired := func(to string) {
		w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: f[1], Desired: to}}})
	}
	action := func(what string) {
		w.do(&commandv1.Command{Body: &commandv1.Command_SetRollout{SetRollout: &commandv1.SetRollout{Group: f[1], Action: what}}})
	}
	switch f[0] {
	case "update": // update web 3 to 2 by 1 [back]: three members to version 2, one at a time
		var version, parallel int
		if _, err := fmt.Sscan(f[4]+" "+f[6], &version, &parallel); err != nil {
			w.t.Fatal(err)
		}
		w.group(f[1], f[2], version, &commandv1.UpdatePolicy{
			MaxParallel: int32(parallel), MinHealthy: 10 * second, HealthyDeadline: 60 * second, AutoRevert: len(f) > 7,
		})
	case "step":
		steps, _ := w.next()
		for _, c := range steps {
			w.do(c)
		}
	case "later":
		var n int64
		if _, err := fmt.Sscan(f[1], &n); err != nil {
			w.t.Fatal(err)
		}
		w.now += n * second
	case "runs":
		w.says(f[1], "Running")
	case "fails":
		w.says(f[1], "Failed")
	case "stopped":
		desired("Stopped")
	case "deleted":
		w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: f[1]}}})
	case "leaves":
		w.leaving[f[1]] = true
	case "pause", "resume", "undo":
		action(f[0])
	default:
		w.t.Fatalf("the script says %q", word)
	}
}

// planner is a step that already moves the leaving workloads.
func (w *groupWorld) planner() *planner {
	return &planner{World: World{State: w.state, Now: w.now, Epoch: rolloutEpoch}, done: w.leaving}
}

// next plans the rollouts; wake is the earliest time that the plan asks for, 0 for none.
func (w *groupWorld) next() (steps []fsm.Command, wake int64) {
	p := w.planner()
	p.rollOut()
	return p.rollouts, p.at
}

// line is a plan as text: the next step of each group, and the next wake-up.
func (w *groupWorld) line() string {
	steps, wake := w.next()
	var out []string
	for _, c := range steps {
		b := c.GetAdvanceRollout()
		s := b.GetGroup() + ":"
		for _, x := range []struct {
			word string
			said bool
			what string
		}{
			{"settle", len(b.GetSettled()) > 0, strings.Join(b.GetSettled(), ",")},
			{"take", len(b.GetTake()) > 0, strings.Join(b.GetTake(), ",")},
			{"complete", b.GetComplete(), ""},
			{"fail", b.GetFailure() != "", "(" + b.GetFailure() + ")"},
			{"revert", b.GetRevert(), ""},
		} {
			if x.said {
				s += strings.TrimRight(" "+x.word+" "+x.what, " ")
			}
		}
		out = append(out, s)
	}
	if wake != 0 {
		out = append(out, fmt.Sprintf("look again in %d s", (wake-w.now)/second))
	}
	return strings.Join(out, "; ")
}

func TestRolloutSteps(t *testing.T) {
	const (
		late  = "web: fail (web-0 was not healthy for 10 s within 60 s)"
		web21 = "update web 3 to 2 by 1; " // three members of web to version 2, one at a time
		back  = "update web 3 to 2 by 1 back; "
	)
	for _, c := range []struct{ name, script, want string }{
		{"groups that nobody updates cost nothing", "", ""},
		{"the first has its turn", web21, "web: take web-0"},
		{"or as many as may be missing", "update web 3 to 2 by 2", "web: take web-0,web-1"},
		{"but no more than there are", "update web 3 to 2 by 9", "web: take web-0,web-1,web-2"},
		{"the rest waits while it starts", web21 + "step", "look again in 60 s"},
		{"and until it has run for long enough", web21 + "step; runs web-0; later 3", "look again in 7 s"},
		{"then comes the next", web21 + "step; runs web-0; later 10", "web: settle web-0 take web-1"},
		{"and when the last has settled it is over", "update web 3 to 2 by 3; step; runs web-0; runs web-1; runs web-2; later 10",
			"web: settle web-0,web-1,web-2 complete"},

		{"what is down goes first", "fails web-2; " + web21, "web: take web-2"},
		{"and counts", "fails web-2; update web 3 to 2 by 2", "web: take web-2,web-0"},
		{"nobody else has a turn while one that has it is down", web21 + "step; runs web-0; later 10; step; runs web-1; fails web-0; later 10; step",
			"look again in 60 s"},
		{"one that the same step moves counts as missing", web21 + "leaves web-2", "web: take web-2"},
		{"among others", "update web 3 to 2 by 2; leaves web-1", "web: take web-1,web-0"},
		{"so does one that has it already", web21 + "step; runs web-0; later 10; step; runs web-1; later 10; leaves web-0", "web: settle web-1"},
		{"one that is moved has not settled", web21 + "step; runs web-0; later 10; leaves web-0", "look again in 50 s"},
		{"one that the update starts has it at once, and is missed until it runs", "stopped web-2; " + web21, "look again in 60 s"},
		{"one that is stopped while it waits has its turn at once", web21 + "step; stopped web-2", "web: take web-2; look again in 60 s"},
		{"one that is gone is waited for by nobody", "update web 3 to 2 by 3; deleted web-0; deleted web-1; step; runs web-2; later 10", "web: settle web-2 complete"},

		{"a failure that lasts ends it", web21 + "step; fails web-0; later 60", late},
		{"but not before its time", web21 + "step; fails web-0; later 59", "look again in 1 s"},
		{"with a way back it is taken", back + "step; fails web-0; later 60", late + " revert"},
		{"on the way back nobody turns round", back + "step; fails web-0; later 60; step; step; fails web-0; later 60", late},
		{"a wait that lasts ends it too", web21 + "step; runs web-0; later 10; step; runs web-1; later 10; fails web-0; step; later 60",
			"web: fail (waited too long for web-0 to be available again: at most 1 may be missing)"},
		{"no failure is found while the same step moves a member", back + "step; fails web-0; later 60; leaves web-0", ""},
		{"whichever it is", web21 + "step; fails web-0; later 60; leaves web-2", ""},
		{"but when it moves another's", web21 + "step; fails web-0; later 60; leaves api-0", late},

		{"a paused update stands still", web21 + "pause web", ""},
		{"also one that paused by itself", web21 + "step; fails web-0; later 60; step; later 999", ""},
		{"resumed it goes on", web21 + "pause web; resume web", "web: take web-0"},
		{"undone it takes turns as well", web21 + "step; runs web-0; later 10; step; undo web", "web: take web-1"},
		{"another update supersedes it", web21 + "step; update web 3 to 3 by 2", "web: take web-0,web-1"},
		{"an update that ended is nobody's matter", "update web 1 to 2 by 1; step; runs web-0; later 10; step; later 999", ""},

		{"each group has its own bound", web21 + "update api 2 to 2 by 2", "api: take api-0,api-1; web: take web-0"},
		{"and its own luck", web21 + "update api 2 to 2 by 1; step; runs api-0; fails web-0; later 10", "api: settle api-0 take api-1; look again in 50 s"},
		{"a failure of one halts no other", web21 + "step; fails web-0; later 60; update api 2 to 2 by 1", "api: take api-0; " + late},
		{"the earliest deadline of all counts", web21 + "step; later 20; update api 2 to 2 by 1; step", "look again in 40 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newGroupWorld(t, "web 3", "api 2")
			w.now += 100 * second
			for word := range strings.SplitSeq(c.script, "; ") {
				if word != "" {
					w.play(word)
				}
			}
			if got := w.line(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestRolloutStepsAreFenced: a step names the leadership term that proposes it and its
// rollout, so that neither a former leader nor a plan for a superseded rollout changes a
// member.
func TestRolloutStepsAreFenced(t *testing.T) {
	w := newGroupWorld(t, "web 2")
	w.play("update web 2 to 2 by 1")
	steps, _ := w.next()
	if len(steps) != 1 {
		t.Fatalf("there are %d steps, want 1", len(steps))
	}
	r, _ := w.state.Rollout("web")
	head, body := steps[0].GetHead(), steps[0].GetAdvanceRollout()
	if e := head.GetEpoch(); e.GetIncarnation() != rolloutEpoch.Incarnation || e.GetTerm() != rolloutEpoch.Term || head.GetAt() != w.now || head.GetBy() != "leader" {
		t.Errorf("the head is %v", head)
	}
	if id := body.GetIfRollout(); id.GetIncarnation() != r.Incarnation || id.GetSequence() != r.Sequence || r.Sequence == 0 {
		t.Errorf("it is for update %v, want %d.%d", id, r.Incarnation, r.Sequence)
	}
	w.play("update web 2 to 3 by 1")
	_, res, _ := w.state.Apply(fsm.Meta{Index: w.index + 1, Term: 4}, steps[0])
	if res.Skipped != 1 {
		t.Errorf("a step for an update that was superseded holds: %+v", res)
	}
}

// TestRolloutsOfObedientNodes carries out whole updates on a node that obeys, except for
// members that cannot start, and counts the unavailable members at every step.
func TestRolloutsOfObedientNodes(t *testing.T) {
	for _, c := range []struct {
		name, update string
		breaks       map[int]string // version: the member that never starts in it
		missing      int            // at a time, at the most
		want         string         // versions and the phase
	}{
		{"one at a time", "update web 5 to 2 by 1", nil, 1, "22222 Completed"},
		{"two at a time", "update web 5 to 2 by 2", nil, 2, "22222 Completed"},
		{"all at once", "update web 5 to 2 by 5", nil, 5, "22222 Completed"},
		{"more members than before", "update web 7 to 2 by 1", nil, 2, "2222222 Completed"},
		{"fewer members than before", "update web 3 to 2 by 1", nil, 1, "222 Completed"},
		{"the first fails", "update web 5 to 2 by 1", map[int]string{2: "web-0"}, 1, "21111 Paused"},
		{"while one fails, the other place is used", "update web 5 to 2 by 2", map[int]string{2: "web-1"}, 2, "22222 Paused"},
		{"one in the middle fails", "update web 5 to 2 by 1", map[int]string{2: "web-2"}, 1, "22211 Paused"},
		{"it fails and goes back", "update web 5 to 2 by 1 back", map[int]string{2: "web-2"}, 1, "11111 Completed"},
		{"the way back fails too", "update web 5 to 2 by 1 back", map[int]string{1: "web-1", 2: "web-1"}, 1, "21111 Paused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newGroupWorld(t, "web 5")
			w.now += 100 * second
			w.play(c.update)
			for range 200 {
				steps, wake := w.next()
				for _, s := range steps {
					w.do(s)
				}
				if missing := w.missing("web"); missing > c.missing {
					t.Fatalf("%d are missing, at most %d may be: %s", missing, c.missing, w.versions("web"))
				}
				broken := []string{}
				w.state.Group("web", func(x *fsm.Workload) bool {
					if c.breaks[version(x)] == x.ID && !x.Available() {
						broken = append(broken, x.ID)
					}
					return true
				})
				w.run("web", broken...)
				if len(steps) == 0 && wake == 0 {
					break
				}
				if len(steps) == 0 {
					w.now = max(w.now+1, wake)
				}
			}
			if got := w.versions("web"); got != c.want {
				t.Errorf("it ends as %s, want %s", got, c.want)
			}
		})
	}
}

func (w *groupWorld) missing(group string) (n int) {
	w.state.Group(group, func(x *fsm.Workload) bool {
		if x.Desired == fsm.DesiredRunning && !x.Available() {
			n++
		}
		return true
	})
	return n
}

func version(x *fsm.Workload) int {
	return int(x.Content[len(x.Content)-1] - '0')
}

// versions lists the versions of the members that stay, and the phase of the rollout.
func (w *groupWorld) versions(group string) (out string) {
	w.state.Group(group, func(x *fsm.Workload) bool {
		if x.Desired != fsm.DesiredDeleted {
			out += fmt.Sprint(version(x))
		}
		return true
	})
	if r, ok := w.state.Rollout(group); ok {
		out += " " + string(r.Phase)
	}
	return out
}

func TestHeldByRollout(t *testing.T) {
	for _, c := range []struct {
		name, script, id string
		want             bool
	}{
		{"without an update no member is held", "", "web-1", false},
		{"an update without a step holds no member", "update web 3 to 2 by 1", "web-1", false},
		{"while one is unavailable the others are held", "update web 3 to 2 by 1; step", "web-1", true},
		{"a member that has not settled is held", "update web 3 to 2 by 1; step; runs web-0", "web-0", true},
		{"an unavailable member may go", "update web 3 to 2 by 1; step", "web-0", false},
		{"with max_parallel 2 another may go", "update web 3 to 2 by 2; fails web-0", "web-1", false},
		{"not if the same step has moved one", "update web 3 to 2 by 2; fails web-0; leaves web-2", "web-1", true},
		{"a member that is moved already is not held", "update web 3 to 2 by 1; leaves web-1", "web-1", false},
		{"a paused update holds no member", "update web 3 to 2 by 1; step; pause web", "web-1", false},
		{"an update of another group holds no member", "update web 3 to 2 by 1; step", "api-0", false},
		{"a workload without a group is not held", "update web 3 to 2 by 1; step", "single", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newGroupWorld(t, "web 3", "api 2")
			w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{
				{Id: "single", Spec: []byte("spec"), Content: "c1:1", Desired: "Running", Demand: &commandv1.Demand{Type: "container"}}}}}})
			w.says("single", "Running")
			for word := range strings.SplitSeq(c.script, "; ") {
				if word != "" {
					w.play(word)
				}
			}
			if got := w.planner().heldByRollout(w.get(c.id)); got != c.want {
				t.Errorf("%s is held: %v, want %v", c.id, got, c.want)
			}
		})
	}
}
