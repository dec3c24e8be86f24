package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/mirror/mirrortest"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// healthText is the answer of /health.
type healthText struct {
	code int

	Status        string   `json:"status"`
	Mode          string   `json:"mode"`
	Reason        string   `json:"reason"`
	ModeChangedAt string   `json:"modeChangedAt"`
	Leader        string   `json:"leader"`
	Role          string   `json:"role"`
	Term          uint64   `json:"term"`
	Index         uint64   `json:"index"`
	Copies        []string `json:"copies"`
	Mirror        struct {
		State string   `json:"state"`
		Index uint64   `json:"index"`
		Lag   *float64 `json:"lagSeconds"`
	} `json:"mirror"`
}

func getText(ctx context.Context, url string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return resp.StatusCode, body, err
}

// healthy waits until the function want returns nil for the answer of a scheduler at /health.
func healthy(t *testing.T, s *harness.Scheduler, what string, want func(*healthText) error) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, "/health of "+s.Name+" "+what, func(ctx context.Context) error {
		code, body, err := getText(ctx, "http://"+s.HTTP+"/health")
		if err != nil {
			return err
		}
		h := &healthText{code: code}
		if err := json.Unmarshal(body, h); err != nil {
			return fmt.Errorf("%w in %s", err, body)
		}
		if err := want(h); err != nil {
			return fmt.Errorf("%w in %d %s", err, code, body)
		}
		return nil
	}))
}

// inMode returns a function that accepts the /health of a replica that serves in a mode, with this reason
// and this state of the mirror.
func inMode(mode, reason, mirror string) func(*healthText) error {
	return func(h *healthText) error {
		at, err := time.Parse(time.RFC3339, h.ModeChangedAt)
		switch {
		case h.code != http.StatusOK || h.Status != "ok":
			return fmt.Errorf("/health does not have the status ok")
		case h.Mode != mode || !strings.Contains(h.Reason, reason):
			return fmt.Errorf("/health reports mode %s with reason %q, which are not the expected ones", h.Mode, h.Reason)
		case mirror != "" && (h.Mirror.State != mirror || h.Mirror.Lag == nil):
			return fmt.Errorf("the mirror in /health is %+v, which is not expected", h.Mirror)
		case err != nil || at.After(time.Now().Add(time.Minute)) || at.Before(time.Now().Add(-time.Hour)):
			return fmt.Errorf("modeChangedAt in /health is %q, want a time", h.ModeChangedAt)
		case h.Term == 0 || h.Index == 0:
			return fmt.Errorf("term %d and index %d in /health must not be 0", h.Term, h.Index)
		}
		return nil
	}
}

// guardedEtcd prepares an etcd that accepts only TLS connections with a client certificate, whose files are
// in paths. The function guard makes this etcd also require a password.
func guardedEtcd(t *testing.T) (e *harness.Part, paths pki.Paths, guard func()) {
	t.Helper()
	dir := t.TempDir()
	e = part(t, func() (*harness.Part, error) { return harness.Etcd(t.Context(), dir) })
	set := got[pki.DevSet](t)(pki.DevCerts(filepath.Join(dir, "pki"), pki.DevOptions{Schedulers: []string{"etcd", "client"}}))
	server := set.Leaf["scheduler/etcd"]
	for i, a := range e.Args {
		if a == "http://"+e.Addr {
			e.Args[i] = "https://" + e.Addr
		}
	}
	e.Args = append(e.Args, "--cert-file", server.Cert, "--key-file", server.Key, "--trusted-ca-file", server.CA, "--client-cert-auth")
	return e, set.Leaf["scheduler/client"], func() {
		t.Helper()
		pair := got[tls.Certificate](t)(tls.LoadX509KeyPair(server.Cert, server.Key))
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(got[[]byte](t)(os.ReadFile(server.CA)))
		c := got[*clientv3.Client](t)(clientv3.New(clientv3.Config{
			Endpoints: []string{"https://" + e.Addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
			TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		}))
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), settle)
		defer cancel()
		must(t, mirrortest.Protect(ctx, c, "team"))
	}
}

// TestHealthReportsTheMode: /health has status 503 only while a scheduler belongs to no cluster. In every
// other state, even without a quorum, it names the mode, the mode's reason and its start. The etcd requires
// TLS, a certificate and a password.
func TestHealthReportsTheMode(t *testing.T) {
	etcd, client, protect := guardedEtcd(t)
	c := got[*harness.Cluster](t)(harness.Prepare(harness.Options{Binaries: raced(t), Schedulers: 3, SchedulerEnv: mirrored(etcd, map[string]string{
		"ETCD_ENDPOINTS": "https://" + etcd.Addr, "ETCD_TLS_CA": client.CA, "ETCD_TLS_CERT": client.Cert, "ETCD_TLS_KEY": client.Key,
		"ETCD_USERNAME": "persys", "ETCD_PASSWORD": "secret", "ETCD_PREFIX": "team",
	})}))
	watchCluster(t, c)
	must(t, c.Schedulers[0].Start())
	healthy(t, c.Schedulers[0], "before there is a cluster", func(h *healthText) error {
		if h.code != http.StatusServiceUnavailable || h.Status != "starting" || h.Reason == "" {
			return fmt.Errorf("/health does not have the status starting")
		}
		return nil
	})
	must(t, c.Schedulers[1].Start())
	must(t, c.Schedulers[2].Start())
	must(t, c.WaitReady(t.Context(), 60*time.Second))

	// The settings name an etcd for the mirror, which does not run yet. So the mode must be degraded from the
	// first start on.
	leader := got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	for i, s := range c.Schedulers {
		mirror := "standby"
		if i == leader {
			mirror = "unreachable"
		}
		want := inMode("degraded", "etcd", mirror)
		healthy(t, s, "without etcd", func(h *healthText) error {
			if h.Leader != c.Schedulers[leader].Name || (h.Role == "leader") != (i == leader) {
				return fmt.Errorf("/health names leader %q and role %s", h.Leader, h.Role)
			}
			return want(h)
		})
	}
	frozen(t, c, leader)

	must(t, etcd.Start())
	must(t, harness.WaitListening(t.Context(), etcd, settle))
	protect()
	waitMode(t, c, "normal")
	// Leadership may have moved to the replica that reached etcd first, so look the leader up again.
	leader = got[int](t)(c.WaitLeader(t.Context(), electionLimit))
	healthy(t, c.Schedulers[leader], "with etcd", inMode("normal", "", "healthy"))
	apply(t, c, "web", container("persys/any:1"))
	must(t, testbed.Poll(t.Context(), settle, "the state below etcd's prefix", func(ctx context.Context) error {
		res, err := c.Ctl(ctx, "recovery", "restore", "--dry-run")
		if err == nil && !strings.HasPrefix(res.Stdout, "0 keys of etcd would be created, 0 changed, 0 removed") {
			err = fmt.Errorf("%s%s", res.Stdout, res.Stderr)
		}
		return err
	}))

	// If an operator sets the mode of the cluster, the cluster keeps this mode although etcd is healthy, until the
	// operator clears it.
	ctl(t, c, "mode", "set", "degraded", "--reason", "maintenance")
	for _, s := range c.Schedulers {
		healthy(t, s, "frozen by hand", inMode("degraded", "maintenance", ""))
	}
	if out := ctl(t, c, "mode", "show"); !strings.Contains(out, "degraded: maintenance (set by hand)") {
		t.Errorf("persysctl mode show prints\n%s", out)
	}
	ctl(t, c, "mode", "set", "auto", "--reason", "done")
	waitMode(t, c, "normal")

	// Kill two schedulers. Without a quorum no change of the mode can be committed, so the remaining scheduler
	// must report the mode in which it serves by itself, degraded.
	survivor := c.Schedulers[leader]
	for _, s := range c.Schedulers {
		if s != survivor {
			must(t, s.Kill())
		}
	}
	healthy(t, survivor, "without a quorum", func(h *healthText) error {
		if h.Leader != "" {
			return fmt.Errorf("without a quorum /health still names the leader %s", h.Leader)
		}
		return inMode("degraded", "", "")(h)
	})
	began := time.Now()
	view := got[*controlv1.GetWorkloadResponse](t)(got[controlv1.AgentControlClient](t)(c.Control(leader)).GetWorkload(t.Context(),
		&controlv1.GetWorkloadRequest{WorkloadId: "web", Level: controlv1.ReadLevel_READ_LEVEL_STALE}))
	if took := time.Since(began); view.GetWorkload().GetWorkloadId() != "web" || took > 5*time.Second {
		t.Errorf("a stale read took %s: %v", took, view)
	}
	if code, body, err := getText(t.Context(), "http://"+survivor.HTTP+"/metrics"); err != nil || code != http.StatusOK || len(body) == 0 {
		t.Errorf("/metrics of a scheduler without a quorum answers %d, %v", code, err)
	}
	for _, s := range c.Schedulers {
		if s != survivor {
			must(t, s.Start())
		}
	}
	must(t, c.WaitReady(t.Context(), 60*time.Second))
	waitMode(t, c, "normal")
}

// frozen checks that a cluster in the mode degraded or recovery refuses changes, with the reason in the
// answer, and answers reads at once.
func frozen(t *testing.T, c *harness.Cluster, leader int) {
	t.Helper()
	control := got[controlv1.AgentControlClient](t)(c.Control(leader))
	applied := got[*controlv1.ApplyWorkloadResponse](t)(control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: "web", Spec: container("persys/any:1")}))
	deleted := got[*controlv1.DeleteWorkloadResponse](t)(control.DeleteWorkload(t.Context(), &controlv1.DeleteWorkloadRequest{WorkloadId: "web"}))
	retried := got[*controlv1.RetryWorkloadResponse](t)(control.RetryWorkload(t.Context(), &controlv1.RetryWorkloadRequest{WorkloadId: "web"}))
	registered := got[*controlv1.RegisterNodeResponse](t)(control.RegisterNode(t.Context(), &controlv1.RegisterNodeRequest{
		NodeId: "stranger", GrpcEndpoint: "127.0.0.1:1", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1000, MemoryTotalMb: 1000},
	}))
	for what, answer := range map[string]struct {
		done bool
		why  string
	}{
		"an apply":                          {applied.GetSuccess(), applied.GetErrorMessage()},
		"a delete":                          {deleted.GetSuccess(), deleted.GetErrorMessage()},
		"a retry":                           {retried.GetAccepted(), retried.GetReason()},
		"a registration of an unknown node": {registered.GetAccepted(), registered.GetReason()},
	} {
		if answer.done || !strings.Contains(answer.why, "degraded") || !strings.Contains(answer.why, "etcd") {
			t.Errorf("in mode degraded the call %s was carried out: %v, with reason %q; want a refusal that names the mode and etcd", what, answer.done, answer.why)
		}
	}
	began := time.Now()
	if _, err := control.ListNodes(t.Context(), &controlv1.ListNodesRequest{}); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("in mode degraded a read returned %v after %s, want an answer within 2 s", err, time.Since(began))
	}
}
