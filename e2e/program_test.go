package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

const endsWithin = 20 * time.Second

// solo prepares a cluster of one scheduler, and does not start the scheduler.
func solo(t *testing.T, opt harness.Options) *harness.Cluster {
	t.Helper()
	opt.Schedulers = 1
	c := got[*harness.Cluster](t)(harness.Prepare(opt))
	watchCluster(t, c)
	return c
}

// up starts the schedulers of a prepared cluster and waits until they are ready.
func up(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, s := range c.Schedulers {
		must(t, s.Start())
	}
	must(t, c.WaitReady(t.Context(), settle))
}

// set changes the environment for the next start of a process. A variable with an empty value is removed.
func set(p *harness.Process, env map[string]string) {
	var out []string
	for _, kv := range p.Env {
		k, _, _ := strings.Cut(kv, "=")
		if _, changed := env[k]; !changed {
			out = append(out, kv)
		}
	}
	for k, v := range env {
		if v != "" {
			out = append(out, k+"="+v)
		}
	}
	p.Env = out
}

// refuses waits until a process exits with a code other than 0 and a last line that contains all texts of
// want.
func refuses(t *testing.T, p *harness.Process, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), endsWithin)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("%v; its output ends with:\n%s", err, p.Tail(10))
	}
	// The last line is the message to the user; earlier lines are the log.
	last := p.Tail(1)
	if code <= 0 {
		t.Errorf("the program ended with code %d, want a failure: %s", code, last)
	}
	for _, w := range want {
		if !strings.Contains(last, w) {
			t.Errorf("the last line of the program's output does not name %q: %s", w, last)
		}
	}
}

// TestWrongSettings: a wrong setting ends the program at once with an error that names it.
func TestWrongSettings(t *testing.T) {
	bin := shipped(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	gossip, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer gossip.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	must(t, err)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	tls := map[string]string{"SCHEDULER_INSECURE": ""}

	for _, c := range []struct {
		name string
		env  map[string]string
		want []string
	}{
		{"gRPC port in use", map[string]string{"GRPC_PORT": port}, []string{"GRPC_PORT", port, "in use"}},
		{"HTTP port in use", map[string]string{"METRICS_PORT": port}, []string{"METRICS_PORT", port, "in use"}},
		{"Raft port in use", map[string]string{"SCHEDULER_RAFT_ADDR": taken.Addr().String()}, []string{"SCHEDULER_RAFT_ADDR", port, "in use"}},
		{"gossip port in use", map[string]string{"SCHEDULER_GOSSIP_ADDR": gossip.LocalAddr().String()}, []string{"SCHEDULER_GOSSIP_ADDR", "in use"}},
		{"DNS port in use", map[string]string{"SCHEDULER_DNS_ADDR": taken.Addr().String()}, []string{"SCHEDULER_DNS_ADDR", port, "in use"}},
		{"a port out of range", map[string]string{"GRPC_PORT": "70000"}, []string{"GRPC_PORT", "70000"}},
		{"an interval that is no duration", map[string]string{"SCHEDULER_HEARTBEAT_INTERVAL": "soon"}, []string{"SCHEDULER_HEARTBEAT_INTERVAL", "soon"}},
		{"a lease below three heartbeats", map[string]string{"SCHEDULER_HEARTBEAT_INTERVAL": "3s", "SCHEDULER_NODE_LEASE": "5s"},
			[]string{"SCHEDULER_NODE_LEASE", "SCHEDULER_HEARTBEAT_INTERVAL", "5s"}},
		{"a name with a space", map[string]string{"SCHEDULER_NAME": "a b"}, []string{"SCHEDULER_NAME", "a b"}},
		{"a negative number of expected schedulers", map[string]string{"SCHEDULER_BOOTSTRAP_EXPECT": "-1"}, []string{"SCHEDULER_BOOTSTRAP_EXPECT", "-1"}},
		{"a join address without port", map[string]string{"SCHEDULER_JOIN": "somewhere"}, []string{"SCHEDULER_JOIN", "somewhere"}},
		{"an unknown placement policy", map[string]string{"SCHEDULER_PLACEMENT_POLICY": "random"}, []string{"SCHEDULER_PLACEMENT_POLICY", "random"}},
		{"an unknown log level", map[string]string{"LOG_LEVEL": "loud"}, []string{"LOG_LEVEL", "loud"}},
		{"a bind address that does not exist", map[string]string{"PERSYS_GRPC_ADDR": "nowhere"}, []string{"PERSYS_GRPC_ADDR", "nowhere"}},
		{"neither TLS nor -insecure", tls, []string{"PERSYS_TLS_", "-insecure"}},
		{"a DNS rate below 0", map[string]string{"SCHEDULER_DNS_RATE": "-1"}, []string{"SCHEDULER_DNS_RATE", "-1"}},
		{"a data directory below a file", map[string]string{"SCHEDULER_DATA_DIR": filepath.Join(file, "data")}, []string{"SCHEDULER_DATA_DIR", file}},
	} {
		t.Run("scheduler/"+c.name, func(t *testing.T) {
			cl := solo(t, harness.Options{Binaries: bin})
			s := cl.Schedulers[0]
			set(s.Process, c.env)
			must(t, s.Start())
			refuses(t, s.Process, c.want...)
		})
	}
	for _, c := range []struct {
		name string
		env  map[string]string
		want []string
	}{
		{"port in use", map[string]string{"PERSYS_GRPC_PORT": port}, []string{"PERSYS_GRPC_PORT", port, "in use"}},
		{"HTTP port in use", map[string]string{"PERSYS_METRICS_PORT": port}, []string{"PERSYS_METRICS_PORT", port, "in use"}},
		{"a node id with a slash", map[string]string{"PERSYS_NODE_ID": "a/b"}, []string{"PERSYS_NODE_ID", "a/b"}},
		{"invalid labels", map[string]string{"PERSYS_NODE_LABELS": "nolabel"}, []string{"PERSYS_NODE_LABELS", "nolabel"}},
		{"a taint without an effect", map[string]string{"PERSYS_NODE_TAINTS": "gpu=a"}, []string{"PERSYS_NODE_TAINTS", "gpu=a"}},
		{"an invalid scheduler address", map[string]string{"PERSYS_SCHEDULER_ADDR": "a:b:c"}, []string{"a:b:c"}},
		{"neither TLS nor -insecure", map[string]string{"PERSYS_INSECURE": ""}, []string{"PERSYS_TLS_", "-insecure"}},
		{"a state file below a file", map[string]string{"PERSYS_STATE_PATH": filepath.Join(file, "state.db")}, []string{"PERSYS_STATE_PATH", file}},
	} {
		t.Run("agent/"+c.name, func(t *testing.T) {
			cl := solo(t, harness.Options{Binaries: bin})
			a := got[*harness.Agent](t)(cl.NewAgent(harness.AgentOptions{Simulate: true}))
			set(a.Process, c.env)
			must(t, a.Start())
			refuses(t, a.Process, c.want...)
		})
	}
	t.Run("scheduler/nothing to start from", func(t *testing.T) {
		cl := solo(t, harness.Options{Binaries: bin, TLS: true})
		s := cl.Schedulers[0]
		set(s.Process, map[string]string{"SCHEDULER_JOIN": "", "SCHEDULER_BOOTSTRAP_EXPECT": ""})
		must(t, s.Start())
		refuses(t, s.Process, "SCHEDULER_JOIN", "SCHEDULER_BOOTSTRAP_EXPECT")
	})
	t.Run("scheduler/data directory in use", func(t *testing.T) {
		cl := solo(t, harness.Options{Binaries: bin})
		up(t, cl)
		second := got[*harness.Scheduler](t)(cl.NewScheduler())
		set(second.Process, map[string]string{"SCHEDULER_DATA_DIR": cl.Schedulers[0].DataDir})
		must(t, second.Start())
		refuses(t, second.Process, cl.Schedulers[0].DataDir, "in use")
	})
}

// TestWrongCluster: a replica of one cluster never joins another cluster.
func TestWrongCluster(t *testing.T) {
	bin := shipped(t)
	a := solo(t, harness.Options{Binaries: bin})
	up(t, a)
	st, err := a.Status(t.Context(), 0)
	must(t, err)
	idA := st.GetClusterId()

	t.Run("the data belong to another cluster than SCHEDULER_CLUSTER_ID names", func(t *testing.T) {
		s := a.Schedulers[0]
		must(t, s.Kill())
		set(s.Process, map[string]string{"SCHEDULER_CLUSTER_ID": "another"})
		must(t, s.Start())
		refuses(t, s.Process, "another", idA)
		set(s.Process, map[string]string{"SCHEDULER_CLUSTER_ID": ""})
		up(t, a)
	})
	t.Run("SCHEDULER_JOIN names another cluster", func(t *testing.T) {
		b := solo(t, harness.Options{Binaries: bin})
		up(t, b)
		stB, err := b.Status(t.Context(), 0)
		must(t, err)
		s := a.Schedulers[0]
		must(t, s.Kill())
		set(s.Process, map[string]string{"SCHEDULER_JOIN": b.Schedulers[0].Gossip})
		must(t, s.Start())
		must(t, a.WaitReady(t.Context(), settle))
		// Wait until one of the two replicas has logged the attempt to join the wrong cluster, with the ids of both
		// clusters.
		must(t, testbed.Poll(t.Context(), settle, "a log line about the wrong cluster", func(context.Context) error {
			for _, p := range []*harness.Process{s.Process, b.Schedulers[0].Process} {
				text, err := p.Output()
				if err != nil {
					return err
				}
				for line := range strings.Lines(text) {
					if strings.Contains(line, "another cluster") && strings.Contains(line, idA) && strings.Contains(line, stB.GetClusterId()) {
						return nil
					}
				}
			}
			return errors.New("the log of neither replica has a line with the ids of both clusters")
		}))
		for _, c := range []struct {
			c  *harness.Cluster
			id string
		}{{a, idA}, {b, stB.GetClusterId()}} {
			st, err := c.c.Status(t.Context(), 0)
			must(t, err)
			if st.GetClusterId() != c.id || len(st.GetReplicas()) != 1 {
				t.Errorf("cluster %s is now cluster %s with %d replicas; want no change and one replica", c.id, st.GetClusterId(), len(st.GetReplicas()))
			}
		}
	})
}

// pad returns a specification of about kib KiB whose content cannot be compressed.
func pad(kib int) *controlv1.WorkloadSpec {
	s := contentSpec("needle")
	s.GetContainer().Command = []string{"needle"}
	noise := make([]byte, min(kib, 100)<<9) // Linux takes at most 128 KiB in one argument
	for range max(1, kib/100) {
		_, _ = rand.Read(noise) // rand.Read never fails
		s.GetContainer().Command = append(s.GetContainer().Command, hex.EncodeToString(noise))
	}
	return s
}

// noted waits until a scheduler has written the file peers.json with the addresses of the given number of
// replicas. The scheduler needs this file to join its cluster again if its data is damaged.
func noted(t *testing.T, s *harness.Scheduler, replicas int) {
	t.Helper()
	must(t, testbed.Poll(t.Context(), settle, "a note of all schedulers", func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(s.DataDir, "peers.json"))
		if n := bytes.Count(b, []byte(`"gossip"`)); err == nil && n != replicas {
			err = fmt.Errorf("the file has %d lists of gossip addresses: %s", n, b)
		}
		return err
	}))
}

// TestDamagedData: a scheduler with damaged data repairs itself while the other replicas are healthy. If it
// cannot, it refuses to start with an error that names the file.
func TestDamagedData(t *testing.T) {
	bin := shipped(t)
	damage := func(t *testing.T, path string, find []byte) {
		t.Helper()
		b, err := os.ReadFile(path)
		must(t, err)
		if find == nil {
			b[len(b)/2] ^= 0xff
		} else if !bytes.Contains(b, find) {
			t.Fatalf("the file %s, which the test damages, does not contain %q", path, find)
		} else {
			// Replace the text everywhere in the file, because unused pages contain old copies of it.
			b = bytes.ReplaceAll(b, find, bytes.ToUpper(find))
		}
		must(t, os.WriteFile(path, b, 0o600))
	}
	t.Run("log", func(t *testing.T) {
		c := solo(t, harness.Options{Binaries: bin})
		up(t, c)
		apply(t, c, "needle", pad(1))
		s := c.Schedulers[0]
		noted(t, s, 1)
		must(t, s.Kill())
		log := filepath.Join(s.DataDir, "raft", "log.db")
		damage(t, log, []byte("needle"))
		must(t, s.Start())
		refuses(t, s.Process, "corrupt", log, "the only replica of its cluster", "mv "+filepath.Dir(log))
	})
	t.Run("term and vote", func(t *testing.T) {
		c := solo(t, harness.Options{Binaries: bin})
		up(t, c)
		s := c.Schedulers[0]
		noted(t, s, 1)
		must(t, s.Kill())
		log := filepath.Join(s.DataDir, "raft", "log.db")
		whole := got[[]byte](t)(os.ReadFile(log))
		for _, key := range []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"} {
			// bbolt stores a value directly after its key. The test flips a bit in every copy of the value.
			bad := bytes.Clone(whole)
			copies := 0
			for at := 0; ; copies++ {
				i := bytes.Index(bad[at:], []byte(key))
				if i < 0 {
					break
				}
				at += i + len(key)
				bad[at] ^= 0x40
			}
			if copies == 0 {
				t.Fatalf("the key %s is not in %s", key, log)
			}
			must(t, os.WriteFile(log, bad, 0o600))
			must(t, s.Start())
			refuses(t, s.Process, "corrupt", log, "the value of key "+key+" fails its checksum", "mv "+filepath.Dir(log))
		}
		must(t, os.WriteFile(log, whole, 0o600))
		up(t, c)
	})
	t.Run("snapshot", func(t *testing.T) {
		c := solo(t, harness.Options{Binaries: bin})
		up(t, c)
		s := c.Schedulers[0]
		snapshots := filepath.Join(s.DataDir, "raft", "snapshots")
		// Apply large workloads until the scheduler takes a snapshot, which it does after 128 MiB of log.
		i := 0
		must(t, testbed.Poll(t.Context(), 4*time.Minute, "a snapshot", func(context.Context) error {
			for range 8 {
				apply(t, c, fmt.Sprintf("needle-%d", i%4), func() *controlv1.WorkloadSpec {
					p := pad(200)
					p.Metadata["content"] = fmt.Sprint(i)
					return p
				}())
				i++
			}
			done, err := filepath.Glob(filepath.Join(snapshots, "*", "state.bin"))
			if err == nil && (len(done) == 0 || strings.HasSuffix(filepath.Dir(done[0]), ".tmp")) {
				err = fmt.Errorf("no snapshot after %d applies", i)
			}
			return err
		}))
		must(t, s.Kill())
		done, err := filepath.Glob(filepath.Join(snapshots, "*", "state.bin"))
		must(t, err)
		damage(t, done[len(done)-1], nil)
		must(t, s.Start())
		refuses(t, s.Process, "corrupt", filepath.Dir(done[len(done)-1]), "mv "+filepath.Dir(snapshots))
	})
	// damaged stops one of three schedulers and damages its log.
	const n = 20
	damaged := func(t *testing.T, env map[string]string) (c *harness.Cluster, i int, old string) {
		c = start(t, harness.Options{Binaries: bin, SchedulerEnv: env})
		for i := range n {
			apply(t, c, fmt.Sprintf("w%d", i), pad(1))
		}
		i = follower(t, c)
		old = selfID(t, c, i)
		caughtUp(t, c, i)
		noted(t, c.Schedulers[i], len(c.Schedulers))
		must(t, c.Schedulers[i].Kill())
		damage(t, filepath.Join(c.Schedulers[i].DataDir, "raft", "log.db"), []byte("needle"))
		return c, i, old
	}
	complete := func(t *testing.T, c *harness.Cluster, i int, old string, want int) {
		t.Helper()
		must(t, replaced(t.Context(), c, i, old))
		must(t, c.WaitReady(t.Context(), settle))
		caughtUp(t, c, i)
		control := got[controlv1.AgentControlClient](t)(c.Control(i))
		all, err := control.ListWorkloads(t.Context(), &controlv1.ListWorkloadsRequest{Level: controlv1.ReadLevel_READ_LEVEL_STALE})
		must(t, err)
		if len(all.GetWorkloads()) != want {
			t.Errorf("the replaced scheduler has %d workloads, want %d", len(all.GetWorkloads()), want)
		}
	}
	t.Run("one of three schedulers repairs itself", func(t *testing.T) {
		c, i, old := damaged(t, nil)
		s := c.Schedulers[i]
		must(t, s.Start())
		complete(t, c, i, old, n)
		kept, err := filepath.Glob(filepath.Join(s.DataDir, "raft.damaged-*", "log.db"))
		must(t, err)
		if len(kept) != 1 {
			t.Fatalf("the damaged log was kept as %v, want one file", kept)
		}
		if b, err := os.ReadFile(kept[0]); err != nil || !bytes.Contains(b, []byte("NEEDLE")) {
			t.Errorf("the damaged log was not stored unchanged: %v", err)
		}
		for _, kind := range []string{"ReplicaDamaged", "ReplicaRepaired"} {
			if k := count(t, c, kind); k != 1 {
				t.Errorf("there are %d events %s, want 1", k, kind)
			}
		}
		// Damage the log a second time. The scheduler must not repair itself again: its disk is probably broken.
		must(t, s.Kill())
		damage(t, filepath.Join(s.DataDir, "raft", "log.db"), []byte("needle"))
		must(t, s.Start())
		refuses(t, s.Process, "corrupt", filepath.Base(filepath.Dir(kept[0])), "at most once in 1h", "check the disk")
	})
	// The last line of the output names the command that repairs the scheduler without losing data.
	t.Run("one of three schedulers does not repair itself with SCHEDULER_REPAIR=off", func(t *testing.T) {
		c, i, old := damaged(t, map[string]string{"SCHEDULER_REPAIR": "off"})
		s := c.Schedulers[i]
		dir := filepath.Join(s.DataDir, "raft")
		must(t, s.Start())
		refuses(t, s.Process, "corrupt", "mv "+dir+" "+dir+".damaged")
		apply(t, c, "meanwhile", pad(1))
		must(t, os.Rename(dir, dir+".damaged"))
		must(t, s.Start())
		complete(t, c, i, old, n+1)
	})
}

// small mounts a file system of 3 MiB as the data directory of a scheduler that has not started
// yet. grow enlarges it.
func small(t *testing.T, s *harness.Scheduler) (grow func()) {
	t.Helper()
	must(t, os.MkdirAll(s.DataDir, 0o700))
	testbed.Need(t, "a small tmpfs, whose mounting takes root,", syscall.Mount("persys-e2e", s.DataDir, "tmpfs", 0, "size=3m,mode=0700"))
	t.Cleanup(func() {
		if err := errors.Join(s.Kill(), syscall.Unmount(s.DataDir, 0)); err != nil {
			t.Error(err)
		}
	})
	return func() {
		t.Helper()
		must(t, syscall.Mount("persys-e2e", s.DataDir, "tmpfs", syscall.MS_REMOUNT, "size=64m,mode=0700"))
	}
}

// TestFullDisk: a full disk stops the replica with that reason. After space is free again, every acknowledged
// write exists.
func TestFullDisk(t *testing.T) {
	// fill applies workloads until an apply is not acknowledged, or until the function ended returns true for
	// the error of an apply.
	fill := func(t *testing.T, control controlv1.AgentControlClient, prefix string, ended func(error) bool) map[string]string {
		t.Helper()
		acked := map[string]string{}
		for i := range 200 {
			id := fmt.Sprintf("%s%d", prefix, i)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			resp, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: pad(64), RevisionId: id})
			cancel()
			if err == nil && !resp.GetSuccess() {
				t.Fatalf("apply of %s was refused: %s", id, resp.GetErrorMessage())
			}
			if err == nil {
				acked[id] = resp.GetRevisionId()
			}
			if ended(err) {
				break
			}
		}
		if len(acked) == 0 || len(acked) == 200 {
			t.Fatalf("%d applies fitted into 3 MiB", len(acked))
		}
		return acked
	}
	lost := func(t *testing.T, control controlv1.AgentControlClient, level controlv1.ReadLevel, acked map[string]string) {
		t.Helper()
		all, err := control.ListWorkloads(t.Context(), &controlv1.ListWorkloadsRequest{Level: level})
		must(t, err)
		for _, w := range all.GetWorkloads() {
			if acked[w.GetWorkloadId()] == w.GetRevisionId() {
				delete(acked, w.GetWorkloadId())
			}
		}
		if len(acked) > 0 {
			t.Errorf("%d acknowledged applies are lost: %v", len(acked), acked)
		}
	}
	t.Run("the only scheduler has damaged data", func(t *testing.T) {
		c := solo(t, harness.Options{Binaries: shipped(t)})
		s := c.Schedulers[0]
		grow := small(t, s)
		up(t, c)
		control := got[controlv1.AgentControlClient](t)(c.Control(0))
		acked := fill(t, control, "w", func(err error) bool { return err != nil })
		refuses(t, s.Process, filepath.Join(s.DataDir, "raft", "log.db"), "no space left on device", "free disk space for "+s.DataDir)
		// Start the replica again while the disk is still full. It must stop with the same error.
		must(t, s.Start())
		refuses(t, s.Process, s.DataDir, "no space left on device")
		grow()
		up(t, c)
		lost(t, control, controlv1.ReadLevel_READ_LEVEL_UNSPECIFIED, acked)
	})
	t.Run("the leader of three schedulers has damaged data", func(t *testing.T) {
		c := got[*harness.Cluster](t)(harness.Prepare(harness.Options{Schedulers: 3, Binaries: shipped(t)}))
		watchCluster(t, c)
		s := c.Schedulers[0]
		grow := small(t, s)
		up(t, c)
		admin := got[clusterv1.ClusterClient](t)(c.AnyAdmin(t.Context()))
		_, err := admin.TransferLeadership(t.Context(), &clusterv1.TransferLeadershipRequest{Replica: s.Name})
		must(t, err)
		// Call another replica, so that calls are still answered after the leader has stopped.
		control := got[controlv1.AgentControlClient](t)(c.Control(1))
		over := 0
		acked := fill(t, control, "w", func(err error) bool {
			if !s.Running() && err == nil {
				over++
			}
			return over == 3
		})
		if over < 3 {
			t.Errorf("only %d applies were acknowledged after the end of %s", over, s.Name)
		}
		refuses(t, s.Process, filepath.Join(s.DataDir, "raft", "log.db"), "no space left on device", "free disk space for "+s.DataDir)
		grow()
		must(t, s.Start())
		must(t, c.WaitReady(t.Context(), settle))
		caughtUp(t, c, 0)
		lost(t, got[controlv1.AgentControlClient](t)(c.Control(0)), controlv1.ReadLevel_READ_LEVEL_STALE, acked)
	})
}
