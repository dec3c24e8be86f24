package agentd

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/client"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// TestVolumeOfAContainer tests a volume with a size on the real Docker engine. What a container wrote to the volume
// must still be there after an update of the workload, a restart of the agent and a reboot. The container must not
// start while the volume is not mounted. When the workload is deleted, the volume must be deleted too.
func TestVolumeOfAContainer(t *testing.T) {
	testbed.LoopDevices(t)
	m := newMachine(t)
	m.start()
	vol := &agentv1.ManagedVolumeSpec{Name: "data", SizeGb: 1, MountPath: "/data"}
	m.apply("db", m.container(vol))
	if got := m.ask("db", "/write", "/data/f"); got != "200 " {
		t.Fatalf("writing: %s", got)
	}
	identityStore := func(after string) {
		t.Helper()
		if got := m.ask("db", "/read", "/data/f"); got != "200 probe" {
			t.Fatalf("after %s the volume holds %s", after, got)
		}
	}
	first := m.containers("db")
	next := m.container(vol)
	next.GetContainer().Env = map[string]string{"V": "2"}
	m.apply("db", next)
	m.running("db")
	if now := m.containers("db"); len(now) != 1 || now[0] == first[0] {
		t.Fatalf("after an update the containers are %v, want one that replaces %v", now, first)
	}
	identityStore("an update")
	if err := os.RemoveAll(filepath.Join(m.cfg.LocalRoot, "data.img.part")); err != nil {
		t.Fatal(err)
	}

	before := m.containers("db")
	m.stop()
	m.start()
	identityStore("a restart of the agent")
	if now := m.containers("db"); now[0] != before[0] {
		t.Error("a restart of the agent created the container again")
	}

	// Simulate a reboot: all containers are stopped, the volume is unmounted, and the engine starts before
	// the agent.
	m.stop()
	zero := 0
	if _, err := m.cli.ContainerStop(t.Context(), before[0], client.ContainerStopOptions{Timeout: &zero}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Unmount(filepath.Join(m.cfg.LocalRoot, "data"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := m.cli.ContainerStart(t.Context(), before[0], client.ContainerStartOptions{}); err == nil {
		t.Fatal("the engine started the container although its volume was not mounted")
	}
	m.start()
	identityStore("a reboot")

	m.delete("db")
	if left, _ := os.ReadDir(m.cfg.LocalRoot); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A Compose file declares an external volume, and the workload's managed_volumes has an entry with the same name. The
// containers must get that managed volume.
func TestVolumeOfAStack(t *testing.T) {
	m := newMachine(t)
	m.start()
	stack := func(extra string, volumes ...*agentv1.ManagedVolumeSpec) *agentv1.WorkloadSpec {
		text := "services: {web: {image: \"" + m.image + "\", ports: [\"8080\"], volumes: [\"data:/data\"]" + extra + "}}\nvolumes: {data: {external: true}}\n"
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{ComposeYaml: text, ManagedVolumes: volumes}}}
	}
	vol := &agentv1.ManagedVolumeSpec{Name: "data", RetainPolicy: "Retain"}
	m.apply("shop", stack("", vol))
	if got := m.ask("shop", "/write", "/data/f"); got != "200 " {
		t.Fatalf("writing: %s", got)
	}
	if _, err := os.Stat(filepath.Join(m.cfg.LocalRoot, "data", "f")); err != nil {
		t.Fatal(err)
	}
	m.apply("shop", stack(", environment: {V: \"2\"}", vol))
	m.running("shop")
	if got := m.ask("shop", "/read", "/data/f"); got != "200 probe" {
		t.Fatalf("after an update the volume holds %s, want the former content", got)
	}
	m.delete("shop")
	if _, err := os.Stat(filepath.Join(m.cfg.LocalRoot, "data", "f")); err != nil {
		t.Errorf("after the delete of the workload, its volume with policy Retain is gone: %v", err)
	}
	m.apply("bad", stack("", &agentv1.ManagedVolumeSpec{Name: "other"}))
	testbed.Until(m, "the refusal", func() bool {
		return strings.Contains(m.status("bad").GetMessage(), `the file has no volume "other" with external: true`)
	})
	m.delete("bad")
}
