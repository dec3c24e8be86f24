package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/testbed"
)

// A node may be set up by the file of a legacy v1 agent alone (contract/env.md, PERSYS_CONFIG_FILE).
// Without that file it would get another name and other schedulers.
func TestSettingsOfExistingAgents(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("HOME", dir)
	want := []string{"/etc/persys/agent_config.yaml", filepath.Join(dir, ".persys", "agent_config.yaml"), "agent_config.yaml"}
	if os.Geteuid() == 0 {
		want = slices.Delete(want, 1, 2)
	}
	if got := files(); !slices.Equal(got, want) {
		t.Errorf("it looks for %q, want %q", got, want)
	}
	if _, err := os.Stat(want[0]); err == nil {
		testbed.Need(t, "a machine without an agent of its own", fmt.Errorf("%s is there", want[0]))
	}
	if err := os.WriteFile("agent_config.yaml", []byte("grpc_port: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERSYS_CONFIG_FILE", "")
	t.Setenv("PERSYS_GRPC_ADDR", "nowhere") // ends the agent if nothing else does
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"persys-agent"}
	if err := run(context.Background()); err == nil || !strings.Contains(err.Error(), "agent_config.yaml") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("started with %v, want an error about the file's port", err)
	}
}
