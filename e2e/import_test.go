package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/client"

	"github.com/persys/compute/e2e/harness"
)

// TestImportSwarm: persysctl writes a workload file from the services of a Docker Swarm. After the commands
// that persysctl prints, the file runs in a Persys cluster, and the container gets the same settings as in
// the Swarm.
func TestImportSwarm(t *testing.T) {
	needMachines(t)
	machines, cluster := openMachines(t, 1)
	m, image := machines[0], startEngines(t, machines)
	engine := got[*client.Client](t)(client.New(client.WithHost(m.DockerHost)))
	t.Cleanup(func() { _ = engine.Close() })
	ctx := t.Context()
	_ = got[client.SwarmInitResult](t)(engine.SwarmInit(ctx, client.SwarmInitOptions{ListenAddr: "127.0.0.1:2377", AdvertiseAddr: "127.0.0.1"}))
	config := got[client.ConfigCreateResult](t)(engine.ConfigCreate(ctx, client.ConfigCreateOptions{Spec: swarm.ConfigSpec{Annotations: swarm.Annotations{Name: "greeting"}, Data: []byte("hello from a config\n")}}))
	secret := got[client.SecretCreateResult](t)(engine.SecretCreate(ctx, client.SecretCreateOptions{Spec: swarm.SecretSpec{Annotations: swarm.Annotations{Name: "token"}, Data: []byte("s3cret")}}))
	network := got[client.NetworkCreateResult](t)(engine.NetworkCreate(ctx, "back", client.NetworkCreateOptions{Driver: "overlay"}))
	replicas := uint64(1)
	_ = got[client.ServiceCreateResult](t)(engine.ServiceCreate(ctx, client.ServiceCreateOptions{Spec: swarm.ServiceSpec{
		Annotations: swarm.Annotations{Name: "web", Labels: map[string]string{"team": "front"}},
		TaskTemplate: swarm.TaskSpec{
			ContainerSpec: &swarm.ContainerSpec{
				Image: image, Env: []string{"MODE=live"},
				Configs: []*swarm.ConfigReference{{File: &swarm.ConfigReferenceFileTarget{Name: "/etc/greeting", UID: "0", GID: "0", Mode: 0o444}, ConfigID: config.ID, ConfigName: "greeting"}},
				Secrets: []*swarm.SecretReference{{File: &swarm.SecretReferenceFileTarget{Name: "token", UID: "0", GID: "0", Mode: 0o400}, SecretID: secret.ID, SecretName: "token"}},
			},
			Resources: &swarm.ResourceRequirements{Limits: &swarm.Limit{NanoCPUs: 100_000_000, MemoryBytes: 64 << 20}},
			Networks:  []swarm.NetworkAttachmentConfig{{Target: network.ID, Aliases: []string{"web"}}},
		},
		Mode: swarm.ServiceMode{Replicated: &swarm.ReplicatedService{Replicas: &replicas}},
	}}))

	c := start(t, harness.Options{Binaries: shipped(t), Host: harness.MachineHost.String(), SchedulerEnv: fast(nil)})
	*cluster = got[string](t)(clusterID(t, c))
	_ = got[*harness.Agent](t)(c.StartAgent(ctx, harness.AgentOptions{Machine: m}))
	dir := filepath.Join(t.TempDir(), "shop")
	out := ctl(t, c, "import", "swarm", "--host", m.DockerHost, "--dir", dir)
	for _, want := range []string{"Wrote 1 workload", "persysctl network create back", "persysctl config put greeting --from-file " + dir, "persysctl secret put token"} {
		if !strings.Contains(out, want) {
			t.Errorf("persysctl import swarm does not print %q:\n%s", want, out)
		}
	}
	password := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(password, []byte("s3cret"), 0o600))
	ctl(t, c, "network", "create", "back")
	ctl(t, c, "config", "put", "greeting", "--from-file", filepath.Join(dir, "configs", "greeting"))
	ctl(t, c, "secret", "put", "token", "--from-file", password)
	ctl(t, c, "apply", "-f", filepath.Join(dir, "workloads.yaml"), "--wait")
	list, err := m.Docker.Workload(ctx, *cluster, "web-0")
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("web-0 has %d containers, want one", len(list))
	}
	if list[0].Labels["team"] != "front" {
		t.Errorf("the container has the labels %v, want also team=front", list[0].Labels)
	}
	if text := got[string](t)(m.Docker.MountedFile(ctx, list[0].ID, "/etc/greeting")); text != "hello from a config\n" {
		t.Errorf("the config in the container is %q", text)
	}
	if text := got[string](t)(m.Docker.MountedFile(ctx, list[0].ID, "/run/secrets/token")); text != "s3cret" {
		t.Errorf("the secret in the container is %q", text)
	}
	ctl(t, c, "delete", "web", "--wait")
}
