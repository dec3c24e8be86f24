package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/metrics"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"
)

func caller(t *testing.T, cn, uri string) context.Context {
	t.Helper()
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: cn}}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		cert.URIs = []*url.URL{u}
	}
	state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
}

func TestIdentitiesMayCallOnlyTheirMethods(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", by(1), at(1)) // this order names cluster c1; from now on the agent obeys only c1
	const (
		apply = agentv1.AgentService_ApplyWorkload_FullMethodName
		list  = agentv1.AgentService_ListWorkloads_FullMethodName
		logs  = agentv1.AgentService_Logs_FullMethodName
		exec  = agentv1.AgentService_Exec_FullMethodName
	)
	for _, c := range []struct {
		name, cn, uri, method string
		want                  codes.Code
	}{
		{"a scheduler may apply", "x", "persys://c1/scheduler/s1", apply, codes.OK},
		{"a legacy scheduler may apply", "persys-scheduler", "", apply, codes.OK},
		{"an admin may not apply", "x", "persys://c1/user/admin", apply, codes.PermissionDenied},
		{"an admin may not list workloads", "x", "persys://c1/user/admin", list, codes.PermissionDenied},
		{"another user may not apply", "x", "persys://c1/user/eve", apply, codes.PermissionDenied},
		{"another user may not list workloads", "x", "persys://c1/user/eve", list, codes.PermissionDenied},
		{"another user may not read the status of a workload", "x", "persys://c1/user/eve", agentv1.AgentService_GetWorkloadStatus_FullMethodName, codes.PermissionDenied},
		{"another user may not read the task history", "x", "persys://c1/user/eve", agentv1.AgentService_ListActions_FullMethodName, codes.PermissionDenied},
		{"another user may not read logs", "x", "persys://c1/user/eve", logs, codes.PermissionDenied},
		{"another user may read the agent's health", "x", "persys://c1/user/eve", agentv1.AgentService_HealthCheck_FullMethodName, codes.OK},
		{"a legacy service may list workloads", "persys-services", "", list, codes.OK},
		{"a legacy service may not apply", "persys-services", "", apply, codes.PermissionDenied},
		{"the legacy CLI may list workloads", "persysctl", "", list, codes.OK},
		{"the legacy CLI may not apply", "persysctl", "", apply, codes.PermissionDenied},
		{"a gateway may read logs", "x", "persys://c1/gateway/g1", logs, codes.OK},
		{"a scheduler may run commands", "x", "persys://c1/scheduler/s1", exec, codes.OK},
		{"a gateway may not run commands", "x", "persys://c1/gateway/g1", exec, codes.PermissionDenied},
		{"another user may not run commands", "x", "persys://c1/user/eve", exec, codes.PermissionDenied},
		{"a gateway may not apply", "x", "persys://c1/gateway/g1", apply, codes.PermissionDenied},
		{"another agent may not apply", "x", "persys://c1/agent/node-b", apply, codes.PermissionDenied},
		{"another agent may not list workloads", "x", "persys://c1/agent/node-b", list, codes.PermissionDenied},
		{"another agent may read this agent's health", "x", "persys://c1/agent/node-b", agentv1.AgentService_HealthCheck_FullMethodName, codes.OK},
		{"a scheduler of another cluster may not apply", "x", "persys://c2/scheduler/s1", apply, codes.PermissionDenied},
		{"a certificate whose name has no role is refused", "somebody", "", list, codes.Unauthenticated},
		{"every caller may use the standard health service", "somebody", "", "/grpc.health.v1.Health/Check", codes.OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := r.a.server.Permit(caller(t, c.cn, c.uri), c.method, pki.LegacyMapping(""))
			if status.Code(err) != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	if err := r.a.server.Permit(context.Background(), list, pki.LegacyMapping("")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call without a certificate returned %v", err)
	}
}

// The cluster in a certificate may differ from the cluster's id, because certificates are made before the
// cluster has an id. So the certificates of agent and caller must name the same cluster.
func TestClusterOfCertificates(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Self = func() pki.Identity { return pki.Identity{Cluster: "dev", Role: pki.RoleAgent, ID: "node-a"} }
	}).start()
	r.apply("web", "sim/run", by(1), at(1)) // this order names cluster c1; from now on the agent obeys only c1
	for uri, want := range map[string]codes.Code{
		"persys://dev/scheduler/s1":   codes.OK,
		"persys://other/scheduler/s1": codes.PermissionDenied,
	} {
		err := r.a.server.Permit(caller(t, "x", uri), agentv1.AgentService_ApplyWorkload_FullMethodName, pki.LegacyMapping(""))
		if status.Code(err) != want {
			t.Errorf("%s: got %v, want %s", uri, err, want)
		}
	}
}

func TestHealthAndMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := newRig(t, func(c *Config) {
		c.Metrics = registry
		c.ReconcileInterval, c.RetryBase, c.UsageInterval = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	}).start()
	health := func() (code int, body struct {
		Status   string
		Runtimes map[string]string
	}) {
		rec := httptest.NewRecorder()
		r.a.Health().ServeHTTP(rec, httptest.NewRequest("GET", "/health", nil))
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		return rec.Code, body
	}
	if code, body := health(); code != 200 || body.Status != "healthy" || body.Runtimes["container"] != "healthy" {
		t.Errorf("the HTTP endpoint /health of a healthy agent answers %d %+v, want status 200 and body healthy", code, body)
	}
	r.apply("web", "sim/run")
	r.reaches("web", running)
	r.apply("bad", "sim/missing", func(q *agentv1.ApplyWorkloadRequest) { q.Spec.GetContainer().CpuMillicores = 100 })
	r.reaches("bad", failing)
	r.delete("web")
	r.gone("web")
	if err := r.engine.SetDown("told to"); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { _, body := health(); return body.Status == "degraded" }, func() string {
		return "the engine is down, but the HTTP endpoint /health does not report the agent as degraded"
	})
	if err := r.engine.SetDown(""); err != nil {
		t.Fatal(err)
	}
	// The engine lists two instances for which the agent has no order: one of a workload that was deleted, and
	// one of a workload that was never ordered. So the agent sets the metrics about such instances.
	for id, sequence := range map[string]uint64{"web": 0, "stray": 1} {
		err := r.engine.Driver(driver.Identity{ClusterID: Unbound, NodeID: "node-a"}).Ensure(context.Background(), driver.Spec{
			ID: driver.ID(id), Revision: "r", Content: "c1:s", Generation: driver.Generation{Sequence: sequence},
			ClusterID: Unbound, NodeID: "node-a", Running: true, Body: container("sim/run"),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	have := map[string]bool{
		"heartbeats_total":                              true, // this metric is set only with a scheduler: tested in e2e, TestEveryMetricIsSet
		"refused_by_limit_total":                        true, // this metric counts only when callers exceed a limit: tested in e2e, TestHostilePeers
		"network_problems":                              true, // these metrics are set only with networks: tested in agent/overlay
		"network_repairs_total":                         true,
		"garbage_collection_old_failed_workloads_found": true, // this metric counts only failures older than an hour: tested in agent/metrics, TestFailuresOlderThanAnHourAreCounted
	}
	fenced := false
	var missing []string
	r.until(func() bool {
		gathered := make(chan struct{})
		r.hooks.set(func(h *hooks) { h.looked = func(driver.ID) { <-gathered } })
		r.do(core.Wake{ID: "bad"}) // wait for the work on this workload, because it changes the metrics that are read below
		families, err := registry.Gather()
		close(gathered)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				if value > 0 {
					have[strings.TrimPrefix(f.GetName(), "persys_agent_")] = true
				}
			}
		}
		if have["garbage_collection_resources_deleted_total"] && have["garbage_collection_orphaned_resources_found"] && !fenced {
			fenced = true
			r.api.CollectGarbage(context.Background(), &agentv1.CollectGarbageRequest{})
			r.apply("later", "sim/run", by(7), at(2))
			r.apply("later", "sim/run", by(6), at(3))
		}
		missing = nil
		for _, m := range metrics.List() {
			if name := strings.TrimPrefix(m.Name, "persys_agent_"); !have[name] {
				missing = append(missing, name)
			}
		}
		return len(missing) == 0
	}, func() string {
		return fmt.Sprintf("want every metric of the agent to be above 0 at least once in this test, but these stayed 0: %v", missing)
	})
}
