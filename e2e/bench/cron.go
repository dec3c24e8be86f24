package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
)

const (
	cronCount   = 10_000
	cronNodes   = 1000
	cronWarm    = 5 // minutes of warm-up; from then on each cron deletes an old run for each new run
	cronMinutes = 5 // measured minutes
)

// cron10k plans 10,000 crons that fire each minute. In each minute all runs are created, placed and
// ordered, end with success, and the oldest ones are deleted. It measures only the CPU time of the planning
// steps, which includes the garbage collection during a step.
func cron10k(ctx context.Context, _ *env) (result, error) {
	w, err := newWorld()
	w.keepChanges = true
	for i := 0; i < cronNodes && err == nil; i++ {
		err = w.register(&commandv1.RegisterNode{
			Id: fmt.Sprintf("node-%04d", i), Endpoint: fmt.Sprintf("10.0.%d.%d:50051", i/250, i%250), CpuMillicores: 64_000, MemoryMib: 262_144,
			Types: []string{"container"}, Protocol: 1, InstanceId: fmt.Sprint("i-", i), EngineId: fmt.Sprint("e-", i),
		})
	}
	for i := 0; i < cronCount && err == nil; i += 500 {
		err = w.crons(numbered("cron-%05d", i, 500)...)
	}
	p := &cronPlanner{planner: planner{world: w, cache: sched.NewCache()}, sent: map[sched.Order]bool{}}
	if err == nil {
		err = p.minute(ctx) // chooses the first times
	}
	began := 0.0
	for i := 0; i < cronWarm+cronMinutes && err == nil; i++ {
		if i == cronWarm {
			began, p.steps, p.longest = p.cpu, 0, 0
		}
		w.now += int64(time.Minute) - w.now%int64(time.Minute)
		made := p.runs
		if err = p.minute(ctx); err == nil && p.runs-made != cronCount {
			err = fmt.Errorf("%d runs ended in minute %d, want %d", p.runs-made, i, cronCount)
		}
	}
	if err != nil {
		return result{}, err
	}
	used := p.cpu - began
	return result{ours: used / (cronMinutes * 60) * 100, unit: "percent_of_a_core", goal: 5, lower: true,
		note: fmt.Sprintf("%d crons on %d nodes, each with one run a minute; %.2f s of CPU in %d minutes, %d planning steps, longest %.0f ms",
			cronCount, cronNodes, used, cronMinutes, p.steps, p.longest.Seconds()*1000)}, nil
}

// cronPlanner is a planner whose nodes carry out orders, a thousand between two planning steps, and run every
// job to its end. It also implements the planner's liveness table, which says which nodes are alive.
type cronPlanner struct {
	planner
	allLive
	sent    map[sched.Order]bool // orders that the nodes have not carried out
	queue   []sched.Order        // the orders in sent, oldest first
	ends    []*commandv1.WorkloadReport
	cpu     float64 // seconds of CPU time of all planning steps
	steps   int
	longest time.Duration
	runs    int // number of runs that have ended
}

// Outstanding implements sched.Liveness.
func (p *cronPlanner) Outstanding(o sched.Order) bool { return p.sent[o] }

// minute runs planning steps until a step has no commands and no orders, and the nodes have carried out all
// orders and reported the ends of all jobs.
func (p *cronPlanner) minute(ctx context.Context) error {
	for ctx.Err() == nil {
		busy, err := p.advance()
		if err != nil || !busy && len(p.queue)+len(p.ends) == 0 {
			return err
		}
		if err := p.answer(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// advance runs one planning step and applies its commands. busy means that the step had commands or orders.
func (p *cronPlanner) advance() (busy bool, err error) {
	in := sched.World{State: p.view(), Changes: p.takeChanges(), Live: p, Now: p.now, Epoch: worldEpoch}
	before, began := cpuSelf(), time.Now()
	out := sched.Next(in, p.cache)
	p.cpu += cpuSelf() - before
	p.steps, p.longest = p.steps+1, max(p.longest, time.Since(began))
	for _, o := range out.Orders {
		p.sent[o] = true
	}
	p.queue = append(p.queue, out.Orders...)
	for _, c := range out.Commands {
		err = errors.Join(err, p.do(c))
	}
	return len(out.Commands)+len(out.Orders) > 0, err
}

// answer acts as the nodes: it reports that the jobs which it started in the last call have ended, and
// carries out the next thousand orders.
func (p *cronPlanner) answer() error {
	reports := p.ends
	p.runs, p.ends = p.runs+len(p.ends), nil
	n := min(len(p.queue), 1000)
	for _, o := range p.queue[:n] {
		delete(p.sent, o)
		r := &commandv1.WorkloadReport{
			Workload: o.Workload, Node: o.Node, ObservedAt: p.now,
			Generation: fsm.GenerationPB(o.Generation),
		}
		reports = append(reports, r)
		if o.Op == sched.OpDelete {
			r.Gone = true
			continue
		}
		r.Acknowledged, r.State = true, string(fsm.ActualRunning)
		end := r.CloneVT()
		end.State, end.Code = string(fsm.ActualStopped), fsm.CodeCompleted
		end.Exit = &commandv1.Exit{StartedAt: p.now, EndedAt: p.now}
		p.ends = append(p.ends, end)
	}
	p.queue = p.queue[n:]
	if len(reports) == 0 {
		return nil
	}
	return p.report(reports...)
}

// cpuSelf returns the CPU time of this process in seconds.
func cpuSelf() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // the arguments are valid
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// crons adds crons that fire each minute to the state.
func (w *world) crons(ids ...string) error {
	puts := make([]*commandv1.WorkloadPut, len(ids))
	for i, id := range ids {
		puts[i] = &commandv1.WorkloadPut{Id: id, Spec: []byte("spec"), Content: fmt.Sprintf("c1:%064x", i), Desired: "Running", MaxAttempts: 1,
			Demand: &commandv1.Demand{
				Type: "container", CpuMillicores: 100, MemoryMib: 64, Job: &commandv1.Job{},
				Template: &commandv1.Template{Kind: fsm.TemplateCron, Cron: &commandv1.Cron{
					Schedule: "* * * * *", TimeZone: "UTC", Concurrency: fsm.ConcurrencyAllow, KeepSucceeded: 3, KeepFailed: 1,
				}},
			}}
	}
	return w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: puts}}})
}
