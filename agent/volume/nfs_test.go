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

// away is a fake machine whose file server does not answer, or answers slowly.
type away struct {
	*fake
	on    atomic.Bool
	asked chan struct{}            // receives a value for each mount call, if not nil
	takes map[string]time.Duration // duration by program
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

// One caller waits for an unreachable file server. The others get an error at once, also for a while afterwards.
func TestOneWaitsForAFileServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}}
		sys.on.Store(true)
		b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "files", "/srv" })
		volume := func(name string) *agentv1.ManagedVolumeSpec { return folder(name, by(NFS)) }
		took := func(want time.Duration, fn func()) {
			t.Helper()
			start := time.Now()
			if fn(); time.Since(start) != want {
				t.Errorf("after %v, want %v", time.Since(start), want)
			}
		}
		begin := func(ctx context.Context) (ended chan struct{}) {
			ended = make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = b.m.Attach(ctx, "a", driver.Container, []*agentv1.ManagedVolumeSpec{volume("a")})
			}()
			synctest.Wait()
			return ended
		}
		unanswered := func() {
			t.Helper()
			for _, shared := range []string{"b", "a"} { // a is the volume of the waiting caller
				if l := b.m.locks["nfs:"+shared]; l != nil && !l.TryLock() {
					t.Fatalf("volume %s is held by the one that waits", shared)
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

		first = begin(t.Context()) // tried at once, because the server's state is unknown
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
			_, _ = m.Attach(ctx, "web", driver.Container, []*agentv1.ManagedVolumeSpec{folder("data", by(NFS), retain)})
		},
		"release": func(ctx context.Context, m *Manager) { _ = m.Release(ctx, "web", Fate{}) },
		"trim":    func(ctx context.Context, m *Manager) { _ = m.Trim(ctx, "web", nil) },
		"mount":   func(ctx context.Context, m *Manager) { m.Mount(ctx) },
		"delete":  func(ctx context.Context, m *Manager) { _ = m.Delete(ctx, "nfs:left") },
	} {
		t.Run(name, func(t *testing.T) {
			sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}, asked: make(chan struct{}, 1)}
			b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "files", "/srv" })
			b.attach("web", driver.Container, folder("data", by(NFS), retain))
			b.attach("gone", driver.Container, folder("left", by(NFS), retain))
			if err := b.m.Release(t.Context(), "gone", Fate{}); err != nil {
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
			case <-sys.asked: // the caller waits
			case <-ended:
				t.Fatal("it does not ask for the export")
			}
			id := "nfs:data"
			if name == "delete" {
				id = "nfs:left"
			}
			if l := b.m.locks[id]; l != nil {
				if !l.TryLock() {
					t.Error("it holds the volume meanwhile")
				} else {
					l.Unlock()
				}
			}
			giveUp()
			<-ended
		})
	}
}

// The node's offer stays unchanged until an attempt to mount has ended, because a leader evicts workloads whose
// driver is no longer offered.
func TestExportIsOfferedWhileItIsMounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := &away{fake: &fake{known: []string{"nfs"}, programs: []string{"mount.nfs"}}}
		b := newBench(t, sys, func(c *Config) { c.NFS.Server, c.NFS.Export = "files", "/srv" })
		offers := func(when string, want bool, pools int) {
			t.Helper()
			if got := len(b.m.Drivers()) == 1; got != want || (b.m.Lacks()[NFS] == "") != want || len(b.m.Pools()) != pools {
				t.Errorf("%s: offers %q in pools %v, lacks %q", when, b.m.Drivers(), b.m.Pools(), b.m.Lacks()[NFS])
			}
		}
		measure := func(atMost time.Duration) bool {
			t.Helper()
			began := time.Now()
			news := b.m.Measure(t.Context())
			if took := time.Since(began); took > atMost {
				t.Errorf("what else is looked at waited %v for it", took)
			}
			return news
		}
		b.attach("web", driver.Container, folder("data", by(NFS)))
		sys.mu.Lock()
		sys.mounts = nil
		sys.mu.Unlock()
		sys.on.Store(true)
		b.restart() // a reboot
		offers("not looked at", false, 0)

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
			t.Error("the first look is no news")
		}
		offers("while it is mounted", true, 2)
		if <-time.After(mountPatience); measure(measurePatience) {
			t.Error("an attempt under way is news")
		}
		offers("beyond everybody's patience", true, 2)
		<-time.After(measureTimeout)
		if measure(measurePatience) {
			t.Error("an attempt under way is news")
		}
		offers("after a whole look", true, 2)
		giveUp()
		<-mounted
		synctest.Wait()
		offers("its caller gave up", true, 2)

		ctx, giveUp = context.WithTimeout(t.Context(), 8*time.Second)
		defer giveUp()
		mounted = make(chan struct{})
		begin()
		if measure(measurePatience) {
			t.Error("another attempt is news")
		}
		<-mounted
		synctest.Wait()
		offers("it failed", false, 2)
		if !measure(measurePatience) || measure(measurePatience) {
			t.Error("that it failed is news once")
		}

		<-time.After(mountPause)
		ctx, giveUp = context.WithCancel(t.Context())
		defer giveUp()
		mounted = make(chan struct{})
		begin()
		if measure(measurePatience) {
			t.Error("another attempt is news")
		}
		offers("it is tried again", false, 2)
		sys.on.Store(false)
		giveUp()
		<-mounted
		synctest.Wait()
		if !measure(0) || measure(0) {
			t.Error("that it is mounted is news once")
		}
		offers("it succeeded", true, 3)
	})
}

// A slow server does not count as unreachable, whichever caller contacts it first.
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
				for range 12 { // measurements of an agent
					b.m.Measure(t.Context())
					if got := b.m.Drivers(); len(got) != 1 || got[0] != kind {
						t.Fatalf("offers %q, lacks %q", got, b.m.Lacks()[kind])
					}
					<-time.After(measurePatience)
				}
			})
		})
	}
}
