package docker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
)

// TestRulesJudgeContainers: a container that the policies forbid is not created. Symbolic links in mounts are
// followed before the check. The engine's own folder and socket are allowed only with engine_socket. A
// running container is not checked again.
func TestRulesJudgeContainers(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	for _, name := range []string{"shop", "shop/data"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"shop/out": "/etc", "shop/docker": "/var/run/docker.sock"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	base, _ := policy.Builtin(policy.Baseline)
	shop := *base
	shop.Name, shop.HostPaths = "shop", []policy.HostPath{{Path: filepath.Join(dir, "shop")}}
	wide := shop
	wide.Name, wide.HostPaths = "wide", []policy.HostPath{{Path: "/"}}
	signed := *base
	signed.Name, signed.ImageKeys = "signed", []string{"no key"}
	for _, tt := range []struct {
		name    string
		by      *policy.Policy
		change  func(*agentv1.ContainerSpec)
		refused string
	}{
		{"a container that asks for no resource of the host", base, func(*agentv1.ContainerSpec) {}, ""},
		{"a privileged container", base, func(c *agentv1.ContainerSpec) { c.Privileged = true }, "rule privileged"},
		{"a container with an added capability", base, func(c *agentv1.ContainerSpec) { c.CapAdd = []string{"SYS_ADMIN"} }, "rule capabilities"},
		{"a mount of a folder that the policy allows", &shop, mounting(filepath.Join(dir, "shop/data")), ""},
		{"a mount of a symbolic link that leads out of the folder that the policy allows", &shop, mounting(filepath.Join(dir, "shop/out")), "it leads to /etc"},
		{"a mount of a symbolic link to the engine's socket", &shop, mounting(filepath.Join(dir, "shop/docker")), "rule engine_socket"},
		{"a mount of the root folder", &wide, mounting("/"), "rule engine_socket"},
		{"an image without a digest where one must be signed", &signed, func(*agentv1.ContainerSpec) {}, "rule image_keys"},
		{"an image whose signature cannot be checked", &signed, func(c *agentv1.ContainerSpec) { c.Image = "x.invalid/y@sha256:" + strings.Repeat("1", 64) }, `policy "signed": image_keys`},
		{"a mount of the engine's folder", &wide, mounting("/var/lib/docker/volumes"), "rule engine_socket"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := containerBody(b.image, "serve")
			tt.change(c)
			spec := b.spec("rules-"+strings.ReplaceAll(tt.name, " ", "-"), c)
			spec.Rules = &driver.Rules{Policies: []driver.Rule{{Policy: tt.by}}}
			err := b.d.Ensure(b.ctx, spec)
			if tt.refused == "" {
				if err != nil {
					t.Fatal(err)
				}
				b.awaitState(spec.ID, driver.Running)
				spec.Rules.Policies[0].Policy = &policy.Policy{Name: "nothing"}
				b.ensure(spec)
				return
			}
			if driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("Ensure returned %v, want a refusal that contains %q", err, tt.refused)
			}
			if o := b.observed(spec.ID); o.State != driver.Absent {
				t.Errorf("the policies refused the container, but the engine has it: %+v", o)
			}
		})
	}
}

func mounting(path string) func(*agentv1.ContainerSpec) {
	return func(c *agentv1.ContainerSpec) {
		c.Volumes = []*agentv1.VolumeMount{{HostPath: path, ContainerPath: "/x", ReadOnly: true}}
	}
}
