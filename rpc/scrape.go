package rpc

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// Tags of workloads that set the path and the scheme of a scrape by Prometheus. Other programs use the same
// names.
const (
	tagScrapePath   = "prometheus.io/path"
	tagScrapeScheme = "prometheus.io/scheme"
)

// metricsPortName is the name of a workload's port that Prometheus scrapes.
const metricsPortName = "metrics"

// legacyMetricsPort is the port on which legacy v1 agents serve their metrics. It is fixed, because they do not report
// it.
const legacyMetricsPort = 8089

// ListScrapeTargets implements the call of cluster.v1: it lists what Prometheus can scrape, which are schedulers,
// agents, and ports of workloads that are named "metrics".
func (s *Server) ListScrapeTargets(ctx context.Context, req *clusterv1.ListScrapeTargetsRequest) (*clusterv1.ListScrapeTargetsResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	only := strings.TrimSpace(req.GetNamespace())
	if only != "" {
		if err := s.mayEnter(ctx, only); err != nil {
			return nil, err
		}
	}
	out := &clusterv1.ListScrapeTargetsResponse{Index: r.index}
	if only == "" {
		out.Groups = machineTargets(r)
	}
	in := s.scopeOf(ctx)
	r.Workloads("", func(w *fsm.Workload) bool {
		if in.Has(w.In()) && (only == "" || only == w.In()) {
			if g := workloadTargets(r, w); g != nil {
				out.Groups = append(out.Groups, g)
			}
		}
		return true
	})
	return out, nil
}

// machineTargets returns the scrape targets that are not workloads: one group for each scheduler replica, and one for
// each agent of a registered node.
func machineTargets(v fsm.View) (out []*clusterv1.ScrapeGroup) {
	cluster := v.Info().ClusterID
	v.Replicas(func(r *fsm.Replica) bool {
		if r.HTTPAddr != "" {
			out = append(out, &clusterv1.ScrapeGroup{Targets: []string{r.HTTPAddr}, Labels: map[string]string{
				"job": "persys-scheduler", "__meta_persys_kind": "scheduler", "__meta_persys_scheduler": r.Name, "__meta_persys_cluster": cluster,
			}})
		}
		return true
	})
	v.Nodes("", func(n *fsm.Node) bool {
		port := int(n.Facts.MetricsPort)
		if n.Facts.Protocol == 0 {
			port = legacyMetricsPort
		}
		if host, _, err := net.SplitHostPort(n.Facts.Endpoint); err == nil && port != 0 {
			labels := map[string]string{"job": "persys-agent", "__meta_persys_kind": "agent", "__meta_persys_node": n.ID, "__meta_persys_cluster": cluster}
			for _, l := range n.Labels() {
				labels[metaLabel(l.Key)] = l.Value
			}
			out = append(out, &clusterv1.ScrapeGroup{Targets: []string{net.JoinHostPort(host, strconv.Itoa(port))}, Labels: labels})
		}
		return true
	})
	return out
}

// workloadTargets returns the published TCP ports of a running workload that are named "metrics"; nil if there are
// none.
func workloadTargets(v fsm.View, w *fsm.Workload) *clusterv1.ScrapeGroup {
	if w.IsTemplate() || w.Status != fsm.StatusRunning || len(w.Demand.PortNames) == 0 {
		return nil
	}
	n, ok := v.Node(w.Node)
	if !ok {
		return nil
	}
	host, _, err := net.SplitHostPort(n.Facts.Endpoint)
	if err != nil {
		return nil
	}
	var targets []string
	for _, p := range w.Actual.Ports {
		if p.HostPort == 0 || p.Loopback() || p.Protocol != "" && !strings.EqualFold(p.Protocol, "tcp") {
			continue
		}
		for _, name := range w.Demand.PortNames {
			if name.Name == metricsPortName && name.Names(p) {
				targets = append(targets, net.JoinHostPort(reachable(p.Address, host), strconv.Itoa(int(p.HostPort))))
				break
			}
		}
	}
	if targets == nil {
		return nil
	}
	job := w.ID
	if w.Demand.Group != "" {
		job = w.Demand.Group
	}
	labels := map[string]string{
		// Workload ids contain no slash. With the slash in this label, no workload can have the same job label as the
		// schedulers or the agents.
		"job": w.In() + "/" + job, "workload": w.ID, "namespace": w.In(), "node": w.Node,
		"__meta_persys_kind": "workload", "__meta_persys_cluster": v.Info().ClusterID, "__meta_persys_group": w.Demand.Group,
	}
	for _, l := range w.Demand.Tags {
		labels[metaLabel(l.Key)] = l.Value
		switch l.Key {
		case tagScrapePath:
			labels["__metrics_path__"] = l.Value
		case tagScrapeScheme:
			labels["__scheme__"] = l.Value
		}
	}
	return &clusterv1.ScrapeGroup{Targets: targets, Labels: labels}
}

// reachable returns the address at which a port is published, or host if the port is published on all
// addresses of the node.
func reachable(address, host string) string {
	if a, err := netip.ParseAddr(address); err != nil || a.IsUnspecified() {
		return host
	}
	return address
}

// metaLabel returns the name of the Prometheus label in which a target gets the value of a workload's tag, or of a
// node's label, with this key. Names of Prometheus labels have only letters, digits and underscores.
func metaLabel(key string) string {
	return "__meta_persys_label_" + strings.Map(func(r rune) rune {
		if r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, key)
}
