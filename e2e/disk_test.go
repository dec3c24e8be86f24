package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
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

// frozenDisk is a cluster with default settings of Raft, in which the data directory of one scheduler is on a
// file system that can be frozen.
type frozenDisk struct {
	*testing.T
	*harness.Cluster
	disk   *harness.Disk
	on     *harness.Scheduler
	writes []string // workloads whose apply was acknowledged
}

func onFrozenDisk(t *testing.T) *frozenDisk {
	t.Helper()
	testbed.LoopDevices(t)
	disk := got[*harness.Disk](t)(harness.OpenDisk(t.TempDir()))
	t.Cleanup(func() { must(t, disk.Close()) })
	c := start(t, harness.Options{Binaries: shipped(t), TLS: true, SchedulerEnv: fast(nil), DataDirs: []string{filepath.Join(disk.Dir, "data")}})
	t.Cleanup(func() { must(t, disk.Thaw()) }) // runs before the cluster is stopped, because a program that writes to a frozen disk cannot be killed
	return &frozenDisk{T: t, Cluster: c, disk: disk, on: c.Schedulers[0]}
}

// lead transfers leadership to the scheduler whose disk can be frozen.
func (f *frozenDisk) lead() {
	f.Helper()
	must(f.T, testbed.Poll(f.Context(), settle, f.on.Name+" leads", func(ctx context.Context) error {
		if l, err := f.Leader(ctx); err != nil || l == f.on.Index {
			return err
		}
		admin, err := f.AnyAdmin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a transfer to a replica that has just restarted may fail
		defer cancel()
		if _, err := admin.TransferLeadership(ctx, &clusterv1.TransferLeadershipRequest{Replica: f.on.Name}); err != nil {
			return err
		}
		return errors.New("the scheduler does not lead yet")
	}))
	caughtUp(f.T, f.Cluster, f.on.Index)
}

// write applies workloads again and again until an apply that it sent itself is acknowledged, and returns
// how long that took.
func (f *frozenDisk) write() time.Duration {
	f.Helper()
	began := time.Now()
	control := got[controlv1.AgentControlClient](f.T)(f.Any(f.Context()))
	id := fmt.Sprintf("write-%d", len(f.writes))
	must(f.T, testbed.Poll(f.Context(), settle, "an acknowledged write", func(ctx context.Context) error {
		r, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: container("sim/run")})
		if err == nil && !r.GetSuccess() {
			err = errors.New(r.GetErrorMessage())
		}
		return err
	}))
	f.writes = append(f.writes, id)
	return time.Since(began)
}

// complete waits until the scheduler whose disk was frozen follows another leader and has received every
// write that was acknowledged meanwhile.
func (f *frozenDisk) complete() {
	f.Helper()
	healthy(f.T, f.on, "follows again", func(h *healthText) error {
		if h.code != http.StatusOK || h.Status != "ok" || h.Mode != "normal" || h.Leader == "" {
			return errors.New("/health does not have the status ok")
		}
		return nil
	})
	control := got[controlv1.AgentControlClient](f.T)(f.Control(f.on.Index))
	for _, id := range f.writes {
		must(f.T, testbed.Poll(f.Context(), settle, id+" on "+f.on.Name, func(ctx context.Context) error {
			_, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: controlv1.ReadLevel_READ_LEVEL_STALE})
			return err
		}))
	}
}

// TestTheLeadersDiskHangs: a leader whose disk hangs is replaced, reports the hanging disk, and no workload
// is stopped. When the disk works again, the replaced leader is a follower.
func TestTheLeadersDiskHangs(t *testing.T) {
	f := onFrozenDisk(t)
	a := got[*harness.Agent](t)(f.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	spec := container("sim/run")
	spec.Exclusive, spec.OnLostLease = true, "stop"
	apply(t, f.Cluster, "db", spec)
	got[*controlv1.WorkloadView](t)(f.WaitWorkload(t.Context(), "db", settle, running))
	f.lead()

	began := time.Now()
	must(t, f.disk.Freeze())
	took := f.write()
	measured(t, "the leader's disk hangs: the next write was acknowledged after %s", took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("a write was acknowledged after %s, want at most 10 s even on a busy machine", took)
	}
	read, err := got[controlv1.AgentControlClient](t)(f.Any(t.Context())).GetWorkload(t.Context(), &controlv1.GetWorkloadRequest{WorkloadId: f.writes[0], Level: controlv1.ReadLevel_READ_LEVEL_LINEARIZABLE})
	if err != nil || read.GetWorkload().GetWorkloadId() != f.writes[0] {
		t.Errorf("a linearizable read of a workload that was just written returned %v, %v; want the workload", read, err)
	}
	next := f.Schedulers[got[int](t)(f.WaitLeader(t.Context(), electionLimit))]
	if next == f.on {
		t.Fatal("the scheduler whose disk hangs is still the leader")
	}
	healthy(t, f.on, "reports the hanging write", func(h *healthText) error {
		switch {
		case h.code != http.StatusServiceUnavailable || h.Status != "stalled" || h.Mode != "degraded":
			return errors.New("/health does not report the status stalled with mode degraded")
		case !strings.Contains(h.Reason, "the disk of the log hangs") || !strings.Contains(h.Reason, filepath.Join(f.on.DataDir, "raft", "log.db")):
			return errors.New("the reason in /health does not name the disk and the file")
		case h.Leader != next.Name || h.Role == "leader":
			return fmt.Errorf("the /health of the scheduler whose disk hangs does not name %s as the leader", next.Name)
		}
		return nil
	})
	for s, want := range map[*harness.Scheduler]int{f.on: http.StatusServiceUnavailable, next: http.StatusOK} {
		for _, path := range []string{"/health", "/ready", "/ready?write"} {
			if code, body, err := getText(t.Context(), "http://"+s.HTTP+path); err != nil || code != want {
				t.Errorf("path %s of %s answers %d %s (%v), want %d", path, s.Name, code, body, err, want)
			}
		}
	}
	series := func(name string, want func(float64) bool) {
		t.Helper()
		if v, err := harness.Metric(t.Context(), f.on.HTTP, name); err != nil || !want(v) {
			t.Errorf("metric %s is %v (%v)", name, v, err)
		}
	}
	series("persys_scheduler_raft_append_pending_seconds", func(v float64) bool { return v > 1 && v < time.Since(began).Seconds()+1 })
	series("persys_scheduler_raft_leader_stalls_total", func(v float64) bool { return v == 1 })

	// Wait much longer than a lease of 3 s.
	for time.Since(began) < 12*time.Second {
		f.write()
	}
	must(t, f.WaitNode(t.Context(), a.NodeID, "Ready", settle))
	if runs := runsOf(t, f.Cluster, "db"); len(runs) != 1 || runs[0].To != 0 {
		t.Errorf("a workload with on_lost_lease: stop has the runs %v, want one that has not ended", runs)
	}

	must(t, f.disk.Thaw())
	f.complete()
	series("persys_scheduler_raft_append_pending_seconds", func(v float64) bool { return v < 1 })
}

// TestSIGTERMWhileTheDiskHangs: a scheduler whose disk hangs ends within 2 s of SIGTERM, as far as the kernel
// allows. The process itself stays until the file system thaws, because a thread that writes to a frozen file
// system cannot end earlier. But its ports must be closed.
func TestSIGTERMWhileTheDiskHangs(t *testing.T) {
	f := onFrozenDisk(t)
	for _, round := range []struct {
		what  string
		known bool // whether the scheduler has already given up leadership when it gets SIGTERM
	}{{"after it gave leadership up", true}, {"before it noticed the hang", false}} {
		f.lead()
		must(t, f.disk.Freeze())
		if round.known {
			f.write()
		} else {
			f.hang()
		}
		began := time.Now()
		must(t, syscall.Kill(f.on.PID(), syscall.SIGTERM))
		must(t, testbed.Poll(t.Context(), settle, "all ports are closed, and the program has ended", func(context.Context) error {
			return errors.Join(f.portsClosed(), f.ended())
		}))
		took := time.Since(began)
		measured(t, "SIGTERM while the disk hangs, %s: ended after %s", round.what, took.Round(time.Millisecond))
		if took > 10*time.Second {
			t.Errorf("%s: the scheduler ended after %s, want at most 10 s", round.what, took)
		}
		f.write()
		must(t, f.disk.Thaw())
		ctx, cancel := context.WithTimeout(t.Context(), endsWithin)
		defer cancel()
		_, err := f.on.Wait(ctx)
		must(t, err)
		must(t, f.on.Start())
		must(t, f.WaitReady(t.Context(), settle))
		f.complete()
	}
}

// hang sends a write to the leader whose disk is frozen, and waits until its append to the log hangs. It does
// not wait for the answer.
func (f *frozenDisk) hang() {
	f.Helper()
	control := got[controlv1.AgentControlClient](f.T)(f.Control(f.on.Index))
	ctx, cancel := context.WithCancel(f.Context())
	f.Cleanup(cancel)
	go func() {
		_, _ = control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: "hangs", Spec: container("sim/run")})
	}()
	must(f.T, testbed.Poll(f.Context(), settle, "an append under way", func(ctx context.Context) error {
		v, err := harness.Metric(ctx, f.on.HTTP, "persys_scheduler_raft_append_pending_seconds")
		if err == nil && v == 0 {
			err = errors.New("no append to the Raft log is under way")
		}
		return err
	}))
}

// portsClosed returns an error that names the ports at which the scheduler on the disk still listens.
func (f *frozenDisk) portsClosed() error {
	var errs []error
	for name, addr := range map[string]string{"gRPC": f.on.GRPC, "HTTP": f.on.HTTP, "Raft": f.on.Raft, "gossip": f.on.Gossip, "DNS": f.on.DNS} {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			err = conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			errs = append(errs, fmt.Errorf("port %s at %s is open (%v)", name, addr, err))
		}
	}
	return errors.Join(errs...)
}

// ended returns nil if the scheduler whose disk is frozen has ended, except for threads that wait for the
// disk.
func (f *frozenDisk) ended() error {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", f.on.PID()))
	if err != nil {
		return err
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process of the scheduler has exited
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if state := rest[:1]; state != "D" && state != "Z" && state != "X" {
			return fmt.Errorf("a thread is in state %s", state)
		}
	}
	return nil
}
