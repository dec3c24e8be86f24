package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestEtcdOfAnotherUserIsNotUsed: another local user starts an etcd at the documented default address and stops it again.
// Without ETCD_ENDPOINTS the schedulers write nothing there and the mode does not change, until an admin
// attaches the etcd.
func TestEtcdOfAnotherUserIsNotUsed(t *testing.T) {
	etcd := part(t, func() (*harness.Part, error) { return harness.Etcd(t.Context(), t.TempDir()) })
	const local = "127.0.0.1:2379"
	for i, a := range etcd.Args {
		etcd.Args[i] = strings.ReplaceAll(a, etcd.Addr, local)
	}
	etcd.Addr = local
	must(t, etcd.Start())
	must(t, harness.WaitEtcd(t.Context(), etcd, settle))
	kv := etcdClient(t, etcd)
	c := start(t, harness.Options{Binaries: raced(t), Schedulers: 3, SchedulerEnv: mirrored(etcd, map[string]string{"ETCD_ENDPOINTS": ""})})
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	apply(t, c, "one", container("persys/any:1"))
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "one", settle, running))
	if out := ctl(t, c, "mirror", "status"); !strings.Contains(out, "off") {
		t.Errorf("the mirror status of a new cluster must be off, but persysctl prints:\n%s", out)
	}
	unchanged := func(when string) {
		t.Helper()
		if keys := got[map[string]string](t)(allKeys(t.Context(), kv)); len(keys) > 0 {
			t.Errorf("%d keys were written to the stranger's etcd %s", len(keys), when)
		}
	}
	unchanged("while it ran")
	must(t, etcd.Kill())
	leader := got[int](t)(c.Leader(t.Context()))
	must(t, c.Schedulers[leader].Kill())
	must(t, c.Schedulers[leader].Start())
	must(t, c.WaitReady(t.Context(), settle))
	apply(t, c, "two", container("persys/any:1"))
	waitMode(t, c, "normal")
	must(t, etcd.Start())
	must(t, harness.WaitEtcd(t.Context(), etcd, settle))
	unchanged("after it came back")

	if out := ctl(t, c, "mirror", "attach"); !strings.Contains(out, "is attached; every scheduler reaches it") {
		t.Errorf("persysctl mirror attach prints\n%s", out)
	}
	equals(t, c, kv, "after the attach")
	must(t, testbed.Poll(t.Context(), settle, "the etcd to hold the whole state", func(ctx context.Context) error {
		if out := ctl(t, c, "mirror", "status"); !strings.Contains(out, "healthy") || strings.Count(out, "reaches etcd cluster") != 3 {
			return fmt.Errorf("persysctl mirror status prints\n%s", out)
		}
		admin, err := c.LeaderAdmin(ctx)
		if err != nil {
			return err
		}
		if s, err := stateOf(ctx, admin); err != nil || s.Info().MirrorEtcd == 0 {
			return fmt.Errorf("the state does not record the attached etcd yet: %w", err)
		}
		return nil
	}))
	must(t, etcd.Kill())
	waitMode(t, c, "degraded")
	ctl(t, c, "mirror", "detach")
	waitMode(t, c, "normal")
	apply(t, c, "three", container("persys/any:1"))
}

// cable is a TCP relay: it forwards connections to an address until the test cuts it.
type cable struct {
	net.Listener
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c := &cable{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			if !c.keep(in, out) {
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		wg.Wait()
	})
	return c
}

// keep stores the two ends of a relayed connection, so that a cut can close them. If the cable is cut
// already, it closes them and returns false.
func (c *cable) keep(ends ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isCut {
		for _, e := range ends {
			_ = e.Close()
		}
		return false
	}
	c.conns = append(c.conns, ends...)
	return true
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = true
	for _, e := range c.conns {
		_ = e.Close()
	}
	c.conns = nil
}

// TestLeaderAloneLosesEtcd: each scheduler reaches etcd through a TCP relay of its own (cable). The
// leader's relay is cut. Then leadership must move to a scheduler that still reaches etcd, and no change
// may be refused meanwhile.
func TestLeaderAloneLosesEtcd(t *testing.T) {
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	c := start(t, harness.Options{Binaries: raced(t), Schedulers: 3, SchedulerEnv: fast(map[string]string{"ETCD_PROBE_INTERVAL": "300ms", "ETCD_TIMEOUT": "1s"})})
	cables := make([]*cable, len(c.Schedulers))
	for i, s := range c.Schedulers {
		cables[i] = newCable(t, etcd.Addr)
		s.Env = append(s.Env, "ETCD_ENDPOINTS="+cables[i].Addr().String())
		must(t, s.Kill())
		must(t, s.Start())
		must(t, c.WaitReady(t.Context(), settle))
	}
	equals(t, c, kv, "at first")
	former := got[int](t)(c.Leader(t.Context()))
	cables[former].cut()
	n := 0
	must(t, testbed.Poll(t.Context(), settle, "another leader, which mirrors", func(ctx context.Context) error {
		n++
		apply(t, c, fmt.Sprintf("w%d", n), container("persys/any:1")) // apply fails the test if the mode refuses changes
		i, err := c.Leader(ctx)
		if err != nil {
			return err
		}
		if i == former {
			return fmt.Errorf("scheduler %d, which is cut off from etcd, still leads", i)
		}
		return nil
	}))
	equals(t, c, kv, "under the new leader")
	admin := got[clusterv1.ClusterClient](t)(c.Admin(got[int](t)(c.Leader(t.Context()))))
	r := got[*clusterv1.MirrorStatusResponse](t)(admin.MirrorStatus(t.Context(), &clusterv1.MirrorStatusRequest{}))
	if lost := slices.DeleteFunc(r.GetReplicas(), func(p *clusterv1.MirrorProbe) bool { return p.GetError() == "" }); len(lost) != 1 || lost[0].GetReplica() != c.Schedulers[former].Name {
		t.Errorf("mirror status names %v", lost)
	}
}
