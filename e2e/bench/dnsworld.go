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
)

// The size of the benchmarked zone. The domain of agents is below that of workloads, so that CoreDNS
// serves all records from one zone file.
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

// reportAt commits reports of nodes that n workloads run, beginning with the workload number first. The
// function ip returns the address of each workload.
func reportAt(w *world, first, n int, ip func(int) string) error {
	reports := make([]*commandv1.WorkloadReport, n)
	for i := range reports {
		reports[i] = w.running(fmt.Sprint("w-", first+i))
		reports[i].Addresses = []string{ip(first + i)}
		reports[i].Ports = []*commandv1.PortBinding{{HostPort: uint32(hostPort(first + i)), ContainerPort: 80, Protocol: "tcp"}}
	}
	return w.report(reports...)
}

// newDNSWorld returns a state with all nodes and workloads of the DNS benchmarks.
func newDNSWorld() (*world, error) {
	w, err := newWorld()
	for i := 0; i < dnsNodes && err == nil; i++ {
		err = w.register(&commandv1.RegisterNode{
			Id: fmt.Sprint("node-", i), Endpoint: nodeIP(i) + ":50051", CpuMillicores: 1e6, MemoryMib: 1e6, LeaseSeconds: 10, Protocol: 1,
		})
	}
	for first := 0; first < dnsWorkloads && err == nil; first += dnsChunk {
		ids := numbered("w-%d", first, dnsChunk)
		err = w.workloads([]byte("s"), 1, 1, ids...)
		if err == nil {
			err = w.assign(ids, func(i int) string { return fmt.Sprint("node-", nodeOf(first+i)) })
		}
		if err == nil {
			err = reportAt(w, first, dnsChunk, workloadIP)
		}
	}
	return w, err
}

// writeZone writes the records of the state as a zone file. The workload whose number is moved gets the
// address ip instead of its own; -1 means no workload.
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

// serveDNSArg is the argument with which this program runs as the server under test: the DNS server of schedulers with
// the state of the DNS benchmarks, in a process of its own.
const serveDNSArg = "serve-dns"

// serveDNS prints its address. Then it reads lines "move WORKLOAD IP": for each it commits that the
// workload runs at that address, and prints the time in Unix nanoseconds.
func serveDNS(ctx context.Context, in io.Reader, out io.Writer) error {
	w, err := newDNSWorld()
	if err != nil {
		return err
	}
	srv, err := dnsserver.New(dnsConfig(), dnsserver.Options{Addr: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- srv.Run(ctx, w.store, func() dnsserver.Hints { return dnsserver.Hints{Leader: "r1"} })
	}()
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
			return fmt.Errorf("%q is not \"move WORKLOAD IP\"", lines.Text())
		}
		i, err := strconv.Atoi(f[1])
		if err != nil {
			return err
		}
		at := time.Now()
		if err := reportAt(w, i, 1, func(int) string { return f[2] }); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, at.UnixNano()); err != nil {
			return err
		}
	}
	cancel()
	return errors.Join(lines.Err(), <-ended)
}
