package dnsserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// world is the replicated state of a cluster, which a test changes by commands. feed collects the changes
// until the test passes them to the server.
type world struct {
	t     testing.TB
	s     fsm.State
	index uint64
	feed  []fsm.Change
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, s: fsm.New()}
	w.do(&commandv1.Command{Body: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: "c1", Incarnation: 1000}}})
	return w
}

func (w *world) do(c fsm.Command) {
	w.t.Helper()
	w.index++
	info := w.s.Info()
	c.Head = &commandv1.Head{At: int64(w.index) * 1e9, By: "tester", Epoch: &commandv1.Epoch{Incarnation: info.Incarnation, Term: 1}}
	s, res, changes := w.s.Apply(fsm.Meta{Index: w.index, Term: 1}, c)
	if res.Kind != fsm.OK && res.Kind != fsm.AlreadyDone || res.Skipped > 0 {
		w.t.Fatalf("the state machine refused command %s or a part of it: result %s, %d skipped: %s", c, res.Kind, res.Skipped, res.Reason)
	}
	w.s = s
	w.feed = append(w.feed, changes...)
}

func (w *world) replica(id, name, grpc string) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{
		Id: id, Name: name, GrpcAddr: grpc, DnsAddr: grpc,
	}}})
}

func (w *world) removeReplica(id string) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_RemoveReplica{RemoveReplica: &commandv1.RemoveReplica{Id: id}}})
}

func (w *world) node(id, endpoint string) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: id, Endpoint: endpoint, CpuMillicores: 1e9, MemoryMib: 1e9, LeaseSeconds: 10, Protocol: 1,
	}}})
}

func (w *world) removeNode(id string) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Id: id, Force: true}}})
}

func (w *world) nodeState(id string, up bool) {
	w.t.Helper()
	w.do(&commandv1.Command{Body: &commandv1.Command_SetNodeStates{SetNodeStates: &commandv1.SetNodeStates{
		Nodes: []*commandv1.NodeState{{Id: id, Up: up}},
	}}})
}

// put stores workloads with these ids in the state, as members of group; "" means no group.
func (w *world) put(group string, ids ...string) {
	w.t.Helper()
	var list []*commandv1.WorkloadPut
	for _, id := range ids {
		list = append(list, &commandv1.WorkloadPut{
			Id: id, Spec: []byte("s"), Content: "c1:0123456789abcdef", Desired: "Running",
			Demand: &commandv1.Demand{Type: "container", CpuMillicores: 1, MemoryMib: 1, Group: group},
		})
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: list}}})
}

func (w *world) generation(id string) *commandv1.Generation {
	wl, _ := w.s.Workload(id)
	return fsm.GenerationPB(wl.Generation)
}

func (w *world) assign(node string, ids ...string) {
	w.t.Helper()
	var list []*commandv1.Assignment
	for _, id := range ids {
		list = append(list, &commandv1.Assignment{Workload: id, Node: node, IfGeneration: w.generation(id)})
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_Assign{Assign: &commandv1.Assign{Assignments: list}}})
}

// report applies a node's status report about a workload. addrs is "a,b"; ports are "host:container/proto".
func (w *world) report(id, state, addrs string, ports ...string) {
	w.t.Helper()
	w.reportHealth(id, state, "", addrs, ports...)
}

func (w *world) reportHealth(id, state, health, addrs string, ports ...string) {
	w.t.Helper()
	wl, _ := w.s.Workload(id)
	r := &commandv1.WorkloadReport{
		Workload: id, Node: wl.Node, Generation: w.generation(id), Acknowledged: true, State: state, Health: health, Message: "running", ObservedAt: int64(w.index),
	}
	if addrs != "" {
		r.Addresses = strings.Split(addrs, ",")
	}
	for _, p := range ports {
		b := &commandv1.PortBinding{}
		if address, rest, ok := strings.Cut(p, "|"); ok {
			b.Address, p = address, rest
		}
		if _, err := fmt.Sscanf(p, "%d:%d/%s", &b.HostPort, &b.ContainerPort, &b.Protocol); err != nil {
			w.t.Fatal(err)
		}
		r.Ports = append(r.Ports, b)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{r}}}})
}

// run stores a workload of a group, assigns it to a node and reports that it is running.
func (w *world) run(id, group, node, addrs string, ports ...string) {
	w.t.Helper()
	w.put(group, id)
	w.assign(node, id)
	w.report(id, "Running", addrs, ports...)
}

func (w *world) zone(h Hints) *Zone {
	w.t.Helper()
	z, err := Build(Config{}, w.s, h)
	if err != nil {
		w.t.Fatal(err)
	}
	return z
}

// name sets the port names of a workload, as "name=container/proto" or "name=host:container/proto".
func (w *world) name(id string, names ...string) {
	w.t.Helper()
	wl, _ := w.s.Workload(id)
	d := &commandv1.Demand{Type: "container", CpuMillicores: 1, MemoryMib: 1, Group: wl.Demand.Group}
	for _, n := range names {
		p := &commandv1.PortName{}
		at, port, _ := strings.Cut(n, "=")
		if !strings.Contains(port, ":") {
			port = "0:" + port
		}
		if _, err := fmt.Sscanf(port, "%d:%d/%s", &p.HostPort, &p.ContainerPort, &p.Protocol); err != nil {
			w.t.Fatal(err)
		}
		p.Name = at
		d.PortNames = append(d.PortNames, p)
	}
	w.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: id, Spec: []byte("s"), Content: "c1:0123456789abcdef", Desired: "Running", Demand: d,
	}}}}})
}

// three adds three schedulers to the state w.
func three(w *world) {
	w.replica("r1", "s1", "10.0.0.1:8085")
	w.replica("r2", "s2", "10.0.0.2:8085")
	w.replica("r3", "s3", "[fd00::3]:8086")
}

// question returns a packed DNS query for text, which has the form "name type". edit may change the query
// first.
func question(text string, edit ...func(*dns.Msg)) []byte {
	f := strings.Fields(text)
	m := new(dns.Msg)
	m.SetQuestion(f[0], dns.StringToType[f[1]])
	m.Id = 4711
	for _, e := range edit {
		e(m)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func edns(size uint16) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, false) }
}

// reply passes a query to z.Answer and unpacks the answer.
func reply(t testing.TB, z *Zone, query []byte, ask Ask) *dns.Msg {
	t.Helper()
	b, _ := z.Answer(nil, query, ask)
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("the reply %x cannot be unpacked: %v", b, err)
	}
	return m
}

// texts returns records as sorted zone-file text with single spaces between fields. OPT records are omitted.
func texts(rrs []dns.RR) []string {
	out := inOrder(rrs)
	slices.Sort(out)
	return out
}

func inOrder(rrs []dns.RR) []string {
	out := []string{}
	for _, rr := range rrs {
		if rr.Header().Rrtype != dns.TypeOPT {
			out = append(out, strings.Join(strings.Fields(rr.String()), " "))
		}
	}
	return out
}

// lines parses zone-file text with one record per line. It returns the records sorted and formatted as the function
// texts does, for comparison.
func lines(text string) []string {
	out := []string{}
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		rr, err := dns.NewRR(l)
		if err != nil {
			panic(fmt.Sprintf("%q: %v", l, err))
		}
		out = append(out, strings.Join(strings.Fields(rr.String()), " "))
	}
	slices.Sort(out)
	return out
}
