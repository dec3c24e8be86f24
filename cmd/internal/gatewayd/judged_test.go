package gatewayd

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/replica"
	"github.com/persys/compute/testbed"
)

// startScheduler starts a real scheduler that checks permissions. Some users have joined the cluster with join tokens.
func startScheduler(t *testing.T, certs pki.DevSet) (addr string) {
	t.Helper()
	cfg, err := replica.DefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	leaf := certs.Leaf["scheduler/s1"]
	cfg.Name, cfg.DataDir, cfg.BootstrapExpect, cfg.BindAddr = "s1", filepath.Join(t.TempDir(), "s1"), 1, "127.0.0.1"
	cfg.TLSCA, cfg.TLSCert, cfg.TLSKey = leaf.CA, leaf.Cert, leaf.Key
	cfg.RaftAddr, cfg.GossipAddr, cfg.DNSAddr, cfg.EtcdEndpoints = "127.0.0.1:0", "127.0.0.1:0", "none", []string{"none"}
	cfg.GRPCPort, cfg.MetricsPort = 0, 0
	cfg.ClusterKey = filepath.Join(t.TempDir(), "cluster.key")
	if _, _, err := pki.LoadOrCreateKey(cfg.ClusterKey); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := replica.Start(ctx, cfg, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the scheduler ended with %v", err)
		}
	})
	testbed.Until(t, "the scheduler leads a formed cluster", func() bool {
		return r.Node().IsLeader() && r.Node().Store().View().Info().ClusterID != ""
	})
	for name, access := range map[string]string{"boss": "admin", "vera": "viewer", "carl": "operator"} {
		results, err := r.Node().Propose(ctx, &commandv1.Command{
			Head: &commandv1.Head{At: time.Now().UnixNano(), By: "test"},
			Body: &commandv1.Command_Admit{Admit: &commandv1.Admit{
				Role: "user", Name: name, Access: access, KeySha256: bytes.Repeat([]byte{1}, 32), Fingerprint: strings.Repeat("0", 64), IssuedAt: 1, NotAfter: 2,
			}},
		})
		if err == nil {
			err = results[0].Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return r.GRPCAddr()
}

// TestGatewayPermissionsEqualSchedulerPermissions: a caller may make the same calls through a gateway as directly at a
// scheduler. The rights of a user come from its join token. A caller with a certificate of another CA is an operator,
// and the user with the id "admin" is an admin.
func TestGatewayPermissionsEqualSchedulerPermissions(t *testing.T) {
	i := newIssuer(t)
	w := startWorldOf(t, map[string]string{
		"PERSYS_GATEWAY_OIDC_ISSUER": i.url, "PERSYS_GATEWAY_OIDC_AUDIENCE": "persys", "PERSYS_GATEWAY_OIDC_ROLES": "watchers=viewer,ops=operator,chiefs=admin", "PERSYS_GATEWAY_OIDC_NAMESPACES": "*=all",
	}, "", startScheduler)
	for _, x := range []struct {
		who, group             string
		read, change, administ bool
	}{
		{who: "user/admin", read: true, change: true, administ: true},
		{who: "user/boss", read: true, change: true, administ: true},
		{who: "user/carl", read: true, change: true},
		{who: "user/olga", read: true, change: true},
		{who: "user/vera", read: true},
		{who: "agent/node-a"},
		{group: "chiefs", read: true, change: true, administ: true},
		{group: "ops", read: true, change: true},
		{group: "watchers", read: true},
	} {
		c := w.as(x.who)
		var auth []string
		if x.group != "" {
			auth = []string{"Authorization", "Bearer " + i.token(t, nil, jose.RS256, func(m map[string]any) { m["groups"] = []string{x.group} })}
		}
		for _, call := range []struct {
			method, path, body string
			may                bool
		}{
			{"GET", "/nodes", "", x.read},
			{"GET", "/v1/recovery", "", x.read},
			{"DELETE", "/workloads/web", "", x.change},
			{"POST", "/v1/nodes/n/cordon", `{}`, x.change},
			{"DELETE", "/v1/nodes/n", "", x.administ},
			{"PUT", "/v1/namespaces/shop", `{}`, x.administ},
			{"POST", "/v1/mode", `{"mode":"normal","reason":"x"}`, x.administ},
			{"POST", "/v1/leader", `{}`, x.administ},
			{"DELETE", "/v1/replicas/nobody", "", x.administ},
			{"POST", "/v1/recovery/restore", `{"preview":true}`, x.administ},
			{"POST", "/v1/recovery/import", `{"preview":true}`, x.administ},
		} {
			// Check only whether the status is 403 (no permission): a permitted call may fail with another status,
			// because the node does not exist or no etcd is attached.
			if code, body, _ := w.do(c, call.method, w.api+call.path, call.body, auth...); code == 403 == call.may || code == 401 || code == 501 {
				t.Errorf("caller %s%s, call %s %s: the gateway answered %d %s; want the call allowed: %t", x.who, x.group, call.method, call.path, code, body, call.may)
			}
		}
		if strings.HasPrefix(x.who, "agent/") {
			continue
		}
		for verb, may := range map[string]bool{"read": x.read, "deploy": x.change, "remove-node": x.administ} {
			code, body, _ := w.do(c, "GET", w.api+"/v1/access/check?verb="+verb, "", auth...)
			if code != 200 || strings.Contains(strings.ReplaceAll(body, " ", ""), `"allowed":true`) != may {
				t.Errorf("/v1/access/check for %s%s and verb %s was answered %d %s, want allowed: %t", x.who, x.group, verb, code, body, may)
			}
		}
	}
}
