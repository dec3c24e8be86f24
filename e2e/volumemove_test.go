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

// movers is a cluster with agents that have a simulated engine and real folders as volumes.
type movers struct {
	t      *testing.T
	c      *harness.Cluster
	agents map[string]*harness.Agent
	at     []string
}

func startMovers(t *testing.T, nodes int) *movers {
	t.Helper()
	c := start(t, harness.Options{Binaries: raced(t), TLS: true, SchedulerEnv: fast(nil)})
	m := &movers{t: t, c: c, agents: map[string]*harness.Agent{}, at: c.CtlEnv(c.Schedulers[follower(t, c)].GRPC)}
	for range nodes {
		a := got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true, Env: map[string]string{"PERSYS_GC_ENABLED": "false"}}))
		m.agents[a.NodeID] = a
	}
	return m
}

func (m *movers) run(args ...string) (string, int) {
	m.t.Helper()
	var out strings.Builder
	code := got[int](m.t)(m.c.RunCtl(m.t.Context(), m.at, &out, &out, args...))
	return out.String(), code
}

func (m *movers) must(args ...string) string {
	m.t.Helper()
	out, code := m.run(args...)
	if code != 0 {
		m.t.Fatalf("persysctl %s ended with exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// folder returns the path of the copy of a volume on a node.
func (m *movers) folder(node, name string) string {
	return filepath.Join(filepath.Dir(m.agents[node].StatePath), "volumes", "local", name)
}

func (m *movers) until(what string, check func() error) {
	m.t.Helper()
	must(m.t, testbed.Poll(m.t.Context(), settle, what, func(context.Context) error { return check() }))
}

func (m *movers) node(id string) string {
	m.t.Helper()
	out := m.must("get", id, "-o", "json")
	for node := range m.agents {
		if strings.Contains(out, `"assigned_node_id": "`+node+`"`) {
			return node
		}
	}
	m.t.Fatalf("workload %s is on no node\n%s", id, out)
	return ""
}

func other(node string) string {
	if node == "node-a" {
		return "node-b"
	}
	return "node-a"
}

// TestVolumeMove: a volume moves to another node with its workload and comes back, with every byte. The former copy is
// set aside and deleted only when the move is settled.
func TestVolumeMove(t *testing.T) {
	m := startMovers(t, 2)
	file := filepath.Join(t.TempDir(), "db.yaml")
	must(t, os.WriteFile(file, []byte("id: db\ncontainer:\n  image: example.com/db:1\n  managed_volumes: [{name: data, path: /data}]\n"), 0o600))
	m.must("apply", "-f", file, "--wait")
	from := m.node("db")
	to := other(from)
	content := strings.Repeat("0123456789abcdef", 1<<16)
	must(t, os.MkdirAll(filepath.Join(m.folder(from, "data"), "deep", "er"), 0o750))
	must(t, os.WriteFile(filepath.Join(m.folder(from, "data"), "deep", "er", "big"), []byte(content), 0o640))
	must(t, os.Symlink("deep/er/big", filepath.Join(m.folder(from, "data"), "link")))

	for round := range 2 {
		out := m.must("volume", "move", "data", "--to", to, "--wait")
		if !strings.Contains(out, "is on "+to) {
			t.Errorf("persysctl volume move prints\n%s", out)
		}
		if at := m.node("db"); at != to {
			t.Fatalf("round %d: the workload is on %s, want %s", round, at, to)
		}
		got, err := os.ReadFile(filepath.Join(m.folder(to, "data"), "link"))
		if err != nil || string(got) != content {
			t.Fatalf("round %d: the copy has %d bytes (%v), want %d", round, len(got), err, len(content))
		}
		if _, err := os.Stat(m.folder(from, "data")); !os.IsNotExist(err) {
			t.Errorf("round %d: the former node still has the folder under its name: %v", round, err)
		}
		if _, err := os.Stat(m.folder(from, ".aside-data")); err != nil {
			t.Errorf("round %d: the former node must keep its copy until the move is settled: %v", round, err)
		}
		if out, code := m.run("volume", "move", "data", "--to", from, "--node", to); code == 0 || !strings.Contains(out, "still keeps the former copy") {
			t.Errorf("round %d: a second move before the first has settled ended with exit %d\n%s", round, code, out)
		}
		m.must("volume", "move", "data", "--settle")
		m.until("deletion of the former copy", func() error {
			if _, err := os.Stat(m.folder(from, ".aside-data")); !os.IsNotExist(err) {
				return fmt.Errorf("%s has its copy still (%v)", from, err)
			}
			if out := m.must("volume", "inspect", "data"); strings.Contains(out, "Move") {
				return fmt.Errorf("the move has not ended:\n%s", out)
			}
			return nil
		})
		content += "written after the move"
		must(t, os.WriteFile(filepath.Join(m.folder(to, "data"), "deep", "er", "big"), []byte(content), 0o640))
		from, to = to, from
	}
	if out := m.must("events"); !strings.Contains(out, "VolumeMove") {
		t.Errorf("no event tells of the move\n%s", out)
	}
	if out := m.must("volume", "list"); strings.Count(out, "local:data") != 1 {
		t.Errorf("there must be one record of the volume\n%s", out)
	}
}

// TestVolumeMoveEnds: a move to a node that cannot copy is undone, and the workload goes on with its data. A move that is
// cancelled leaves everything as it was.
func TestVolumeMoveEnds(t *testing.T) {
	m := startMovers(t, 2)
	file := filepath.Join(t.TempDir(), "db.yaml")
	must(t, os.WriteFile(file, []byte("id: db\ncontainer:\n  image: example.com/db:1\n  managed_volumes: [{name: data, path: /data}]\n"), 0o600))
	m.must("apply", "-f", file, "--wait")
	from := m.node("db")
	to := other(from)
	must(t, os.WriteFile(filepath.Join(m.folder(from, "data"), "file"), []byte("content"), 0o640))
	for _, bad := range []struct{ args, want string }{
		{"data --to nowhere", "does not exist"},
		{"data --to " + from, "is on node " + from + " already"},
		{"none --to " + to, `volume "none" not found`},
		{"data --settle", "no move of volume"},
		{"data", "--to"},
	} {
		if out, code := m.run(append([]string{"volume", "move"}, strings.Fields(bad.args)...)...); code == 0 || !strings.Contains(out, bad.want) {
			t.Errorf("volume move %s ended with exit %d, want a refusal with %q\n%s", bad.args, code, bad.want, out)
		}
	}
	// A folder at the place of the copy makes the copy fail.
	must(t, os.MkdirAll(m.folder(to, "data"), 0o750))
	if out, code := m.run("volume", "move", "data", "--to", to, "--wait"); code == 0 || !strings.Contains(out, "exists on this node already") {
		t.Errorf("a move to a node that has a folder of the name ended with exit %d\n%s", code, out)
	}
	must(t, os.Remove(m.folder(to, "data")))
	m.until("end of the undone move", func() error {
		if out := m.must("volume", "inspect", "data"); strings.Contains(out, "Move") {
			return fmt.Errorf("the move has not ended:\n%s", out)
		}
		return nil
	})
	// The target is away, so the copy cannot end before it is cancelled.
	must(t, m.agents[to].Kill())
	m.must("volume", "move", "data", "--to", to)
	if out, code := m.run("volume", "move", "data", "--to", to); code == 0 || !strings.Contains(out, "--cancel") {
		t.Errorf("a second move ended with exit %d\n%s", code, out)
	}
	if out, code := m.run("node", "rm", from, "--force", "--yes"); code == 0 || !strings.Contains(out, "--discard-data") {
		t.Errorf("removing the node that has the only copy ended with exit %d\n%s", code, out)
	}
	m.must("volume", "move", "data", "--cancel", "--node", from)
	must(t, m.agents[to].Start())
	m.until("end of the cancelled move", func() error {
		if out := m.must("volume", "inspect", "data"); strings.Contains(out, "Move") {
			return fmt.Errorf("the move has not ended:\n%s", out)
		}
		return nil
	})
	if got, err := os.ReadFile(filepath.Join(m.folder(from, "data"), "file")); err != nil || string(got) != "content" || m.node("db") != from {
		t.Errorf("after the undone moves the volume has %q (%v) and the workload is on %s", got, err, m.node("db"))
	}
}
