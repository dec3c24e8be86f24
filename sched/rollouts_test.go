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

// groupWorld is a real state machine with groups that run on one node. The update policy has a deadline of
// 60 s and a minimum healthy time of 10 s.
type groupWorld struct {
	t       *testing.T
	state   fsm.State
	index   uint64
	now     int64
	leaving map[string]bool
}

// newGroupWorld returns a world with the named groups, whose members run with version 1 of their
// specification. "web 3" stands for a group web with the members web-0 to web-2.
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

// do applies a command of the leader. A refused or skipped command fails the test.
func (w *groupWorld) do(c *commandv1.Command) {
	w.t.Helper()
	w.index++
	if c.Head == nil {
		c.Head = &commandv1.Head{At: w.now, By: "test", Epoch: &commandv1.Epoch{Incarnation: 1, Term: 4}}
	}
	s, r, _ := w.state.Apply(fsm.Meta{Index: w.index, Term: 4}, c)
	if err := r.Err(); err != nil || r.Skipped > 0 {
		w.t.Fatalf("command %v must be applied completely, but returned error %v and skipped %d items: %s", c, err, r.Skipped, r.Reason)
	}
	if err := s.Check(); err != nil {
		w.t.Fatalf("Check after command %v: %v", c, err)
	}
	w.state = s
}

// group stores a group with count members, whose specifications differ from those of other
// versions.
func (w *groupWorld) group(name, count string, version int, update *commandv1.UpdatePolicy) {
	w.t.Helper()
	n := 0
	if _, err := fmt.Sscan(count, &n); err != nil {
		w.t.Fatal(err)
	}
	put := &commandv1.PutWorkloads{GroupOf: name, Update: update}
	extra := fsm.SurgeCount(update, n)
	for i := range n + extra {
		p := &commandv1.WorkloadPut{
			Id: fmt.Sprint(name, "-", i), Spec: fmt.Append(nil, "version ", version), Content: fmt.Sprintf("c1:%064d", version), Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: 10, MemoryMib: 10, Group: name, Surge: i >= n},
		}
		if i < n {
			put.Workloads = append(put.Workloads, p)
		} else {
			put.Surge = append(put.Surge, p)
		}
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: put}})
}

func (w *groupWorld) get(id string) *fsm.Workload {
	w.t.Helper()
	x, ok := w.state.Workload(id)
	if !ok {
		w.t.Fatalf("the state has no workload %s", id)
	}
	return x
}

// run makes the node carry out the orders for a group, except for the named members.
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

// says makes the node accept the present order of a workload and report a state. cause is a reason code and a
// message.
func (w *groupWorld) says(id, state string, cause ...string) {
	w.t.Helper()
	cause = append(cause, "", "")
	generation := func() *commandv1.Generation {
		g := w.get(id).Generation
		return &commandv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
	}
	if w.get(id).Node == "" {
		w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: []*commandv1.Assignment{
			{Workload: id, Node: "a", IfGeneration: generation()}}}}})
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{
		{Workload: id, Node: "a", Generation: generation(), State: state, Code: cause[0], Message: cause[1], Acknowledged: true, ObservedAt: w.now}}}}})
}

// play carries out one step of a script: an action of a user, of a node, or of another pass of the planner.
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
	case "update": // "update web 3 to 2 by 1 [back] [first] [canary]": three members of web to version 2, one at a time
		var version, parallel int
		if _, err := fmt.Sscan(f[4]+" "+f[6], &version, &parallel); err != nil {
			w.t.Fatal(err)
		}
		w.group(f[1], f[2], version, &commandv1.UpdatePolicy{
			MaxParallel: int32(parallel), MinHealthy: 10 * second, HealthyDeadline: 60 * second, AutoRevert: slices.Contains(f, "back"),
			StartFirst: slices.Contains(f, "first"), Canary: int32(strings.Count(word, "canary")),
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
	case "works": // the agent of the member is carrying out the order
		w.says(f[1], "Pending", fsm.CodeWorking, "waiting for db to be healthy")
	case "breaks": // the agent reports that the member failed, with a message
		w.says(f[1], "Failed", "RUNTIME_ERROR", "exited with code 3")
	case "misfit": // no node has room for the member
		w.do(&commandv1.Command{Body: &commandv1.Command_ExplainUnplaced{ExplainUnplaced: &commandv1.ExplainUnplaced{Workloads: []*commandv1.Unplaced{
			{Workload: f[1], IfGeneration: fsm.GenerationPB(w.get(f[1]).Generation), Code: fsm.CodeCannotMove, Message: "0/1 nodes fit: 1 memory"}}}}})
	case "stopped":
		desired("Stopped")
	case "deleted":
		w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: f[1]}}})
	case "leaves":
		w.leaving[f[1]] = true
	case "pause", "resume", "undo", "promote", "abort":
		action(f[0])
	default:
		w.t.Fatalf("the script has the unknown word %q", word)
	}
}

// planner returns a planner for which the workloads in w.leaving count as moved by its present step.
func (w *groupWorld) planner() *planner {
	return &planner{World: World{State: w.state, Now: w.now, Epoch: rolloutEpoch}, done: w.leaving}
}

// next returns the commands that the planner proposes for the rollouts. wake is the earliest time at which it
// requests another step; 0 if there is none.
func (w *groupWorld) next() (steps []fsm.Command, wake int64) {
	p := w.planner()
	p.rollOut()
	return p.rollouts, p.at
}

// line returns, as text, what the planner proposes: the next step of each group, and the time of
// the next wake-up.
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
			{"await", b.GetAwaitPromotion(), ""},
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
		out = append(out, fmt.Sprintf("wake up in %d s", (wake-w.now)/second))
	}
	return strings.Join(out, "; ")
}

func TestRolloutSteps(t *testing.T) {
	const (
		late  = "web: fail (web-0 was not healthy for 10 s within 60 s)"
		web21 = "update web 3 to 2 by 1; " // three members of web get version 2, one at a time
		back  = "update web 3 to 2 by 1 back; "
	)
	for _, c := range []struct{ name, script, want string }{
		{"groups without an update need no step", "", ""},
		{"the first member is updated first", web21, "web: take web-0"},
		{"as many members are updated as may be unavailable", "update web 3 to 2 by 2", "web: take web-0,web-1"},
		{"max_parallel may exceed the number of members", "update web 3 to 2 by 9", "web: take web-0,web-1,web-2"},
		{"other members wait while an updated member starts", web21 + "step", "wake up in 60 s"},
		{"other members wait until the updated member has settled", web21 + "step; runs web-0; later 3", "wake up in 7 s"},
		{"after a member has settled the next one is updated", web21 + "step; runs web-0; later 10", "web: settle web-0 take web-1"},
		{"the update completes when the last member has settled", "update web 3 to 2 by 3; step; runs web-0; runs web-1; runs web-2; later 10",
			"web: settle web-0,web-1,web-2 complete"},

		{"a member that is down is updated first", "fails web-2; " + web21, "web: take web-2"},
		{"a member that is down counts as unavailable", "fails web-2; update web 3 to 2 by 2", "web: take web-2,web-0"},
		{"no other member is updated while an updated one is down", web21 + "step; runs web-0; later 10; step; runs web-1; fails web-0; later 10; step",
			"wake up in 60 s"},
		{"a member that the same step moves counts as unavailable", web21 + "leaves web-2", "web: take web-2"},
		{"a moved member is updated first and counts as unavailable", "update web 3 to 2 by 2; leaves web-1", "web: take web-1,web-0"},
		{"an updated member that the same step moves counts as unavailable", web21 + "step; runs web-0; later 10; step; runs web-1; later 10; leaves web-0", "web: settle web-1"},
		{"a member that is moved has not settled", web21 + "step; runs web-0; later 10; leaves web-0", "wake up in 50 s"},
		{"a stopped member that the update starts is updated at once and is unavailable until it runs", "stopped web-2; " + web21, "wake up in 60 s"},
		{"a member that is stopped while it waits is updated at once", web21 + "step; stopped web-2", "web: take web-2; wake up in 60 s"},
		{"the update does not wait for a deleted member", "update web 3 to 2 by 3; deleted web-0; deleted web-1; step; runs web-2; later 10", "web: settle web-2 complete"},

		{"a member that misses its deadline fails the update", web21 + "step; fails web-0; later 60", late},
		{"a member fails the update only after its deadline", web21 + "step; fails web-0; later 59", "wake up in 1 s"},
		{"a failed update with auto_revert reverts", back + "step; fails web-0; later 60", late + " revert"},
		{"a failed revert is not reverted", back + "step; fails web-0; later 60; step; step; fails web-0; later 60", late},
		{"a wait beyond the deadline fails the update", web21 + "step; runs web-0; later 10; step; runs web-1; later 10; fails web-0; step; later 60",
			"web: fail (waited too long for web-0 to be available again: at most 1 may be missing)"},
		{"no failure is found while the same step moves a member", back + "step; fails web-0; later 60; leaves web-0", ""},
		{"no failure is found while the same step moves a waiting member", web21 + "step; fails web-0; later 60; leaves web-2", ""},
		{"a failure is found while the same step moves a member of another group", web21 + "step; fails web-0; later 60; leaves api-0", late},

		{"no deadline runs while the agent carries the order out", web21 + "step; later 1; works web-0; later 999", ""},
		{"the deadline begins when the new instance has been started", web21 + "step; works web-0; later 999; runs web-0; later 3; runs web-0", "wake up in 7 s"},
		{"an instance that does not settle after its start fails the update", web21 + "step; works web-0; later 999; breaks web-0; later 60",
			"web: fail (web-0: exited with code 3 (for 60 s))"},
		{"the deadline is not begun again after a failure", web21 + "step; works web-0; later 9; breaks web-0; later 20; works web-0; later 20; breaks web-0; later 20",
			"web: fail (web-0: exited with code 3 (for 60 s))"},
		{"a member that fits nowhere fails the update with that reason", back + "step; misfit web-0; later 60", "web: fail (web-0: 0/1 nodes fit: 1 memory (for 60 s)) revert"},
		{"the update waits for another member whose agent is at work", web21 + "step; runs web-0; later 10; step; runs web-1; later 10; fails web-0; step; later 9; works web-0; later 999", ""},

		{"a paused update takes no step", web21 + "pause web", ""},
		{"a failed update that is paused takes no step", web21 + "step; fails web-0; later 60; step; later 999", ""},
		{"a resumed update continues", web21 + "pause web; resume web", "web: take web-0"},
		{"an undo updates members one at a time", web21 + "step; runs web-0; later 10; step; undo web", "web: take web-1"},
		{"another update supersedes a running update", web21 + "step; update web 3 to 3 by 2", "web: take web-0,web-1"},
		{"a completed update needs no step", "update web 1 to 2 by 1; step; runs web-0; later 10; step; later 999", ""},

		{"start-first makes the extra member first", "update web 3 to 2 by 1 first", "web: take web-3"},
		{"start-first changes no member before the extra member has settled", "update web 3 to 2 by 1 first; step; runs web-3; later 3", "wake up in 7 s"},
		{"start-first changes a member once the extra member has settled", "update web 3 to 2 by 1 first; step; runs web-3; later 10", "web: settle web-3 take web-0"},
		{"an extra member that fits nowhere fails the update with that reason", "update web 3 to 2 by 1 first; step; misfit web-3; later 60",
			"web: fail (web-3: 0/1 nodes fit: 1 memory (for 60 s))"},
		{"an extra member that the same step moves counts as unavailable", "update web 3 to 2 by 1 first; step; runs web-3; later 10; step; runs web-0; later 10; leaves web-3",
			"web: settle web-0"},
		{"canaries are changed first, and then the update waits", "update web 3 to 2 by 2 canary; step; runs web-0; later 10", "web: settle web-0 await"},
		{"an update that waits for its promotion takes no step", "update web 3 to 2 by 2 canary; step; runs web-0; later 10; step; later 999", ""},
		{"a promoted update goes on", "update web 3 to 2 by 2 canary; step; runs web-0; later 10; step; promote web", "web: take web-1,web-2"},
		{"an aborted update goes back", "update web 3 to 2 by 2 canary; step; runs web-0; later 10; step; abort web", "web: take web-0"},
		{"an aborted start-first canary leaves no other member to change", "update web 3 to 2 by 1 first canary; step; runs web-3; later 10; step; abort web", "web: complete"},
		{"a canary that fails while the update waits has a deadline", "update web 3 to 2 by 2 canary; step; runs web-0; later 10; step; fails web-0", "wake up in 60 s"},
		{"a canary that fails for too long fails the update", "update web 3 to 2 by 2 canary back; step; runs web-0; later 10; step; fails web-0; later 60", late + " revert"},

		{"each group has its own max_parallel", web21 + "update api 2 to 2 by 2", "api: take api-0,api-1; web: take web-0"},
		{"groups settle and fail independently", web21 + "update api 2 to 2 by 1; step; runs api-0; fails web-0; later 10", "api: settle api-0 take api-1; wake up in 50 s"},
		{"a failure of one group does not pause another", web21 + "step; fails web-0; later 60; update api 2 to 2 by 1", "api: take api-0; " + late},
		{"the earliest deadline of all groups counts", web21 + "step; later 20; update api 2 to 2 by 1; step", "wake up in 40 s"},
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
				t.Errorf("the planner proposes for the updates\n     %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestRolloutStepsAreFenced: the command for a step of a rollout names the leadership term and the
// rollout. So neither the command of a deposed leader nor a command for a rollout that another one
// has replaced changes a member.
func TestRolloutStepsAreFenced(t *testing.T) {
	w := newGroupWorld(t, "web 2")
	w.play("update web 2 to 2 by 1")
	steps, _ := w.next()
	if len(steps) != 1 {
		t.Fatalf("the planner proposes %d steps of updates, want 1", len(steps))
	}
	r, _ := w.state.Rollout("web")
	head, body := steps[0].GetHead(), steps[0].GetAdvanceRollout()
	if e := head.GetEpoch(); e.GetIncarnation() != rolloutEpoch.Incarnation || e.GetTerm() != rolloutEpoch.Term || head.GetAt() != w.now || head.GetBy() != "leader" {
		t.Errorf("the head of the command is %v, want one with the epoch and the time of the leader", head)
	}
	if head.GetNamespaceShare() != fsm.NamespaceShare || head.GetRoomReserve() != fsm.AdminReserve {
		t.Errorf("the head has the namespace share %d %% and the reserve %d %%, want those of a confined user", head.GetNamespaceShare(), head.GetRoomReserve())
	}
	if id := body.GetIfRollout(); id.GetIncarnation() != r.Incarnation || id.GetSequence() != r.Sequence || r.Sequence == 0 {
		t.Errorf("the command names the update %v, want %d.%d", id, r.Incarnation, r.Sequence)
	}
	w.play("update web 2 to 3 by 1")
	_, res, _ := w.state.Apply(fsm.Meta{Index: w.index + 1, Term: 4}, steps[0])
	if res.Skipped != 1 {
		t.Errorf("a step for a superseded update must be skipped, but returned %+v", res)
	}
}

// TestRolloutsOfObedientNodes runs whole updates on a node that carries out every order, except for members
// that cannot start. It counts the unavailable members at every step.
func TestRolloutsOfObedientNodes(t *testing.T) {
	for _, c := range []struct {
		name, update string
		breaks       map[int]string // for each version: the member that never starts in that version
		missing      int            // largest number of unavailable members at any time
		want         string         // versions of the members at the end, and the phase of the rollout
	}{
		{"an update changes one member at a time", "update web 5 to 2 by 1", nil, 1, "22222 Completed"},
		{"with max_parallel 2, an update changes two members at a time", "update web 5 to 2 by 2", nil, 2, "22222 Completed"},
		{"with max_parallel 5, an update changes all members at once", "update web 5 to 2 by 5", nil, 5, "22222 Completed"},
		{"an update to more members creates the additional members", "update web 7 to 2 by 1", nil, 2, "2222222 Completed"},
		{"an update to fewer members deletes the surplus members", "update web 3 to 2 by 1", nil, 1, "222 Completed"},
		{"an update pauses if its first member fails", "update web 5 to 2 by 1", map[int]string{2: "web-0"}, 1, "21111 Paused"},
		{"while one member fails, other members are updated", "update web 5 to 2 by 2", map[int]string{2: "web-1"}, 2, "22222 Paused"},
		{"an update pauses if a member in the middle fails", "update web 5 to 2 by 1", map[int]string{2: "web-2"}, 1, "22211 Paused"},
		{"a failed update reverts", "update web 5 to 2 by 1 back", map[int]string{2: "web-2"}, 1, "11111 Completed"},
		{"a revert that fails pauses", "update web 5 to 2 by 1 back", map[int]string{1: "web-1", 2: "web-1"}, 1, "21111 Paused"},
		{"start-first: no member of the group is unavailable beyond the surge member", "update web 5 to 2 by 1 first", nil, 1, "22222 Completed"},
		{"start-first, max_parallel 2: two members are changed at a time", "update web 5 to 2 by 2 first", nil, 2, "22222 Completed"},
		{"start-first: an update whose surge member fails pauses", "update web 5 to 2 by 1 first", map[int]string{2: "web-5"}, 1, "111112 Paused"},
		{"start-first: an update whose surge member fails reverts", "update web 5 to 2 by 1 first back", map[int]string{2: "web-5"}, 1, "11111 Completed"},
		{"start-first: an update of which a member fails reverts", "update web 5 to 2 by 1 first back", map[int]string{2: "web-2"}, 1, "11111 Completed"},
		{"an update with a canary waits for its promotion", "update web 5 to 2 by 1 canary", nil, 1, "21111 AwaitPromotion"},
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
					t.Fatalf("%d members are unavailable during the update, want at most %d; versions of the members and phase: %s", missing, c.missing, w.versions("web"))
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
				t.Errorf("at the end the versions of the members and the phase of the update are %q, want %q", got, c.want)
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

// versions returns, as text, the version of the specification of each remaining member, and the
// phase of the rollout.
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
		{"while one member is unavailable the others are held", "update web 3 to 2 by 1; step", "web-1", true},
		{"a member that has not settled is held", "update web 3 to 2 by 1; step; runs web-0", "web-0", true},
		{"an unavailable member is not held", "update web 3 to 2 by 1; step", "web-0", false},
		{"with max_parallel 2 a second member is not held", "update web 3 to 2 by 2; fails web-0", "web-1", false},
		{"with max_parallel 2 other members are held if the same step moves one", "update web 3 to 2 by 2; fails web-0; leaves web-2", "web-1", true},
		{"a member that is moved already is not held", "update web 3 to 2 by 1; leaves web-1", "web-1", false},
		{"start-first holds the members until the extra member has settled", "update web 3 to 2 by 1 first; step; runs web-3; later 10", "web-1", true},
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
				t.Errorf("heldByRollout returns %[2]v for workload %[1]s, want %[3]v", c.id, got, c.want)
			}
		})
	}
}
