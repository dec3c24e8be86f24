package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
)

// What is asked about: a zone that holds both of ours, so that one file says it
// all to the peer.
const (
	dnsNodes     = 10_000
	dnsWorkloads = 50_000
	dnsChunk     = 500
	dnsDomain    = "persys.local"
	dnsAgents    = "agents." + dnsDomain
)

func dnsConfig() dnsserver.Config {
	return dnsserver.Config{Domain: dnsDomain, AgentsDomain: dnsAgents}
}

func nodeIP(i int) string       { return fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255) }
func workloadIP(i int) string   { return fmt.Sprintf("172.%d.%d.%d", 16+i>>16, i>>8&255, i&255) }
func nodeOf(workload int) int   { return workload % dnsNodes }
func hostPort(workload int) int { return 20000 + workload/dnsNodes }

func nodeHost(i int) string     { return fmt.Sprintf("node-%d.default.%s.", i, dnsAgents) }
func workloadHost(i int) string { return fmt.Sprintf("w-%d.default.workloads.%s.", i, dnsDomain) }
func workloadSRV(i int) string  { return "_80._tcp." + workloadHost(i) }

// dnsWorld is a state of the size of the benchmarks, made by commands like any.
type dnsWorld struct {
	state fsm.State
	index uint64
	feed  []fsm.Change
}

func (w *dnsWorld) do(c fsm.Command) error {
	w.index++
	c.Head = &commandv1.Head{At: int64(w.index) * 1e9, By: "bench", Epoch: &commandv1.Epoch{Incarnation: w.state.Info().Incarnation, Term: 1}}
	s, res, changes := w.state.Apply(fsm.Meta{Index: w.index, Term: 1}, c)
	if res.Kind != fsm.OK || res.Skipped > 0 {
		return fmt.Errorf("%v, skipped %d: %s", res.Kind, res.Skipped, res.Reason)
	}
	w.state, w.feed = s, append(w.feed, changes...)
	return nil
}

func (w *dnsWorld) generation(id string) *commandv1.Generation {
	wl, _ := w.state.Workload(id)
	return &commandv1.Generation{Incarnation: wl.Generation.Incarnation, Sequence: wl.Generation.Sequence}
}

// report says that workloads first to first+n-1 run, at the addresses given.
func (w *dnsWorld) report(first, n int, ip func(int) string) error {
	said := make([]*commandv1.WorkloadReport, n)
	for i := range said {
		id := fmt.Sprint("w-", first+i)
		said[i] = &commandv1.WorkloadReport{
			Workload: id, Node: fmt.Sprint("node-", nodeOf(first+i)), Generation: w.generation(id), Acknowledged: true, State: "Running",
			ObservedAt: int64(w.index), Addresses: []string{ip(first + i)},
			Ports: []*commandv1.PortBinding{{HostPort: uint32(hostPort(first + i)), ContainerPort: 80, Protocol: "tcp"}},
		}
	}
	return w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: said}}})
}

func newDNSWorld() (*dnsWorld, error) {
	w := &dnsWorld{state: fsm.New()}
	commands := []fsm.Command{
		{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "bench", Incarnation: 1000}}},
		{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{
			Id: "r1", Name: "s1", GrpcAddr: "10.0.0.1:8085", DnsAddr: "10.0.0.1:8053", FeatureLevel: 1}}},
	}
	for _, c := range commands {
		if err := w.do(c); err != nil {
			return nil, err
		}
	}
	for i := range dnsNodes {
		if err := w.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: fmt.Sprint("node-", i), Endpoint: nodeIP(i) + ":50051", CpuMillicores: 1e6, MemoryMib: 1e6, LeaseSeconds: 10, Protocol: 1,
		}}}); err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
	}
	for first := 0; first < dnsWorkloads; first += dnsChunk {
		puts := make([]*commandv1.WorkloadPut, dnsChunk)
		for i := range puts {
			puts[i] = &commandv1.WorkloadPut{
				Id: fmt.Sprint("w-", first+i), Spec: []byte("s"), Content: "c1:0123456789abcdef", Desired: "Running",
				Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1, MemoryMib: 1},
			}
		}
		err := w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: puts}}})
		to := make([]*commandv1.Assignment, dnsChunk)
		for i := range to {
			id := fmt.Sprint("w-", first+i)
			to[i] = &commandv1.Assignment{Workload: id, Node: fmt.Sprint("node-", nodeOf(first+i)), IfGeneration: w.generation(id)}
		}
		if err == nil {
			err = w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: to}}})
		}
		if err == nil {
			err = w.report(first, dnsChunk, workloadIP)
		}
		if err != nil {
			return nil, fmt.Errorf("workloads from %d: %w", first, err)
		}
	}
	w.feed = nil
	return w, nil
}

// writeZone writes what the state says in DNS as a zone file; moved workload, if
// any (-1 = none), is at ip.
func writeZone(path string, serial, moved int, ip string) (err error) {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(f, 1<<20)
	scheduler := "persys-scheduler." + dnsDomain + "."
	fmt.Fprintf(b, "%s. 60 IN SOA %s hostmaster.%[1]s. %[3]d 60 10 600 5\n", dnsDomain, scheduler, serial)
	fmt.Fprintf(b, "%s. 60 IN NS s1.%s\n%s 5 IN A 10.0.0.1\ns1.%[3]s 5 IN A 10.0.0.1\n", dnsDomain, scheduler, scheduler)
	for _, service := range []string{"_persys-scheduler.", "_persys-scheduler._tcp."} {
		fmt.Fprintf(b, "%s%s. 5 IN SRV 20 100 8085 s1.%s\n", service, dnsDomain, scheduler)
	}
	for i := range dnsNodes {
		fmt.Fprintf(b, "%s 30 IN A %s\n_persys-agent._tcp.%[1]s 30 IN SRV 0 100 50051 %[1]s\n", nodeHost(i), nodeIP(i))
	}
	for i := range dnsWorkloads {
		at := workloadIP(i)
		if i == moved {
			at = ip
		}
		fmt.Fprintf(b, "%s 5 IN A %s\n%s 5 IN SRV 0 100 %d %s\n", workloadHost(i), at, workloadSRV(i), hostPort(i), nodeHost(nodeOf(i)))
	}
	if err := errors.Join(b.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// serveDNSArg makes this program be the server under test: the very package that
// schedulers run, in a process of its own, over a state of the benchmarks' size.
const serveDNSArg = "serve-dns"

// serveDNS says where it listens, then obeys "move WORKLOAD IP" lines: it commits
// that the workload runs at that address, and says when it did.
func serveDNS(ctx context.Context, in io.Reader, out io.Writer) error {
	w, err := newDNSWorld()
	if err != nil {
		return err
	}
	st := store.New(w.state)
	srv, err := dnsserver.New(dnsConfig(), dnsserver.Options{Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx, st, func() dnsserver.Hints { return dnsserver.Hints{Leader: "r1"} }) }()
	for srv.Zone() == nil {
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := fmt.Fprintln(out, srv.Addr()); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[0] != "move" {
			return fmt.Errorf("%q is no order", lines.Text())
		}
		i, err := strconv.Atoi(f[1])
		if err != nil {
			return err
		}
		at := time.Now()
		if err := w.report(i, 1, func(int) string { return f[2] }); err != nil {
			return err
		}
		st.Publish(w.state, w.feed)
		w.feed = nil
		if _, err := fmt.Fprintln(out, at.UnixNano()); err != nil {
			return err
		}
	}
	cancel()
	return errors.Join(lines.Err(), <-ended)
}
