package agentd

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

// The settings file of a legacy v1 agent may be the only configuration of a node (contract/env.md,
// PERSYS_CONFIG_FILE). If this agent did not read it, the node would get another name and other schedulers.
func TestSettingsOfExistingAgents(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("HOME", dir)
	want := []string{"/etc/persys/agent_config.yaml", filepath.Join(dir, ".persys", "agent_config.yaml"), "agent_config.yaml"}
	if os.Geteuid() == 0 {
		want = slices.Delete(want, 1, 2)
	}
	if got := files(); !slices.Equal(got, want) {
		t.Errorf("the agent reads settings from %q, want %q", got, want)
	}
	if _, err := os.Stat(want[0]); err == nil {
		testbed.Need(t, "a machine without a settings file of this agent", fmt.Errorf("the file %s exists", want[0]))
	}
	if err := os.WriteFile("agent_config.yaml", []byte("grpc_port: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERSYS_CONFIG_FILE", "")
	t.Setenv("PERSYS_GRPC_ADDR", "nowhere") // this address is invalid, so the agent ends even if it does not read the file
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"persys-agent"}
	if err := Main(context.Background(), "dev"); err == nil || !strings.Contains(err.Error(), "agent_config.yaml") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Main returned %v, want an error about the file's port", err)
	}
}
