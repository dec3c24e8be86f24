package rpc

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// scraped returns the targets that a caller gets, one line for each group: the targets and the labels in order.
func scraped(t *testing.T, c clusterv1.ClusterClient, namespace string) string {
	t.Helper()
	r, err := c.ListScrapeTargets(ctxFor(t), &clusterv1.ListScrapeTargetsRequest{Namespace: namespace})
	ok(t, err)
	var lines []string
	for _, g := range r.GetGroups() {
		line := strings.Join(g.GetTargets(), " ")
		for _, k := range slices.Sorted(maps.Keys(g.GetLabels())) {
			if k != "__meta_persys_cluster" {
				line += fmt.Sprintf(" %s=%s", k, g.GetLabels()[k])
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// scrapable places a workload on node n1 that names its port 9090 "metrics", and reports its state and ports.
func (g *group) scrapable(id, namespace, in string, state fsm.Actual, ports []*commandv1.PortBinding, tags ...*commandv1.Label) {
	g.t.Helper()
	g.do(&commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: &commandv1.PutWorkloads{Workloads: []*commandv1.WorkloadPut{{
		Id: id, Content: "c1:1", Desired: "Running", Namespace: namespace, Demand: &commandv1.Demand{
			Type: "container", CpuMillicores: 1, Group: in, Tags: tags,
			PortNames: []*commandv1.PortName{{Name: "metrics", ContainerPort: 9090, Protocol: "tcp"}, {Name: "http", ContainerPort: 80, Protocol: "tcp"}},
		},
	}}}}})
	g.assign(id, "n1")
	w, _ := g.now().Workload(id)
	g.do(&commandv1.Command{Body: &commandv1.Command_Report{Report: &commandv1.Report{Reports: []*commandv1.WorkloadReport{{
		Workload: id, Node: "n1", Generation: fsm.GenerationPB(w.Generation), Acknowledged: true, State: string(state), ObservedAt: 1, Ports: ports,
	}}}}})
}

// TestScrapeTargets: Prometheus gets the schedulers, the agents that serve metrics, and the reachable ports of running
// workloads that are named "metrics".
func TestScrapeTargets(t *testing.T) {
	g := newGroup(t, 1)
	node := func(id string, port, protocol uint32) {
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: "10.0.0." + id[1:] + ":50051", CpuMillicores: 8000, MemoryMib: 8192, Protocol: protocol, MetricsPort: port,
			Labels: []*commandv1.Label{{Key: "rack/row", Value: "7"}},
		}}})
	}
	node("n1", 8090, 1)
	node("n2", 0, 1) // serves no metrics
	node("n3", 0, 0) // a legacy v1 agent, which does not report its port
	at := func(host, container uint32, address string) *commandv1.PortBinding {
		return &commandv1.PortBinding{HostPort: host, ContainerPort: container, Protocol: "tcp", Address: address}
	}
	g.scrapable("web-0", "", "web", fsm.ActualRunning, []*commandv1.PortBinding{at(32001, 9090, ""), at(32002, 80, "")},
		&commandv1.Label{Key: "prometheus.io/path", Value: "/stats"}, &commandv1.Label{Key: "prometheus.io/scheme", Value: "https"})
	g.scrapable("one", "", "", fsm.ActualRunning, []*commandv1.PortBinding{at(32003, 9090, "10.9.9.9")})
	g.scrapable("hidden", "", "", fsm.ActualRunning, []*commandv1.PortBinding{at(32004, 9090, "127.0.0.1")})
	g.scrapable("failed", "", "", fsm.ActualFailed, []*commandv1.PortBinding{at(32005, 9090, "")})
	workloads := `10.0.0.1:32001 __meta_persys_group=web __meta_persys_kind=workload __meta_persys_label_prometheus_io_path=/stats __meta_persys_label_prometheus_io_scheme=https __metrics_path__=/stats __scheme__=https job=default/web namespace=default node=n1 workload=web-0
10.9.9.9:32003 __meta_persys_group= __meta_persys_kind=workload job=default/one namespace=default node=n1 workload=one`
	machines := `10.0.0.1:8090 __meta_persys_kind=agent __meta_persys_label_rack_row=7 __meta_persys_node=n1 job=persys-agent
10.0.0.3:8089 __meta_persys_kind=agent __meta_persys_label_rack_row=7 __meta_persys_node=n3 job=persys-agent`
	is(t, "scrape targets in namespace default", scraped(t, g.cluster(0), "default"), workloads)
	var lines []string
	for line := range strings.Lines(scraped(t, g.cluster(0), "")) {
		if !strings.Contains(line, "job=persys-scheduler") {
			lines = append(lines, line)
		}
	}
	want := slices.Sorted(strings.Lines(workloads + "\n" + machines + "\n"))
	slices.Sort(lines)
	is(t, "scrape targets of workloads and agents in all namespaces", strings.TrimSpace(strings.Join(lines, "")), strings.TrimSpace(strings.Join(want, "")))
	is(t, "scrape targets in a namespace without workloads", scraped(t, g.cluster(0), "shop"), "")
}

// TestScrapeTargetsOfOtherNamespacesAreHidden: users with rights in one namespace see no workloads of another.
func TestScrapeTargetsOfOtherNamespacesAreHidden(t *testing.T) {
	g, as := spaces(t)
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "n1", Endpoint: "10.0.0.1:50051", CpuMillicores: 8000, MemoryMib: 8192, Protocol: 1,
	}}})
	g.scrapable("theirs", "b", "", fsm.ActualRunning, []*commandv1.PortBinding{{HostPort: 32001, ContainerPort: 9090}})
	for user, want := range map[string]bool{"ada": false, "bob": true} {
		got := scraped(t, clusterv1.NewClusterClient(as(0, "user/"+user)), "")
		if strings.Contains(got, "workload=theirs") != want {
			t.Errorf("whether user %s sees the scrape target of workload theirs in namespace b: %v, want %v\n%s", user, !want, want, got)
		}
	}
}
