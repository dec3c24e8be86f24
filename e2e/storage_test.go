package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestStorageThroughAnyReplica: volumes and garbage are managed through a follower. Volumes are listed. A
// volume in use cannot be deleted, and a retained volume, which no workload uses any more, can. Garbage is
// listed by a dry run and removed, with an event that names the caller.
func TestStorageThroughAnyReplica(t *testing.T) {
	e, image := theEngine(t)
	c := start(t, harness.Options{Binaries: raced(t), TLS: true, SchedulerEnv: fast(map[string]string{"SCHEDULER_DRIFT_DETECT_INTERVAL": "1s"})})
	id := onDocker(t, e, c)
	a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Env: map[string]string{"PERSYS_GC_ENABLED": "false"}}))
	dir := filepath.Dir(a.StatePath)
	at := c.CtlEnv(c.Schedulers[follower(t, c)].GRPC)
	run := func(args ...string) (string, int) {
		t.Helper()
		var out strings.Builder
		code := got[int](t)(c.RunCtl(t.Context(), at, &out, &out, args...))
		return out.String(), code
	}
	file := filepath.Join(t.TempDir(), "db.yaml")
	must(t, os.WriteFile(file, []byte("id: db\ncontainer:\n  image: "+image+"\n  managed_volumes: [{name: data, path: /data}]\n"), 0o600))
	if out, code := run("apply", "-f", file, "--wait"); code != 0 {
		t.Fatal(out)
	}
	data := filepath.Join(dir, "volumes", "local", "data")
	if _, err := os.Stat(data); err != nil {
		t.Fatal(err)
	}
	if out, _ := run("volume", "list", "--ask-nodes", "-o", "wide"); !strings.Contains(out, "local:data") || !strings.Contains(out, "InUse") || !strings.Contains(out, "Attached") {
		t.Errorf("persysctl volume list prints\n%s", out)
	}
	if out, code := run("volume", "rm", "data", "--yes"); code == 0 || !strings.Contains(out, "is used by db") {
		t.Errorf("deleting a volume in use ended with exit %d, want a refusal that names its workload\n%s", code, out)
	}
	if out, code := run("delete", "db", "--wait"); code != 0 {
		t.Fatal(out)
	}
	if out, _ := run("volume", "inspect", "data"); !strings.Contains(out, "Unused") || !strings.Contains(out, "Retained") {
		t.Errorf("inspect after the delete:\n%s", out)
	}
	if out, code := run("volume", "rm", "data", "--yes"); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
	if out, _ := run("volume", "list"); !strings.Contains(out, "No managed volumes.") {
		t.Errorf("list after the delete of the volume:\n%s", out)
	}
	// Create a volume as an operator does. Its folder must be made when the first workload uses the volume, and
	// must stay when that workload is deleted.
	if out, code := run("volume", "create", "data", "--node", "node-a"); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
	must(t, os.WriteFile(file, []byte("id: db\ncontainer:\n  image: "+image+"\n  managed_volumes: [{name: data, path: /data}]\n"), 0o600))
	if out, code := run("apply", "-f", file, "--wait"); code != 0 {
		t.Fatal(out)
	}
	if out, code := run("delete", "db", "--wait"); code != 0 {
		t.Fatal(out)
	}
	if _, err := os.Stat(data); err != nil {
		t.Errorf("a volume that was created by hand must outlive its workload: %v", err)
	}
	if out, code := run("volume", "rm", "data", "--yes"); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("the folder of the deleted volume still exists: %v", err)
	}

	old := filepath.Join(dir, "compose", "old")
	must(t, os.MkdirAll(old, 0o700))
	must(t, os.WriteFile(filepath.Join(old, "stack.json"), []byte(`{"workload":"old","cluster_id":"`+id+`","node_id":"node-a"}`), 0o600))
	if out, code := run("node", "gc", "node-a", "--dry-run"); code != 0 || !strings.Contains(out, "would go") {
		t.Fatalf("the dry run of a garbage collection ended with exit %d\n%s", code, out)
	}
	if _, err := os.Stat(old); err != nil {
		t.Fatal("the dry run of a garbage collection removed a folder")
	}
	if out, code := run("node", "gc", "node-a"); code != 0 || !strings.Contains(out, "removed") {
		t.Fatalf("exit %d\n%s", code, out)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the folder of the garbage still exists: %v", err)
	}
	must(t, testbed.Poll(t.Context(), settle, "events of both removals", func(context.Context) error {
		out, _ := run("events", "-o", "json")
		for _, want := range []string{"project old: the folder of a stack that no longer exists; removal requested by persys://", "volume local:data: deleted on request; removal requested by persys://"} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no event contains %q", want)
			}
		}
		return nil
	}))
}
