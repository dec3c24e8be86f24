package agentd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/config"
)

// TestThePolicySettingNamesAPolicyOrFile: PERSYS_POLICY accepts the name of a built-in policy or of a file.
// An error names the setting and its value.
func TestThePolicySettingNamesAPolicyOrFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct{ setting, name, fault string }{
		{"", "", ""},
		{"restricted", "restricted", ""},
		{file("lab.yaml", "kinds: [container]\n"), "lab", ""},
		{file("named.yaml", "name: own\nkinds: [container]\n"), "own", ""},
		{file("wrong.yaml", "kinds: [pod]\n"), "", `kinds[0]: "pod"`},
		{"baselin", "", `PERSYS_POLICY "baselin" must be privileged, baseline, restricted or a file`},
	} {
		c := Config{Policy: tt.setting}
		got, err := c.ceiling()
		switch {
		case tt.fault != "":
			if err == nil || !strings.Contains(err.Error(), tt.fault) || !strings.Contains(err.Error(), "PERSYS_POLICY") {
				t.Errorf("with PERSYS_POLICY %q, reading the policy returned %v, want %q", tt.setting, err, tt.fault)
			}
		case err != nil:
			t.Errorf("%q: %v", tt.setting, err)
		case tt.name == "" && got.Policy != nil, tt.name != "" && (got.Policy == nil || got.Policy.Name != tt.name):
			t.Errorf("with PERSYS_POLICY %q the policy is %+v, want %q", tt.setting, got.Policy, tt.name)
		}
	}
}

// TestPathsOfTheCeiling: the agent's limits for workloads (its ceiling) must list the agent's own keys and files, and
// the data folders of schedulers, as paths that no workload may mount.
func TestPathsOfTheCeiling(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/home/x/state")
	var c Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.NodeID, c.StatePath, c.Protected, c.DockerConf, c.CephKeyring = "n", "/data/state.db", []string{"/srv/s1"}, "/root/.docker", "/etc/ceph/keyring"
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	got, err := c.ceiling()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/data/state.db.tls", "/data/state.db.fencer", "/data/credentials.yaml", "/data/compose", "/etc/persys", c.TLSKey, "/root/.docker/config.json", "/etc/ceph/keyring"} {
		if !slices.Contains(got.Private, p) {
			t.Errorf("path %s is not private: %v", p, got.Private)
		}
	}
	for _, p := range []string{"/var/lib/persys/scheduler", "/etc/persys/scheduler.env", "/home/x/state/persys"} {
		if !slices.Contains(got.Usual, p) {
			t.Errorf("the agent does not protect the usual scheduler folder %s from being mounted; it protects %v", p, got.Usual)
		}
	}
	if !slices.Equal(got.Protected, []string{"/srv/s1"}) {
		t.Errorf("the protected folders are %v", got.Protected)
	}
}
