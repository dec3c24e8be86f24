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

// TestConfiguredClustersAreServed: the gateway serves the configured clusters, and sends a request that names
// no cluster to the default cluster (contract/gateway-rest.md, "Routing").
func TestConfiguredClustersAreServed(t *testing.T) {
	for _, tt := range []struct{ name, env, main, file, want, warns string }{
		{"files of legacy v1 gateways may name a default cluster that is not in their list", "", "", `
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
		{"clusters of the cluster file and their default replace those of the main file", "",
			"scheduler: {default_cluster_id: old, clusters: [{id: old}]}", "scheduler: {clusters: [{id: z}, {id: new}]}", "z new, default ", "cluster=old"},
		{"the default cluster of the cluster file takes precedence over that of the main file", "",
			"scheduler: {default_cluster_id: b}", "scheduler: {default_cluster_id: c, clusters: [{id: a}, {id: b}, {id: c}]}", "a b c, default c", ""},
		{"the default cluster of the main file applies to clusters of the cluster file", "",
			"scheduler: {default_cluster_id: b}", "scheduler: {clusters: [{id: a}, {id: b}]}", "a b, default b", ""},
		{"the default cluster of the environment takes precedence over both files", "a",
			"scheduler: {default_cluster_id: b}", "scheduler: {default_cluster_id: c, clusters: [{id: a}, {id: b}, {id: c}]}", "a b c, default a", ""},
		{"DNS discovery adds no cluster to a list of clusters", "",
			"prow: {discovery_domain: x.test}", "scheduler: {clusters: [{id: prod}]}", "prod, default ", ""},
		{"comments have no effect", "", "scheduler: {clusters: [{id: main}]}", "# scheduler:\n#   clusters: []\n", "main, default ", ""},
		{"DNS discovery makes a cluster if none is listed", "", "prow: {discovery_domain: x.test}", "", "cluster-discovered, default ", ""},
		{"a default cluster from the environment that is not listed is left to gateway.New, which returns an error", "x", "", "scheduler: {clusters: [{id: a}]}", "a, default x", ""},
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
				t.Errorf("the clusters are %s; want %s", got, tt.want)
			}
			if tt.warns == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.warns) {
				t.Errorf("logged %q, want %q", log.String(), tt.warns)
			}
		})
	}
}

// TestDiscoveryLooksUpNamesInOrder: the gateway looks up the names below the discovery domain in the order of
// legacy v1 gateways (contract/gateway-rest.md, "Discovery order").
func TestDiscoveryLooksUpNamesInOrder(t *testing.T) {
	for _, tt := range []struct{ service, dns, want string }{
		{"_persys-scheduler", "", "srv://x.test?service=persys-scheduler&hosts=persys-scheduler.x.test,persys-scheduler,persys-scheduler.local"},
		{"own", "10.0.0.1:53", "srv://x.test?service=own&hosts=own.x.test,persys-scheduler.x.test,own,persys-scheduler,persys-scheduler.local&dns=10.0.0.1:53"},
	} {
		c := Config{DiscoveryDomain: "x.test", DiscoveryService: tt.service, DNSAddr: tt.dns}
		if got := c.byDNS(); got != tt.want {
			t.Errorf("with the service %s the target is %s, want %s", tt.service, got, tt.want)
		}
		if _, err := dial.ParseTarget(c.byDNS()); err != nil {
			t.Error(err)
		}
	}
}

// The gateway's systemd unit does not run as root and may write only to its state folder. So the gateway's
// key and certificate must be stored in that folder.
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

// TestANetworkHasAtLeastOneConnection: the limit PerNetwork must be at least 1, because 0 means no limit.
func TestANetworkHasAtLeastOneConnection(t *testing.T) {
	for connections, want := range map[int]int{0: 0, 1: 1, 3: 1, 4: 1, 8: 2} {
		if got := (&Config{LimitConnections: connections}).limits().PerNetwork; got != want {
			t.Errorf("of %d connections, one network gets %d, want %d", connections, got, want)
		}
	}
}
