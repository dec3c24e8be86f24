package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// reused is the cluster of the tests in the lane "shared". The first of them starts it, and TestMain closes it.
var reused *harness.Cluster

// sharedCluster returns a cluster of three schedulers without nodes. Tests that stop no scheduler use it one after
// another. At the end of a test its workloads, agents and nodes are removed. A failed test closes the cluster, so that
// the next test gets a new one.
func sharedCluster(t *testing.T) *harness.Cluster {
	t.Helper()
	if reused == nil {
		reused = got[*harness.Cluster](t)(harness.Start(t.Context(), harness.Options{Binaries: raced(t), SchedulerEnv: fast(nil)}))
	}
	c := reused
	t.Cleanup(func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*settle)
		defer cancel()
		reportAlarms(t, c)
		if !t.Failed() {
			if err := emptied(ctx, c); err != nil {
				t.Errorf("emptying the shared cluster: %v", err)
			}
		}
		if t.Failed() {
			saveLogs(t, c)
			reused = nil
			if err := c.Close(); err != nil {
				t.Errorf("taking the cluster down: %v", err)
			}
		}
	})
	return c
}

// closeShared closes the cluster of sharedCluster, if a test started it.
func closeShared() error {
	if reused == nil {
		return nil
	}
	return reused.Close()
}

// emptied deletes all workloads of a cluster, waits until their records are gone, stops all agents and removes their
// nodes.
func emptied(ctx context.Context, c *harness.Cluster) error {
	control, err := c.Any(ctx)
	if err != nil {
		return err
	}
	if err := testbed.Poll(ctx, settle, "the end of all workloads", func(ctx context.Context) error {
		list, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{})
		if err != nil {
			return err
		}
		deleted := map[string]bool{"": true}
		for _, w := range list.GetWorkloads() {
			// A member is deleted with its group or template. The delete of a member alone is refused.
			for _, id := range []string{w.GetGroup(), w.GetOwner(), w.GetWorkloadId()} {
				if !deleted[id] {
					deleted[id] = true
					if _, err := control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id}); err != nil {
						return err
					}
				}
			}
		}
		if n := len(list.GetWorkloads()); n > 0 {
			return fmt.Errorf("%d workloads still have records", n)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, a := range c.Agents {
		if err := a.Terminate(endsWithin); err != nil {
			return err
		}
		res, err := c.Ctl(ctx, "node", "remove", a.NodeID, "--force", "--yes")
		if err == nil && res.Code != 0 {
			err = errors.New(res.Stderr)
		}
		if err != nil {
			return fmt.Errorf("removing node %s: %w", a.NodeID, err)
		}
	}
	return c.ForgetAgents()
}
