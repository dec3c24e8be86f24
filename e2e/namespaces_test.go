package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/testbed"
)

// shell matches the command blocks of a page, each with its run comment, and the YAML blocks, which are
// files.
var shell = regexp.MustCompile("(?s)<!-- run: ([^\n]*) -->\n```sh\n(.*?)```|```yaml\n(.*?)```")

// TestNamespaces runs the commands of the pages on namespaces and security. Then an operator who may act in
// one namespace only makes every call for other namespaces, through every replica, and each must be refused.
func TestNamespaces(t *testing.T) {
	c := got[*harness.Cluster](t)(harness.Prepare(harness.Options{Binaries: raced(t), TLS: true, Schedulers: 3, SchedulerEnv: fast(nil)}))
	watchCluster(t, c)
	ours := newForger(t, filepath.Join(c.Dir, "certs"))
	for _, who := range []string{"ada", "bob"} {
		c.SetLeaf("user/"+who, ours.files(ours.cert("e2e/user/"+who, -time.Hour, 24*time.Hour)))
	}
	up(t, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	as := func(i int, who string) *grpc.ClientConn {
		cc := got[*grpc.ClientConn](t)(c.Dial(c.Schedulers[i].GRPC, who))
		t.Cleanup(func() { _ = cc.Close() })
		return cc
	}
	admin := as(0, "user/admin")
	apply := func(cc *grpc.ClientConn, id, namespace string) error {
		s := contentSpec("x")
		s.Namespace = namespace
		r, err := controlv1.NewAgentControlClient(cc).ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: s})
		if err == nil && !r.GetSuccess() {
			err = fmt.Errorf("%s", r.GetErrorMessage())
		}
		return err
	}
	t.Run("the commands of the page", func(t *testing.T) {
		runPage(t, c, 7, map[string]string{"cart.yaml": "id: cart\n"}, "namespaces", "security")
	})

	for name, users := range map[string][]string{"a": {"ada"}, "b": {"bob"}} {
		_, err := clusterv1.NewClusterClient(admin).PutNamespace(ctx, &clusterv1.PutNamespaceRequest{
			Name: name, Users: users, Quota: &clusterv1.NamespaceAmounts{Workloads: 4},
		})
		must(t, err)
		must(t, apply(admin, "in-"+name, name))
	}
	must(t, apply(admin, "in-default", ""))
	for _, id := range []string{"in-a", "in-b", "in-default"} {
		got[*controlv1.WorkloadView](t)(c.WaitWorkload(ctx, id, settle, running))
	}
	// Wait until every replica knows the users of each namespace.
	for i := range c.Schedulers {
		must(t, testbed.Poll(ctx, settle, "the namespaces at every replica", func(ctx context.Context) error {
			r, err := clusterv1.NewClusterClient(as(i, "user/ada")).ListNamespaces(ctx, &clusterv1.ListNamespacesRequest{})
			if err == nil && len(r.GetNamespaces()) != 1 {
				err = fmt.Errorf("the replica knows %d namespaces", len(r.GetNamespaces()))
			}
			return err
		}))
	}
	for i := range c.Schedulers {
		ada := as(i, "user/ada")
		control, cluster := controlv1.NewAgentControlClient(ada), clusterv1.NewClusterClient(ada)
		for _, ns := range []string{"b", fsm.DefaultNamespace} {
			id := "in-" + ns
			for what, do := range map[string]func() error{
				"apply":                     func() error { return apply(ada, id, ns) },
				"apply without a namespace": func() error { return apply(ada, id, "") },
				"apply a new workload":      func() error { return apply(ada, "new-"+ns, ns) },
				"stop": func() error {
					return errorOf(control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "stopped"}))
				},
				"delete": func() error {
					return errorOf(control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id}))
				},
				"force a delete": func() error {
					return errorOf(control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id, Force: true}))
				},
				"retry": func() error {
					return errorOf(control.RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: id}))
				},
				"get":                func() error { return errorOf(control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: id})) },
				"why":                func() error { return errorOf(cluster.Why(ctx, &clusterv1.WhyRequest{WorkloadId: id})) },
				"show the namespace": func() error { return errorOf(cluster.ListNamespaces(ctx, &clusterv1.ListNamespacesRequest{Name: ns})) },
				"logs": func() error {
					s, err := cluster.Logs(ctx, &clusterv1.LogsRequest{WorkloadId: id})
					if err == nil {
						_, err = s.Recv()
					}
					return err
				},
				"exec": func() error {
					s, err := cluster.Exec(ctx)
					if err == nil {
						_ = s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: id, Command: []string{"sh"}}}})
						_, err = s.Recv()
					}
					return err
				},
			} {
				if err := do(); status.Code(err) != codes.PermissionDenied {
					t.Errorf("call %s in namespace %s through %s: %v, want PermissionDenied", what, ns, c.Schedulers[i].Name, err)
				}
			}
		}
		_, err := cluster.PutNamespace(ctx, &clusterv1.PutNamespaceRequest{Name: "a", Users: []string{"ada"}, Quota: &clusterv1.NamespaceAmounts{Workloads: 1000}})
		denied(t, err, codes.PermissionDenied, "ada")
		_, err = cluster.CordonNode(ctx, &clusterv1.CordonNodeRequest{NodeId: "node-a", On: true})
		denied(t, err, codes.PermissionDenied, "whole cluster")
		mine := fmt.Sprintf("mine-%d", i)
		must(t, apply(ada, mine, "a"))
		list, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{})
		must(t, err)
		for _, w := range list.GetWorkloads() {
			if w.GetNamespace() != "a" {
				t.Errorf("ada is shown %s of %s", w.GetWorkloadId(), w.GetNamespace())
			}
		}
	}
	err := apply(as(0, "user/ada"), "one-too-many", "a")
	if err == nil || !strings.Contains(err.Error(), "workloads: 4 used, 1 more asked for, limit 4") {
		t.Errorf("the apply of a fifth workload returned %v, want that it is over the quota", err)
	}
	for _, id := range []string{"in-b", "in-default"} {
		if _, err := c.WaitWorkload(ctx, id, settle, running); err != nil {
			t.Errorf("workload %s was changed: %v", id, err)
		}
	}
}

// errorOf drops the answer of a call and returns its error, for calls of which only the error matters.
func errorOf[T any](_ T, err error) error { return err }

// TestQuotaHolds applies and deletes through all replicas concurrently while the leader is killed. No replica
// ever shows more reserved resources than the quota allows, and every acknowledged workload exists.
func TestQuotaHolds(t *testing.T) {
	const limit = 12
	c := start(t, harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	whole := got[clusterv1.ClusterClient](t)(c.AnyAdmin(ctx))
	_, err := whole.PutNamespace(ctx, &clusterv1.PutNamespaceRequest{Name: "n", Quota: &clusterv1.NamespaceAmounts{Workloads: limit}})
	must(t, err)

	var mu sync.Mutex
	acknowledged := map[string]bool{} // workloads whose apply was acknowledged and which were not deleted afterwards
	var refused atomic.Int64
	most := int64(0)
	saw := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, n)
	}
	traffic, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	for n := range 2 * len(c.Schedulers) {
		via := got[controlv1.AgentControlClient](t)(c.Control(n % len(c.Schedulers)))
		group.Go(func() {
			var own []string
			for i := 0; traffic.Err() == nil; i++ {
				id := fmt.Sprintf("w-%d-%d", n, i)
				s := contentSpec("x")
				s.Namespace = "n"
				call, done := context.WithTimeout(traffic, 5*time.Second)
				r, err := via.ApplyWorkload(call, &controlv1.ApplyWorkloadRequest{WorkloadId: id, Spec: s})
				switch {
				case err != nil: // the call failed: its outcome is unknown, or no leader answered
				case r.GetSuccess():
					own = append(own, id)
					mu.Lock()
					acknowledged[id] = true
					mu.Unlock()
				default:
					refused.Add(1)
					if len(own) > 0 { // delete a workload of this client, so that others fit into the quota
						mu.Lock()
						delete(acknowledged, own[0])
						mu.Unlock()
						_, _ = via.DeleteWorkload(call, &controlv1.DeleteWorkloadRequest{WorkloadId: own[0]})
						own = own[1:]
					}
				}
				done()
			}
		})
	}
	for i := range c.Schedulers {
		look := got[clusterv1.ClusterClient](t)(c.Admin(i))
		list := got[controlv1.AgentControlClient](t)(c.Control(i))
		group.Go(func() {
			for traffic.Err() == nil {
				call, done := context.WithTimeout(traffic, time.Second)
				r, err := list.ListWorkloads(call, &controlv1.ListWorkloadsRequest{Namespace: "n", Level: controlv1.ReadLevel_READ_LEVEL_STALE})
				if err == nil {
					kept := int64(0)
					for _, w := range r.GetWorkloads() {
						if w.GetStatus() != string(fsm.StatusDeleting) {
							kept++
						}
					}
					saw(kept)
				}
				if n, err := look.ListNamespaces(call, &clusterv1.ListNamespacesRequest{Name: "n"}); err == nil {
					saw(n.GetNamespaces()[0].GetUsed().GetWorkloads())
				}
				done()
			}
		})
	}
	more := func(what string) {
		t.Helper()
		before := refused.Load()
		must(t, testbed.Poll(ctx, settle, what, func(context.Context) error {
			if n := refused.Load() - before; n < 30 {
				return fmt.Errorf("the applies had only %d refusals", n)
			}
			return nil
		}))
	}
	more("refusals before")
	leader := got[int](t)(c.WaitLeader(ctx, electionLimit))
	must(t, c.Schedulers[leader].Kill())
	got[int](t)(c.WaitLeader(ctx, electionLimit, leader))
	more("refusals without the former leader")
	must(t, c.Schedulers[leader].Start())
	must(t, c.WaitReady(ctx, settle))
	more("refusals of all")
	stop()
	group.Wait()

	r, err := whole.ListNamespaces(ctx, &clusterv1.ListNamespacesRequest{Name: "n"})
	must(t, err)
	used := r.GetNamespaces()[0].GetUsed().GetWorkloads()
	t.Logf("%d refusals, at most %d of %d at the same time, %d acknowledged, %d used at the end", refused.Load(), most, limit, len(acknowledged), used)
	if most > limit || used > limit || most < limit/2 {
		t.Errorf("at most %d workloads existed at the same time and the namespace counts %d; want no more than the quota, %d, and at least half of it", most, used, limit)
	}
	control := got[controlv1.AgentControlClient](t)(c.Any(ctx))
	for id := range acknowledged {
		if _, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: id}); err != nil {
			t.Errorf("workload %s was acknowledged, but reading it returns %v", id, err)
		}
	}
}
