package gatewayd

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/config"
	"github.com/persys/compute/rpc/dial"
)

// TestClusters: the configured clusters, and the cluster of requests that name none
// (contract/gateway-rest.md, "Routing").
func TestClusters(t *testing.T) {
	for _, tt := range []struct{ name, env, main, file, want, warns string }{
		{"the files of the existing gateway name a default that is none of their clusters", "", "", `
scheduler:
  default_cluster_id: "persys-genesis"
  repository_cluster_map: {}
  clusters:
    - id: "persys-genesis-a"
      name: "Primary Cluster"
      routing_strategy: "leader-only"
      schedulers:
        - id: "scheduler-a-1"
          address: "127.0.0.1:8085"
          is_leader: true
`, "persys-genesis-a, default ", "cluster=persys-genesis\n"},
		{"clusters of the cluster file replace those of the main file, with their default", "",
			"scheduler: {default_cluster_id: old, clusters: [{id: old}]}", "scheduler: {clusters: [{id: z}, {id: new}]}", "z new, default ", "cluster=old"},
		{"the cluster file's default goes before the main file's", "",
			"scheduler: {default_cluster_id: b}", "scheduler: {default_cluster_id: c, clusters: [{id: a}, {id: b}, {id: c}]}", "a b c, default c", ""},
		{"the main file's is good for clusters of the cluster file", "",
			"scheduler: {default_cluster_id: b}", "scheduler: {clusters: [{id: a}, {id: b}]}", "a b, default b", ""},
		{"the environment's goes before either", "a",
			"scheduler: {default_cluster_id: b}", "scheduler: {default_cluster_id: c, clusters: [{id: a}, {id: b}, {id: c}]}", "a b c, default a", ""},
		{"what DNS finds is no cluster beside those that are listed", "",
			"prow: {discovery_domain: x.test}", "scheduler: {clusters: [{id: prod}]}", "prod, default ", ""},
		{"comments say nothing", "", "scheduler: {clusters: [{id: main}]}", "# scheduler:\n#   clusters: []\n", "main, default ", ""},
		{"what DNS finds is one where none are", "", "prow: {discovery_domain: x.test}", "", "cluster-discovered, default ", ""},
		{"what the environment names has to be there: gateway.New refuses it", "x", "", "scheduler: {clusters: [{id: a}]}", "a, default x", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var cfg Config
			loader, err := config.New(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "cluster.yaml")
			if err := os.WriteFile(file, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			env := map[string]string{"PERSYS_GATEWAY_CLUSTER_CONFIG": file, "PERSYS_GATEWAY_DEFAULT_CLUSTER": tt.env}
			if err := loader.Load(config.Sources{Environ: func(k string) (string, bool) { v, ok := env[k]; return v, ok }, YAML: []byte(tt.main), YAMLName: "config.yaml"}); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			all, first, err := cfg.clusters(slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, g := range all {
				ids = append(ids, g.ID)
			}
			if got := strings.Join(ids, " ") + ", default " + first; got != tt.want {
				t.Errorf("%s; want %s", got, tt.want)
			}
			if tt.warns == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.warns) {
				t.Errorf("logged %q, want %q", log.String(), tt.warns)
			}
		})
	}
}

// TestDiscoveryOrder: the discovery domain is looked up as legacy v1 gateways do (contract/gateway-rest.md,
// "Discovery order").
func TestDiscoveryOrder(t *testing.T) {
	for _, tt := range []struct{ service, dns, want string }{
		{"_persys-scheduler", "", "srv://x.test?service=persys-scheduler&hosts=persys-scheduler.x.test,persys-scheduler,persys-scheduler.local"},
		{"own", "10.0.0.1:53", "srv://x.test?service=own&hosts=own.x.test,persys-scheduler.x.test,own,persys-scheduler,persys-scheduler.local&dns=10.0.0.1:53"},
	} {
		c := Config{DiscoveryDomain: "x.test", DiscoveryService: tt.service, DNSAddr: tt.dns}
		if got := c.byDNS(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.service, got, tt.want)
		}
		if _, err := dial.ParseTarget(c.byDNS()); err != nil {
			t.Error(err)
		}
	}
}

// The packaged unit does not run as root and may write its own folder only: the identity is kept there.
func TestTheUnitMayWriteItsStateFolder(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/systemd/persys-gateway.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"StateDirectory=persys/gateway", "Environment=PERSYS_GATEWAY_STATE_DIR=/var/lib/persys/gateway"} {
		if !strings.Contains(string(raw), "\n"+line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
}
