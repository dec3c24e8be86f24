package gatewayd

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// FuzzClusterFile reads arbitrary text as the list of a gateway's clusters, from a file and from a setting.
func FuzzClusterFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "clusters.yaml")
	f.Add("scheduler:\n  clusters:\n  - {id: a, schedulers: [{id: s, address: 'x:1', leader: true}]}\n", "")
	f.Add("", "- {id: b, discovery: 'srv://x'}\n")
	f.Add("a: &a [*a]\n", "--- ? :")
	f.Fuzz(func(t *testing.T, file, setting string) {
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Config{ClusterFile: path, Clusters: setting}
		if all, _, err := c.clusters(slog.New(slog.DiscardHandler)); err != nil && all != nil {
			t.Fatalf("clusters %v were parsed together with error %v", all, err)
		}
	})
}
