package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestASingleSchedulerIsACluster: a scheduler with -insecure and no other setting forms a cluster alone.
// After a restart it has its state again.
func TestASingleSchedulerIsACluster(t *testing.T) {
	home := t.TempDir() // this folder is made before the cluster, which writes there, so that it is removed after the cluster has stopped
	c := solo(t, harness.Options{Binaries: shipped(t)})
	s := c.Schedulers[0]
	s.Args = []string{"-insecure"}
	set(s.Process, map[string]string{
		"SCHEDULER_INSECURE": "", "SCHEDULER_JOIN": "", "SCHEDULER_BOOTSTRAP_EXPECT": "", "SCHEDULER_DATA_DIR": "", "XDG_STATE_HOME": home,
	})
	up(t, c)
	must(t, saysOneOf(s.Process, "running with -insecure: plaintext"))
	apply(t, c, "kept", contentSpec("kept"))
	must(t, s.Kill())
	must(t, s.Start())
	must(t, c.WaitReady(t.Context(), settle))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "kept", settle, func(*controlv1.WorkloadView) bool { return true }))
	if log := filepath.Join(home, "persys", s.Name, "raft", "log.db"); !exists(log) {
		t.Errorf("the Raft log of the scheduler is not at %s", log)
	}
}

// TestSchedulerWithDefaultPorts: a single scheduler on the default ports and with an empty environment also
// forms a cluster.
func TestSchedulerWithDefaultPorts(t *testing.T) {
	if _, here := inside(t); !here {
		return
	}
	bin, home := raced(t), t.TempDir()
	env := []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	p := &harness.Process{Name: "alone", Path: bin.Scheduler, Args: []string{"-insecure"}, Env: env, Log: filepath.Join(home, "log")}
	must(t, p.Start())
	t.Cleanup(func() { must(t, p.Kill()) })
	typed := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), bin.Ctl, args...)
		cmd.Env = append(env, "PERSYS_INSECURE=true")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must(t, testbed.Poll(t.Context(), settle, "a leader", func(context.Context) error {
		out, err := typed("status")
		if err == nil && !strings.Contains(out, "leader") {
			err = errors.New("there is no leader")
		}
		if err != nil && !p.Running() {
			return testbed.Final(fmt.Errorf("the program has ended:\n%s", p.Tail(20)))
		}
		return err
	}))
	if out, err := typed("nodes"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(home, ".local", "state", "persys", "*", "raft", "log.db")); err != nil || len(left) != 1 {
		t.Errorf("the log files of the scheduler are %v, want one below the user's state folder (%v)", left, err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestPersysDev runs the commands that persys dev prints, and checks that they work.
func TestPersysDev(t *testing.T) {
	root := got[string](t)(testbed.Root(t.Context()))
	dir := t.TempDir()
	tmp := filepath.Join(dir, "tmp")
	must(t, os.Mkdir(tmp, 0o700))
	p := &harness.Process{
		Name: "dev", Path: shipped(t).Dev, Args: []string{"dev", "--simulate", "--port", "0"}, Log: filepath.Join(dir, "dev.log"),
		Env: append(os.Environ(), "TMPDIR="+tmp),
	}
	must(t, p.Start())
	t.Cleanup(func() {
		must(t, p.Kill())
		if t.Failed() {
			t.Logf("the output of persys dev ends with:\n%s", p.Tail(20))
		}
	})
	printed := regexp.MustCompile(`export (PERSYS_SCHEDULER_ADDR=\S+) (PERSYS_INSECURE=true)`)
	var env []string
	must(t, testbed.Poll(t.Context(), time.Minute, "the hint with the next command", func(context.Context) error {
		if !p.Running() {
			return testbed.Final(errors.New("persys dev has ended"))
		}
		out, err := p.Output()
		if m := printed.FindStringSubmatch(out); m != nil {
			env = m[1:]
		} else if err == nil {
			err = errors.New("persys dev has not printed the next command yet")
		}
		return err
	}))
	typed := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), shipped(t).Ctl, args...)
		cmd.Env = append([]string{"HOME=" + dir}, env...)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		if err != nil {
			t.Fatalf("persysctl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	// The status must show three healthy replicas, of which one leads, and one node.
	var st struct {
		Replicas []struct{ Role, Health string }
	}
	must(t, json.Unmarshal([]byte(typed("status", "-o", "json")), &st))
	roles := map[string]int{}
	for _, r := range st.Replicas {
		roles[r.Role]++
		if r.Health != "alive" {
			t.Errorf("a replica has the health %q, want alive", r.Health)
		}
	}
	if len(st.Replicas) != 3 || roles["leader"] != 1 || roles["voter"] != 2 {
		t.Errorf("want a leader and two other voters, got %v", roles)
	}
	var nodes struct {
		Nodes []struct {
			NodeID string `json:"node_id"`
			Status string
		}
	}
	must(t, json.Unmarshal([]byte(typed("nodes", "-o", "json")), &nodes))
	if len(nodes.Nodes) != 1 || nodes.Nodes[0].Status != "Ready" {
		t.Errorf("want one ready node, got %+v", nodes)
	}
	// The agent runs applied workloads.
	typed("apply", "-f", filepath.Join(root, "examples", "hello.yaml"), "--wait", "--timeout", "1m")
	var one struct {
		Workload struct {
			Node   string `json:"assigned_node_id"`
			Status string
		}
	}
	must(t, json.Unmarshal([]byte(typed("get", "hello", "-o", "json")), &one))
	if w := one.Workload; w.Status != "Running" || len(nodes.Nodes) != 1 || w.Node != nodes.Nodes[0].NodeID {
		t.Errorf("workload hello is %s on node %q", w.Status, w.Node)
	}
	if out := typed("logs", "hello"); !strings.Contains(out, "started") {
		t.Errorf("the logs of workload hello lack the line that its start writes: %q", out)
	}
	must(t, p.Interrupt())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if code, err := p.Wait(ctx); err != nil || code != 0 {
		t.Errorf("persys dev ended after Ctrl-C with status %d, %v; want 0", code, err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("persys dev left %v in the temporary folder (%v)", left, err)
	}
	if alarms := p.Alarms(); len(alarms) > 0 {
		t.Errorf("the output of persys dev has panics or races: %v", alarms)
	}
}

// TestEtcdInDocker: hack/start-etcd-docker.sh starts one etcd even if it is called twice, stop keeps the
// data, and wipe removes everything.
func TestEtcdInDocker(t *testing.T) {
	theEngine(t)
	root := got[string](t)(testbed.Root(t.Context()))
	name := fmt.Sprintf("persys-e2e-etcd-%d", os.Getpid())
	port := got[int](t)(harness.FreePort())
	run := func(program string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "ETCD_NAME="+name, fmt.Sprintf("ETCD_PORT=%d", port))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	script := filepath.Join(root, "hack", "start-etcd-docker.sh")
	t.Cleanup(func() {
		if out, err := run(script, "wipe"); err != nil {
			t.Errorf("hack/start-etcd-docker.sh wipe failed: %v\n%s", err, out)
		}
		for _, left := range []string{"container", "volume"} {
			if out, err := run("docker", left, "inspect", name); err == nil {
				t.Errorf("the %s still exists: %s", left, out)
			}
		}
	})
	start := func() {
		t.Helper()
		out, err := run(script)
		if err != nil || !strings.Contains(out, fmt.Sprintf("ETCD_ENDPOINTS=127.0.0.1:%d", port)) {
			t.Fatalf("hack/start-etcd-docker.sh failed: %v\n%s", err, out)
		}
	}
	start()
	start()
	cli := got[*clientv3.Client](t)(clientv3.New(clientv3.Config{Endpoints: []string{fmt.Sprintf("127.0.0.1:%d", port)}, DialTimeout: settle}))
	defer cli.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := cli.Put(ctx, "kept", "yes")
	must(t, err)
	if out, err := run(script, "stop"); err != nil {
		t.Fatalf("hack/start-etcd-docker.sh stop failed: %v\n%s", err, out)
	}
	start()
	if r, err := cli.Get(ctx, "kept"); err != nil || r.Count != 1 {
		t.Errorf("after a stop and a start, etcd has lost its data: %v, %v", r, err)
	}
	if out, err := run(script, "restart"); err == nil || !strings.Contains(out, "restart") {
		t.Errorf("hack/start-etcd-docker.sh with an unknown argument returned %v, %q, want its usage", err, out)
	}
}
