// Command bench measures the figures of docs/architecture/performance.md. If another program can do the
// same, it is measured as the peer in the same run on the same machine:
//
//	go run ./e2e/bench            all benchmarks
//	go run ./e2e/bench failover   one of them
//
// Each benchmark prints one line
//
//	BENCH name=… ours=… peer=… ratio=… goal=… unit=… verdict=met|short
//
// A larger ratio is better for every unit. A figure that misses its goal has the verdict short and is not
// an error. Before the first benchmark, the program reports all missing prerequisites of the chosen ones
// at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/persys/compute/e2e/harness"
)

// bench is one benchmark.
type bench struct {
	name string
	what string // quantity that the benchmark measures, and the peer, in one line
	run  func(context.Context, *env) (result, error)
	soak bool // the benchmark runs only if the command line names it
	need need
}

// need names something that a benchmark requires besides the Go toolchain, such as the Docker engine.
type need string

const (
	chromium need = "chromium"          // the browser Chromium
	engine   need = "the Docker engine" // the Docker engine at DOCKER_HOST
	loop     need = "loop devices"      // loop devices, which need root
	networks need = "nft and root"      // network namespaces and the command nft
)

// result of a benchmark. If goalIsRatio is set, the goal is a ratio to the peer, otherwise it is a limit
// in unit.
type result struct {
	ours, peer  float64 // figures of Persys and of the peer; peer is 0 if there is none
	unit        string
	goal        float64
	goalIsRatio bool
	lower       bool // the smaller figure is the better one
	missed      bool // the benchmark missed another goal than the printed one; the note states it
	note        string
}

func (r result) ratio() float64 {
	if r.peer == 0 || r.ours == 0 {
		return 0
	}
	if r.lower {
		return r.peer / r.ours
	}
	return r.ours / r.peer
}

func (r result) met() bool {
	switch {
	case r.missed:
		return false
	case r.goalIsRatio:
		return r.ratio() >= r.goal
	case r.lower:
		return r.ours <= r.goal
	}
	return r.ours >= r.goal
}

func (r result) line(name string) string {
	verdict := "short"
	if r.met() {
		verdict = "met"
	}
	peer, ratio := "none", "none"
	if r.peer != 0 {
		peer, ratio = figure(r.peer), fmt.Sprintf("%.2f", r.ratio())
	}
	goal := figure(r.goal)
	if r.goalIsRatio {
		goal = fmt.Sprintf("%.2fx", r.goal)
	}
	return fmt.Sprintf("BENCH name=%s ours=%s peer=%s ratio=%s goal=%s unit=%s verdict=%s",
		name, figure(r.ours), peer, ratio, goal, r.unit, verdict)
}

func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func benches() []bench {
	return []bench{
		{name: "apply-unary", what: "acknowledged ApplyWorkload calls, 256 callers, three replicas on disk; peer: etcd puts", run: applyUnary},
		{name: "apply-many", what: "acknowledged applies, many per call; peer: etcd, 16 puts per transaction", run: applyMany},
		{name: "apply-hop", what: "applies through a follower; peer: applies to the leader", run: applyHop},
		{name: "place-5k", what: "placements over 5,000 nodes with every filter on, one core; peer: a scan of all nodes", run: place5k},
		{name: "place-constraints", what: "placements over 5,000 nodes in 50 zones with spread, anti-affinity and constraints, one core; peer: half the speed without rules", run: placeConstraints},
		{name: "rebalance-5k", what: "time to find 1,000 moves of 50,000 workloads over 5,000 nodes of which 500 are new; peer: none", run: rebalance5k},
		{name: "failover", what: "leader killed to next acknowledged write, median of 20; peer: etcd", run: failover},
		{name: "failover-hang", what: "leader stopped with SIGSTOP to next acknowledged write, median of 5; peer: etcd", run: failoverHang},
		{name: "disk-stall", what: "file system of the leader frozen to next acknowledged write, median of 10, and no election from stalls of 300 ms; peer: etcd", run: diskStall, need: loop},
		{name: "transfer", what: "planned transfer of leadership, median of 20; peer: etcd move-leader", run: transfer},
		{name: "idle", what: "resident memory of one of three idle replicas with 100 agents; peer: none", run: idle},
		{name: "idle-cpu", what: "CPU of the busiest of three idle replicas with 100 agents; peer: none", run: idleCPU},
		{name: "step-100k", what: "one planning step over 100,000 converged workloads, 99th percentile; peer: none", run: step100k},
		{name: "cron-10k", what: "CPU for planning 10,000 crons that fire each minute; peer: none", run: cron10k},
		{name: "heartbeat-10k", what: "CPU of the leader with 10,000 agents at a heartbeat every 10 s; peer: none", run: heartbeat10k},
		{name: "dns-srv", what: "SRV answers over UDP with 10,000 nodes and 50,000 workloads; peer: CoreDNS with the same zone in a file", run: dnsSRV},
		{name: "dns-a", what: "A answers over UDP with 10,000 nodes and 50,000 workloads; peer: CoreDNS with the same zone in a file", run: dnsA},
		{name: "dns-p99", what: "99th percentile of the delay of answers at half of the peak, the worse of A and SRV; peer: CoreDNS at half of its own", run: dnsTail},
		{name: "dns-change", what: "time from the commit of a change to the first answer with it, 99th percentile; peer: CoreDNS loading its file again", run: dnsChange},
		{name: "mirror-rate", what: "changed records that the mirror writes into one local etcd; peer: an etcd client with the same puts, batched", run: mirrorRate},
		{name: "mirror-lag", what: "highest age of a change that is not in etcd yet, at 1,000 changes per second; peer: none", run: mirrorLag},
		{name: "gateway-hop", what: "time that the gateway adds to a call, at the median; peer: none", run: gatewayHop},
		{name: "console-first-view", what: "bytes until the console's list of 10,000 workloads can be used, in Chromium with an empty cache; peer: none", run: consoleFirstView, need: chromium},
		{name: "list-10k", what: "persysctl list of 10,000 workloads: start to first line; peer: none", run: list10k},
		{name: "secret-rotate", what: "a new version of a secret until 1,000 workloads on 100 simulated nodes have it, with on_change: signal; peer: none", run: secretRotate},
		{name: "drift-1k", what: "a round of drift detection over 1,000 nodes of 50 workloads, over gRPC; peer: none", run: drift1k},
		{name: "containers-50", what: "fifty containers from apply to Running on one node; peer: the API of Docker, the best of 8, 16, 32 and 50 at a time", run: containers50, need: engine},
		{name: "containers-50-swarm", what: "fifty containers from apply to Running on one node; peer: a Docker Swarm service of fifty replicas on the same engine", run: containers50Swarm, need: engine},
		{name: "jobs", what: "one-shot containers per second, from apply to the recorded exit code; peer: the API of Docker, the best of 4, 8, 16 and 32 at a time", run: jobs, need: engine},
		{name: "heartbeat-200", what: "CPU of an agent for each of its heartbeats, with 200 workloads; peer: none", run: heartbeat200},
		{name: "agent-idle", what: "resident memory of an agent with fifty containers; peer: none", run: agentIdle, need: engine},
		{name: "agent-idle-cpu", what: "CPU of an agent with fifty containers; peer: none", run: agentIdleCPU, need: engine},
		{name: "vip", what: "requests a second through the address of one of 10,000 services with ten instances, each over a new connection; peer: a proxy in user space", run: vip, need: networks},
		{name: "net-update", what: "changed instances a second on one machine with 10,000 services; peer: the command nft with the same elements", run: netUpdate, need: networks},
		{name: "soak-elections", what: "elections in ten minutes of full load", run: soakElections, soak: true},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	program := run
	if len(os.Args) == 2 && os.Args[1] == serveDNSArg {
		program = func(ctx context.Context, _ []string) error { return serveDNS(ctx, os.Stdin, os.Stdout) }
	}
	if err := program(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) (err error) {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	if err := missing(ctx, chosen); err != nil {
		return err
	}
	e, err := newEnv(ctx)
	if err != nil {
		return err
	}
	defer e.close()
	for _, b := range chosen {
		fmt.Printf("# %s: %s\n", b.name, b.what)
		r, err := b.run(ctx, e)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		if r.note != "" {
			fmt.Printf("# %s: %s\n", b.name, r.note)
		}
		fmt.Println(r.line(b.name))
	}
	return nil
}

// missing returns an error that lists the prerequisites that this machine lacks.
func missing(ctx context.Context, chosen []bench) error {
	var errs []error
	for _, b := range chosen {
		var err error
		switch b.need {
		case chromium:
			_, err = exec.LookPath(string(chromium))
		case engine:
			var e *harness.Engine
			if e, err = harness.OpenEngine(ctx); err == nil {
				err = e.Close()
			}
		case networks:
			if _, err = exec.LookPath("nft"); err == nil && os.Geteuid() != 0 {
				err = errors.New("this user is not root")
			}
		case loop:
			err = harness.CanOpenDisk()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s needs %s: %w", b.name, b.need, err))
		}
	}
	if len(errs) > 0 {
		errs = append(errs, errors.New("run make bench, which installs what is missing (hack/install-test-deps.sh), or start the Docker engine"))
	}
	return errors.Join(errs...)
}

func choose(names []string) ([]bench, error) {
	var out []bench
	if len(names) == 0 {
		for _, b := range benches() {
			if !b.soak {
				out = append(out, b)
			}
		}
		return out, nil
	}
	var known []string
	for _, n := range names {
		found := false
		for _, b := range benches() {
			if b.name == n {
				out, found = append(out, b), true
			}
		}
		if !found {
			for _, b := range benches() {
				known = append(known, b.name)
			}
			return nil, fmt.Errorf("there is no benchmark %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return out, nil
}
