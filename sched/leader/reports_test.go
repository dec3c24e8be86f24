package leader

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

func TestReportsAreCommittedOnce(t *testing.T) {
	// In each case, web runs on node a, its agent has acknowledged the order, and all commands and calls of the
	// leader have been answered.
	for _, c := range []struct {
		fact string
		fn   func(*testing.T, *world)
	}{
		{"a transition is committed within 100 ms", func(t *testing.T, w *world) {
			r := w.running("web")
			r.Observation.State = fsm.ActualFailed
			go w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{r}})
			w.pass(110 * time.Millisecond)
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualFailed)
		}},
		{"of several reports within a window only the latest is committed", func(t *testing.T, w *world) {
			before := w.log.count("report")
			for i := range 5 {
				r := w.running("web")
				r.Observation.Message = fmt.Sprint("word ", i)
				go w.beat(sched.Heartbeat{Node: "a", Sequence: uint64(i + 1), Reports: []sched.Reported{r}})
				w.pass(time.Millisecond)
			}
			w.pass(300 * time.Millisecond)
			is(t, `message in the record of workload "web", from the last report`, w.workload("web").Actual.Message, "word 4")
			if n := w.log.count("report") - before; n > 2 {
				t.Errorf("the leader committed %d report commands for the 5 reports, want at most 2", n)
			}
		}},
		{"a report about a former generation is not committed", func(t *testing.T, w *world) {
			r := w.running("web")
			r.Observation.Generation.Sequence--
			r.Observation.State = fsm.ActualFailed
			before := w.log.count("report")
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, "number of new report commands in the log", w.log.count("report")-before, 0)
		}},
		{"a report about a workload of another node is not committed", func(t *testing.T, w *world) {
			w.register("b")
			r := w.running("web")
			r.Observation.State = fsm.ActualFailed
			before := w.log.count("report")
			w.beat(sched.Heartbeat{Node: "b", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, "number of new report commands in the log", w.log.count("report")-before, 0)
		}},
		{"a workload that was placed elsewhere is deleted once on a node that still reports it", func(t *testing.T, w *world) {
			w.register("b")
			orders := 0
			w.agents.on("b", func(_ context.Context, o sched.Order) (sched.Ack, error) {
				orders++
				is(t, "order to the node that still reports the workload", o, sched.Order{Op: sched.OpDelete, Node: "b", Workload: "web", Generation: w.workload("web").Generation})
				return sched.Ack{Gone: true}, nil
			})
			r := w.running("web")
			r.Observation.Generation.Sequence--
			before := w.log.count("report")
			w.beat(sched.Heartbeat{Node: "b", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, "number of orders to that node", orders, 1)
			is(t, "number of new report commands in the log", w.log.count("report")-before, 2)
			_, ok := w.view().Residual("b", "web")
			is(t, "there is a residual of the workload", ok, false)
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
		}},
		{"a reported workload whose delete is ordered already is not committed again", func(t *testing.T, w *world) {
			w.register("b")
			w.agents.on("b", func(context.Context, sched.Order) (sched.Ack, error) { return sched.Ack{Accepted: true}, nil })
			r := w.running("web")
			r.Observation.Generation.Sequence--
			before := w.log.count("report")
			for i := range 3 {
				w.beat(sched.Heartbeat{Node: "b", Sequence: uint64(i + 1), Reports: []sched.Reported{r}})
				w.pass(time.Second)
			}
			is(t, "number of new report commands in the log", w.log.count("report")-before, 1)
			_, ok := w.view().Residual("b", "web")
			is(t, "there is a residual of the workload", ok, true)
		}},
		{"a deleted workload is deleted once on a node that still reports it", func(t *testing.T, w *world) {
			w.register("b")
			r := w.running("web")
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web", Force: true}}})
			g, _ := w.view().Tombstone("web")
			orders := 0
			w.agents.on("b", func(_ context.Context, o sched.Order) (sched.Ack, error) {
				orders++
				is(t, "order to the node that still reports the workload", o, sched.Order{Op: sched.OpDelete, Node: "b", Workload: "web", Generation: g.Generation})
				return sched.Ack{Gone: true}, nil
			})
			before := w.log.count("report")
			w.beat(sched.Heartbeat{Node: "b", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, "number of orders to that node", orders, 1)
			// Three reports are committed: the report of node b, the answer of b to its order, and the answer
			// of node a to the delete. Two of them may be in one commit.
			if n := w.log.count("report") - before; n < 2 || n > 3 {
				t.Errorf("the leader committed %d report commands, want 2 or 3", n)
			}
			_, ok := w.view().Residual("b", "web")
			is(t, "there is a residual of the workload", ok, false)
		}},
		{"after a restore, a workload is assigned to the node that reports a later generation", func(t *testing.T, w *world) {
			w.register("b")
			r := w.running("web")
			r.Observation.Generation.Sequence++
			w.restored()
			orders := 0
			w.agents.on("b", func(_ context.Context, o sched.Order) (sched.Ack, error) {
				orders++
				is(t, `operation of the order to node "b"`, o.Op, sched.OpApply)
				return sched.Ack{Accepted: true}, nil
			})
			w.beat(sched.Heartbeat{Node: "b", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, `node of workload "web"`, w.workload("web").Node, "b")
			is(t, `number of orders to node "b"`, orders, 1)
		}},
		{"bound ports and addresses reach the state", func(t *testing.T, w *world) {
			r := w.running("web")
			r.Observation.Ports = []fsm.PortBinding{{HostPort: 32768, ContainerPort: 80, Protocol: "tcp"}}
			r.Observation.Addresses = []string{"172.17.0.2"}
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, `ports in the record of workload "web"`, fmt.Sprint(w.workload("web").Actual.Ports), "[{32768 80 tcp }]")
			is(t, `addresses in the record of workload "web"`, fmt.Sprint(w.workload("web").Actual.Addresses), "[172.17.0.2]")
		}},
		{"a workload that a complete list does not name is Missing", func(t *testing.T, w *world) {
			w.beat(sched.Heartbeat{Node: "a", Full: true})
			w.pass(time.Second)
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualMissing)
			is(t, `node of workload "web"`, w.workload("web").Node, "a")
		}},
		{"a workload that a complete list names at a former generation is Missing", func(t *testing.T, w *world) {
			r := w.running("web")
			r.Observation.Generation.Sequence--
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualMissing)
		}},
		{"a workload that is to be stopped and runs at a former generation is ordered to stop again", func(t *testing.T, w *world) {
			r := w.running("web")
			w.do(&commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: "web", Desired: "Stopped"}}})
			w.pass(time.Second)
			is(t, `the order of workload "web" is acknowledged`, w.workload("web").Acknowledged, true)
			before := w.workload("web").Generation
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{r}})
			w.pass(200 * time.Millisecond)
			x := w.workload("web")
			is(t, `reported state of workload "web"`, x.Actual.State, fsm.ActualRunning)
			is(t, `number of counted failures of workload "web"`, x.Retry.Attempts, 1)
			w.alive(6*time.Second, "a")
			is(t, `workload "web" gets a newer order`, before.Less(w.workload("web").Generation), true)
		}},
		{"many long reports are committed in several commands", func(t *testing.T, w *world) {
			var said []sched.Reported
			for i := range 400 {
				id := fmt.Sprintf("many-%d", i)
				w.put(id, func(p *commandv1.WorkloadPut) { p.Demand.CpuMillicores, p.Demand.MemoryMib = 1, 1 })
			}
			w.pass(2 * time.Second)
			for i := range 400 {
				r := w.running(fmt.Sprintf("many-%d", i))
				r.Observation.State, r.Observation.Message = fsm.ActualFailed, strings.Repeat("x", 4<<10)
				said = append(said, r)
			}
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: append(said, w.running("web"))})
			w.pass(time.Second)
			is(t, `number of counted failures of workload "many-399"`, w.workload("many-399").Retry.Attempts, 1)
			w.log.set(func(l *fakeLog) {
				for _, e := range l.entries {
					for _, c := range e {
						if size := c.SizeVT(); size > 256<<10 {
							t.Errorf("command %s has %d bytes, want at most 256 KiB", fsm.ArmName(c), size)
						}
					}
				}
			})
		}},
		{"a list that is not complete makes no workload Missing", func(t *testing.T, w *world) {
			w.beat(sched.Heartbeat{Node: "a"})
			w.pass(time.Second)
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualRunning)
		}},
		{"a workload whose order was not acknowledged is not Missing", func(t *testing.T, w *world) {
			w.agents.on("a", broken)
			w.put("api")
			w.pass(time.Second)
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
			w.pass(time.Second)
			is(t, `reported state of workload "api"`, w.workload("api").Actual.State, fsm.ActualNone)
		}},
		{"a workload whose order was just answered is not Missing", func(t *testing.T, w *world) {
			w.put("api")
			w.pass(120 * time.Millisecond) // the order for web is acknowledged, and its report is committed
			is(t, `the order of workload "api" is acknowledged`, w.workload("api").Acknowledged, true)
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
			w.pass(time.Second)
			is(t, `reported state of workload "api"`, w.workload("api").Actual.State, fsm.ActualPending)
		}},
		{"a Missing workload that is reported again within the grace is not retried", func(t *testing.T, w *world) {
			before := w.workload("web").Generation
			w.beat(sched.Heartbeat{Node: "a", Full: true})
			w.alive(10*time.Second, "a")
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
			w.alive(20*time.Second, "a")
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualRunning)
			is(t, `generation of workload "web"`, w.workload("web").Generation, before)
		}},
		{"a gone report removes a residual of the same generation", func(t *testing.T, w *world) {
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) { return sched.Ack{Accepted: true}, nil })
			w.do(&commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: "web"}}})
			w.settle()
			r, ok := w.view().Residual("a", "web")
			is(t, "there is a residual of the workload", ok, true)
			older := fsm.Generation{Incarnation: r.Generation.Incarnation, Sequence: r.Generation.Sequence - 1}
			gone := func(g fsm.Generation) sched.Reported {
				return sched.Reported{Workload: "web", Gone: true, Observation: fsm.Observation{Generation: g}}
			}
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{gone(older)}})
			w.pass(time.Second)
			_, ok = w.view().Residual("a", "web")
			is(t, "there is a residual after a gone report of an older generation", ok, true)
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{gone(r.Generation)}})
			w.pass(time.Second)
			_, ok = w.view().Residual("a", "web")
			is(t, "there is a residual after a gone report of the same generation", ok, false)
			is(t, "number of workloads in the state", w.view().WorkloadCount(), 0)
		}},
		{"a gone report about an unknown workload is not committed", func(t *testing.T, w *world) {
			before := w.log.count("report")
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{{Workload: "x", Gone: true}}})
			w.pass(time.Second)
			is(t, "number of new report commands in the log", w.log.count("report")-before, 0)
		}},
		{"reports of a legacy v1 agent, which have no generation, count once it has acknowledged the order", func(t *testing.T, w *world) {
			r := sched.Reported{Workload: "web", Observation: fsm.Observation{State: fsm.ActualFailed}}
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{r}})
			w.pass(time.Second)
			is(t, `reported state of workload "web"`, w.workload("web").Actual.State, fsm.ActualFailed)
		}},
		{"the answer to an order does not replace a later report", func(t *testing.T, w *world) {
			release := make(chan bool)
			w.agents.on("a", func(context.Context, sched.Order) (sched.Ack, error) {
				<-release
				return sched.Ack{Accepted: true, State: fsm.ActualPending}, nil
			})
			w.put("api")
			w.settle()
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{w.running("api")}})
			w.pass(time.Second)
			close(release)
			w.pass(time.Second)
			is(t, `reported state of workload "api"`, w.workload("api").Actual.State, fsm.ActualRunning)
		}},
		{"a node whose report was lost is asked for its complete list", func(t *testing.T, w *world) {
			w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
			w.pass(time.Second)
			w.log.set(func(l *fakeLog) { l.fail = errNotLeader })
			r := w.running("web")
			r.Observation.Message = "news"
			w.beat(sched.Heartbeat{Node: "a", Reports: []sched.Reported{r}})
			w.pass(time.Second)
			w.log.set(func(l *fakeLog) { l.fail = nil })
			is(t, "the reply asks for a full report (SendFull)", w.beat(sched.Heartbeat{Node: "a"}).SendFull, true)
		}},
	} {
		t.Run(c.fact, func(t *testing.T) {
			inWorld(t, []string{"a"}, func(w *world) {
				w.put("web")
				w.pass(time.Second)
				w.beat(sched.Heartbeat{Node: "a", Full: true, Reports: []sched.Reported{w.running("web")}})
				w.pass(time.Second)
				is(t, `status of workload "web"`, w.workload("web").Status, fsm.StatusRunning)
				c.fn(t, w)
			})
		})
	}
}

func TestManyReportsFlushAtOnce(t *testing.T) {
	inWorld(t, []string{"a"}, func(w *world) {
		const n = 40
		for i := range n {
			w.put(fmt.Sprintf("w%02d", i))
		}
		w.pass(5 * time.Second)
		// The first report is committed at once. Later reports then wait at most FlushEvery, and in
		// this test they must be committed earlier, because FlushItems reports wait.
		go w.beat(sched.Heartbeat{Node: "a", Sequence: 1, Reports: []sched.Reported{w.running("w00")}})
		w.pass(time.Millisecond)
		var all []sched.Reported
		for i := range n {
			all = append(all, w.running(fmt.Sprintf("w%02d", i)))
		}
		go w.beat(sched.Heartbeat{Node: "a", Sequence: 2, Reports: all})
		w.pass(10 * time.Millisecond)
		is(t, "number of workloads with status Running", w.view().StatusCount(fsm.StatusRunning), n)
		w.pass(time.Second)
	}, func(c *Config) { c.FlushItems, c.FlushEvery = 20, time.Minute })
}
