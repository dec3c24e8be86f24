package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestACopiedScheduler: a scheduler with a copy of another scheduler's data directory is refused. The test
// has two cases. In the first, the copy starts while the original runs. In the second, both start at the same
// moment, and the copy is ready first. Both schedulers report the copy with both addresses.
func TestACopiedScheduler(t *testing.T) {
	c := start(t, harness.Options{Binaries: raced(t)})
	first := c.Schedulers[follower(t, c)]
	must(t, first.Terminate(10*time.Second))
	// clone makes a scheduler with a copy of the data directory and with the same name, as if the whole machine
	// had been cloned.
	clone := func() *harness.Scheduler {
		s := got[*harness.Scheduler](t)(c.NewScheduler())
		out, err := exec.CommandContext(t.Context(), "cp", "-a", first.DataDir+"/.", s.DataDir).CombinedOutput() // cp -a keeps the modes of the key files
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		s.Env = append(s.Env, "SCHEDULER_NAME="+first.Name)
		return s
	}
	later, before := clone(), clone()

	refused := func(s *harness.Scheduler) {
		t.Helper()
		names := func(text string) error {
			if !strings.Contains(text, first.Raft) || !strings.Contains(text, s.Raft) {
				return fmt.Errorf("%q does not name %s and %s", text, first.Raft, s.Raft)
			}
			return nil
		}
		healthy(t, s, "says that it is a copy", func(h *healthText) error {
			if h.code != 503 || h.Status != "copied" {
				return errors.New("/health does not say that the scheduler is a copy")
			}
			return names(h.Reason)
		})
		code, _, err := getText(t.Context(), "http://"+s.HTTP+"/ready?write")
		must(t, err)
		if code != 503 {
			t.Errorf("the path /ready?write of the copied scheduler returned status %d, want 503", code)
		}
		healthy(t, first, "shows the copy", func(h *healthText) error {
			if h.code != 200 || h.Status != "ok" || !slices.Equal(h.Copies, []string{s.Raft}) {
				return errors.New("/health of the original does not show the copy")
			}
			return nil
		})
		// Ask the copy itself for its status.
		st, err := c.Status(t.Context(), s.Index)
		must(t, err)
		must(t, names(st.GetModeReason()))
		control := got[controlv1.AgentControlClient](t)(c.Control(s.Index))
		_, err = control.ListWorkloads(t.Context(), &controlv1.ListWorkloadsRequest{Level: controlv1.ReadLevel_READ_LEVEL_STALE})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the copied scheduler answered a read with %v, want Unavailable", err)
		} else {
			must(t, names(err.Error()))
		}
		must(t, testbed.Poll(t.Context(), settle, "persysctl shows the copy", func(ctx context.Context) error {
			res, err := c.Ctl(ctx, "status")
			if err != nil {
				return err
			}
			if res.Code != 0 {
				return fmt.Errorf("persysctl ended with code %d: %s", res.Code, res.Stderr)
			}
			return names(res.Stdout)
		}))
		must(t, testbed.Poll(t.Context(), settle, "the event of the copy", func(ctx context.Context) error {
			res, err := c.Ctl(ctx, "events", "--type", "ReplicaCopied", "-o", "json")
			if err != nil {
				return err
			}
			found := 0
			for line := range strings.Lines(res.Stdout) {
				if strings.Contains(line, `"message"`) && names(line) == nil {
					found++
				}
			}
			if found != 1 {
				return fmt.Errorf("%d events name both addresses, want 1:\n%s%s", found, res.Stdout, res.Stderr)
			}
			return nil
		}))
		// The process of the refused copy must keep running, to report the reason, and must end on SIGTERM.
		if !s.Running() {
			t.Error("the process of the copied scheduler has ended; want that it runs and reports the copy")
		}
		must(t, s.Terminate(10*time.Second))
	}

	must(t, first.Start())
	must(t, later.Start())
	refused(later)

	// Restart original and copy at the same moment, so that the copy is ready first.
	must(t, first.Kill())
	must(t, before.Start())
	healthy(t, before, "waits", func(h *healthText) error {
		if h.code != 503 || h.Status != "waiting" || !strings.Contains(h.Reason, first.Raft) {
			return errors.New("/health does not have the status waiting, with the address of the original")
		}
		return nil
	})
	must(t, first.Start())
	refused(before)

	// The cluster must still list the original, with the original's own address and not that of the copy.
	st, err := c.Status(t.Context(), first.Index)
	must(t, err)
	for _, r := range st.GetReplicas() {
		if r.GetSelf() && r.GetRaftAddr() != first.Raft {
			t.Errorf("the original scheduler is recorded at the Raft address %s, want its own address", r.GetRaftAddr())
		}
	}
	if text, err := json.Marshal(st.GetReplicas()); err != nil || len(st.GetReplicas()) != 3 {
		t.Errorf("the cluster has the replicas %s, want three (%v)", text, err)
	}
}
