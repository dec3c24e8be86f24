package replica

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/config"
)

// TestComposeDeploymentSharesNoKeys: in the Compose files of deploy/compose, each data folder is mounted by
// only one program, and a joining program has access only to the join token of its own role.
func TestComposeDeploymentSharesNoKeys(t *testing.T) {
	raw, err := os.ReadFile("../deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			Volumes     []string
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	var cfg Config
	loader, err := config.New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = loader.Load(config.Sources{Environ: func(k string) (string, bool) { v, ok := file.Services["s1"].Environment[k]; return v, ok }})
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	users := map[string][]string{} // for each volume: the services that mount it
	tokens := map[string]string{}  // for each volume with a join token: the role of the token
	for service, s := range file.Services {
		for _, v := range s.Volumes {
			parts := strings.Split(v, ":")
			if _, named := file.Volumes[parts[0]]; !named {
				continue
			}
			for role, dir := range cfg.TokenDirs {
				if service == "s1" && parts[1] == dir {
					tokens[parts[0]] = role
				}
			}
			users[parts[0]] = append(users[parts[0]], service)
		}
	}
	for volume := range users {
		slices.Sort(users[volume])
		want := map[string][]string{
			"admin":           {"persysctl", "s1"}, // s1 issues and renews the admin's certificate
			"scheduler-token": {"s1", "s2", "s3"},
			"agent-token":     {"agent", "s1"},
		}[volume]
		if want == nil {
			want = []string{volume} // the volume is a data folder and has the name of the service that mounts it
		}
		if !slices.Equal(users[volume], want) {
			t.Errorf("the volume %s is mounted by the services %v, want %v", volume, users[volume], want)
		}
	}
	if tokens["scheduler-token"] != "scheduler" || tokens["agent-token"] != "agent" {
		t.Errorf("service s1 writes these join tokens (by volume): %v, want one for schedulers and one for agents", tokens)
	}
}

func TestTokenDirsAreChecked(t *testing.T) {
	for _, dirs := range []map[string]string{{"user": "/tokens"}, {"agent": ""}, {"/tokens": ""}} {
		cfg, err := DefaultConfig()
		if err != nil {
			t.Fatal(err)
		}
		cfg.TokenDirs = dirs
		if err := cfg.complete(); err == nil || !strings.Contains(err.Error(), "SCHEDULER_TOKEN_DIR") {
			t.Errorf("the settings with the token folders %v returned error %v, want an error that names SCHEDULER_TOKEN_DIR", dirs, err)
		}
	}
}
