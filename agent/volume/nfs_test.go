package volume

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// away is a fake machine. A test can make its NFS server answer slowly or not at all.
type away struct {
	*fake
	on    atomic.Bool
	asked chan struct{}            // if set, this channel receives a value for each call of mount
	takes map[string]time.Duration // how long each program, such as mount, takes in virtual time
}

func (a *away) Run(ctx context.Context, program string, args ...string) (string, error) {
	if program == "mount" && a.on.Load() {
		select {
		case a.asked <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return "", ctx.Err()
	}
	if took := a.takes[program]; took > 0 {
		select {
		case <-time.After(took):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return a.fake.Run(ctx, program, args...)
}

// While one caller waits for a file server that does not answer, other callers get an error at once. For
// some time after the failure, further callers get the error at once too.
func TestOnlyOneCallerWaitsForAFileServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}}
		sys.on.Store(true)
		b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "files", "/srv" })
		volume := func(name string) *agentv1.ManagedVolumeSpec { return folder(name, by(NFS)) }
		took := func(want time.Duration, fn func()) {
			t.Helper()
			start := time.Now()
			if fn(); time.Since(start) != want {
				t.Errorf("the call returned after %v, want %v", time.Since(start), want)
			}
		}
		begin := func(ctx context.Context) (ended chan struct{}) {
			ended = make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = b.m.Attach(ctx, "a", "", driver.Container, []*agentv1.ManagedVolumeSpec{volume("a")})
			}()
			synctest.Wait()
			return ended
		}
		unanswered := func() {
			t.Helper()
			for _, shared := range []string{"b", "a"} { // a delete of volume a is waiting for the server
				if l := b.m.locks["nfs:"+shared]; l != nil && !l.TryLock() {
					t.Fatalf("a call for volume %q was blocked by the delete of volume \"a\" that waits for the server", shared)
				} else if l != nil {
					l.Unlock()
				}
				b.refused("is being mounted", driver.RuntimeUnhealthy, "b", driver.Container, volume(shared))
			}
		}

		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		first := begin(ctx)
		took(mountPatience, unanswered)
		took(0, unanswered)
		giveUp()
		<-first

		first = begin(t.Context()) // the caller cancelled the previous attempt, so the mount is tried again at once, without the pause after a failure
		took(mountPatience, unanswered)
		<-first
		took(0, func() {
			b.refused("files:/srv cannot be mounted", driver.StorageProvisionFailed, "b", driver.Container, volume("b"))
		})
		sys.on.Store(false)
		took(0, func() {
			b.refused("cannot be mounted", driver.StorageProvisionFailed, "a", driver.Container, volume("a"))
		})
		<-time.After(mountPause)
		took(0, func() { b.attach("b", driver.Container, volume("b")) })
	})
}

// A caller that waits for a file server holds no lock on the volume, so other users of the volume do not wait.
func TestWaitingForAFileServerHoldsNoLock(t *testing.T) {
	for name, wait := range map[string]func(context.Context, *Manager){
		"attach": func(ctx context.Context, m *Manager) {
			_, _ = m.Attach(ctx, "web", "", driver.Container, []*agentv1.ManagedVolumeSpec{folder("data", by(NFS), retain)})
		},
		"release": func(ctx context.Context, m *Manager) { _ = m.Release(ctx, "web", Retention{}) },
		"trim":    func(ctx context.Context, m *Manager) { _ = m.Trim(ctx, "web", "", nil) },
		"mount":   func(ctx context.Context, m *Manager) { m.Mount(ctx) },
		"delete":  func(ctx context.Context, m *Manager) { _ = m.Delete(ctx, "nfs:left") },
	} {
		t.Run(name, func(t *testing.T) {
			sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}, asked: make(chan struct{}, 1)}
			b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "files", "/srv" })
			b.attach("web", driver.Container, folder("data", by(NFS), retain))
			b.attach("gone", driver.Container, folder("left", by(NFS), retain))
			if err := b.m.Release(t.Context(), "gone", Retention{}); err != nil {
				t.Fatal(err)
			}
			sys.mounts = nil
			sys.on.Store(true)
			b.restart()

			ctx, giveUp := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				wait(ctx, b.m)
			}()
			select {
			case <-sys.asked: // now the caller waits for the mount
			case <-ended:
				t.Fatal("the call ended before it tried to mount the export")
			}
			id := "nfs:data"
			if name == "delete" {
				id = "nfs:left"
			}
			if l := b.m.locks[id]; l != nil {
				if !l.TryLock() {
					t.Error("while a caller waits for the NFS server, the volume is locked, want it unlocked")
				} else {
					l.Unlock()
				}
			}
			giveUp()
			<-ended
		})
	}
}

// Until an attempt to mount the export has ended, the node keeps registering the same volume drivers. If the
// node no longer registered the driver nfs, the leader would evict the workloads that use it.
func TestExportIsOfferedWhileItIsMounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}}
		b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "files", "/srv" })
		offers := func(when string, want bool, pools int) {
			t.Helper()
			if got := len(b.m.Drivers()) == 1; got != want || (b.m.Lacks()[NFS] == "") != want || len(b.m.Pools()) != pools {
				t.Errorf("%s: the node registers the volume drivers %q and the pools %v; the reason against nfs is %q", when, b.m.Drivers(), b.m.Pools(), b.m.Lacks()[NFS])
			}
		}
		measure := func(atMost time.Duration) bool {
			t.Helper()
			began := time.Now()
			news := b.m.Measure(t.Context())
			if took := time.Since(began); took > atMost {
				t.Errorf("Measure waited %v for the server that does not answer", took)
			}
			return news
		}
		b.attach("web", driver.Container, folder("data", by(NFS)))
		sys.mu.Lock()
		sys.mounts = nil
		sys.mu.Unlock()
		sys.on.Store(true)
		b.restart() // restart with nothing mounted, as after a reboot of the machine
		offers("before the first check", false, 0)

		ctx, giveUp := context.WithCancel(t.Context())
		mounted := make(chan struct{})
		begin := func() {
			go func() {
				defer close(mounted)
				b.m.Mount(ctx)
			}()
			synctest.Wait()
		}
		begin()
		if !measure(measurePatience) {
			t.Error("the first Measure must report that the volume drivers of the node changed")
		}
		offers("while the first attempt to mount is in progress", true, 2)
		if <-time.After(mountPatience); measure(measurePatience) {
			t.Error("while an attempt to mount is in progress, Measure reports that the node's volume drivers changed, want no change")
		}
		offers("when the attempt takes longer than mountPatience", true, 2)
		<-time.After(measureTimeout)
		if measure(measurePatience) {
			t.Error("while an attempt to mount is in progress, Measure reports that the node's volume drivers changed, want no change")
		}
		offers("after measureTimeout", true, 2)
		giveUp()
		<-mounted
		synctest.Wait()
		offers("after the caller of the attempt gave up", true, 2)

		ctx, giveUp = context.WithTimeout(t.Context(), 8*time.Second)
		defer giveUp()
		mounted = make(chan struct{})
		begin()
		if measure(measurePatience) {
			t.Error("while the second attempt to mount is in progress, Measure reports that the node's volume drivers changed, want no change")
		}
		<-mounted
		synctest.Wait()
		offers("after the second attempt failed", false, 2)
		if !measure(measurePatience) || measure(measurePatience) {
			t.Error("after the failed mount, exactly one Measure must report that the node's volume drivers changed")
		}

		<-time.After(mountPause)
		ctx, giveUp = context.WithCancel(t.Context())
		defer giveUp()
		mounted = make(chan struct{})
		begin()
		if measure(measurePatience) {
			t.Error("while the third attempt to mount is in progress, Measure reports that the node's volume drivers changed, want no change")
		}
		offers("while the third attempt is in progress", false, 2)
		sys.on.Store(false)
		giveUp()
		<-mounted
		synctest.Wait()
		if !measure(0) || measure(0) {
			t.Error("after the successful mount, exactly one Measure must report that the node's volume drivers changed")
		}
		offers("after the third attempt succeeded", true, 3)
	})
}

// The agent does not treat a server that answers slowly as unreachable, so the node still registers the volume
// driver nfs.
func TestSlowServerIsOffered(t *testing.T) {
	for kind, program := range map[string]string{NFS: "mount", Ceph: "rbd"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const took = 18 * time.Second
				sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs", "rbd"}}, takes: map[string]time.Duration{program: took}}
				if kind == NFS {
					sys.takes[program] += measureTimeout
				}
				b := newBench(t, sys, func(c *Config) {
					if c.NFS.Server, c.NFS.Export = "files", "/srv"; kind == Ceph {
						c.NFS.Server, c.Ceph.Pool = "", "persys"
					}
				})
				for range 12 { // call Measure every 5 s for a minute, which is longer than one run of the slow program
					b.m.Measure(t.Context())
					if got := b.m.Drivers(); len(got) != 1 || got[0] != kind {
						t.Fatalf("while the server is slow the node registers the volume drivers %q, and the reason against the slow driver is %q", got, b.m.Lacks()[kind])
					}
					<-time.After(measurePatience)
				}
			})
		})
	}
}
