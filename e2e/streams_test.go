package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/testbed"
)

// person creates a user with the given access level in a cluster that has its own CA, by a join token. It
// returns the identity of the user, which the method Dial takes.
func person(t *testing.T, c *harness.Cluster, name, access string) string {
	t.Helper()
	home := t.TempDir()
	env := append(c.CtlEnv(), "HOME="+home, "PERSYS_TLS_CA=", "PERSYS_TLS_CERT=", "PERSYS_TLS_KEY=")
	token := strings.Split(ctl(t, c, "token", "create", "--role", "user", "--name", name, "--access", access), "\n")[0]
	var out strings.Builder
	if code := got[int](t)(c.RunCtl(t.Context(), env, &out, &out, "join", token)); code != 0 {
		t.Fatalf("persysctl join of %s ended with %d: %s", name, code, out.String())
	}
	c.SetLeaf("user/"+name, pki.IdentityStore{Dir: filepath.Join(home, ".persys", "identity")}.Paths())
	return "user/" + name
}

// TestStreamsLeaveRoomForOrders: a viewer opens 1,300 log streams of one workload. Above a limit, further
// streams must be refused with an error that names the limit and its setting, and workloads can still be
// applied and stopped on that node. Three limits are tested: per user, per node at one scheduler, and per
// agent.
func TestStreamsLeaveRoomForOrders(t *testing.T) {
	for _, x := range []struct {
		name, setting string
		env           map[string]string
		open          int
	}{
		{"the streams of one person", "SCHEDULER_LIMIT_STREAMS)", nil, 256},
		{"the streams of one node", "SCHEDULER_LIMIT_STREAMS_PER_NODE)", map[string]string{"SCHEDULER_LIMIT_STREAMS": "0"}, 512},
		{"the streams of one agent", "PERSYS_LIMIT_STREAMS)", map[string]string{"SCHEDULER_LIMIT_STREAMS": "0", "SCHEDULER_LIMIT_STREAMS_PER_NODE": "0"}, 1024},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := start(t, harness.Options{Schedulers: 1, Binaries: shipped(t), OwnCA: true, SchedulerEnv: fast(x.env)})
			got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			apply(t, c, "watched", container("sim/run"))
			got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, "watched", settle, running))

			cc := got[*grpc.ClientConn](t)(c.Dial(c.Schedulers[0].GRPC, person(t, c, "vera", "viewer")))
			defer cc.Close()
			var mu sync.Mutex
			waiting, refused, hint := 0, 0, ""
			var streams sync.WaitGroup
			defer streams.Wait()
			watching, stop := context.WithCancel(ctx)
			defer stop()
			for range 1300 {
				streams.Go(func() {
					s, err := clusterv1.NewClusterClient(cc).Logs(watching, &clusterv1.LogsRequest{WorkloadId: "watched", Follow: true})
					for first := true; err == nil; first = false {
						if _, err = s.Recv(); err == nil && first {
							mu.Lock()
							waiting++
							mu.Unlock()
						}
					}
					if watching.Err() == nil {
						mu.Lock()
						defer mu.Unlock()
						if refused++; status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), x.setting) || !strings.Contains(err.Error(), fmt.Sprint(x.open)) {
							hint = err.Error()
						}
					}
				})
			}
			must(t, testbed.Poll(ctx, settle, "all streams to be open or refused", func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				if waiting != x.open || refused != 1300-x.open {
					return fmt.Errorf("%d streams are open and %d refused, want %d open; another error: %s", waiting, refused, x.open, hint)
				}
				return nil
			}))
			if hint != "" {
				t.Errorf("a refusal does not name the limit and %s: %s", x.setting, hint)
			}
			for i := range 10 {
				id := fmt.Sprintf("ordered-%d", i)
				apply(t, c, id, container("sim/run"))
				got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, id, settle, running))
				ctl(t, c, "delete", id, "--wait")
			}
			mu.Lock()
			defer mu.Unlock()
			if refused != 1300-x.open {
				t.Errorf("%d streams ended meanwhile", refused-(1300-x.open))
			}

		})
	}
}
