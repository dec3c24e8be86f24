package persysctl

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

func (f *fake) PreviewRebalance(_ context.Context, req *clusterv1.PreviewRebalanceRequest) (*clusterv1.PreviewRebalanceResponse, error) {
	out := &clusterv1.PreviewRebalanceResponse{
		Before: &clusterv1.Imbalance{DeviationPercent: 22.1, LowestPercent: 0, HighestPercent: 46.9}, Movable: 12, Index: 42,
		Immovable: []*clusterv1.ImmovableWorkloads{{Reason: "the workload has local data on its node", Workloads: 3}, {Reason: "the workload is exclusive", Workloads: 1}},
	}
	if out.After = out.Before; req.GetMinGainPercent() > 50 {
		out.Standing = "waits while node node-b is draining"
		return out, nil
	}
	out.After = &clusterv1.Imbalance{DeviationPercent: 2.5, LowestPercent: 28, HighestPercent: 33.1}
	out.Moves = []*clusterv1.RebalanceMove{
		{WorkloadId: "web-2", FromNodeId: "node-a", ToNodeId: "node-c", GainPercent: 41.7,
			Reason: "load 46.9 % here, 0.0 % there"},
		{WorkloadId: "batch-worker-with-a-long-name-1", FromNodeId: "node-b", ToNodeId: "node-c", GainPercent: 86.5,
			Reason: "load 41.7 % here, 5.2 % there; +50.0 % for members of its group on the node"},
	}
	return out, nil
}

func (f *fake) GetRebalancePolicy(context.Context, *clusterv1.GetRebalancePolicyRequest) (*clusterv1.GetRebalancePolicyResponse, error) {
	return &clusterv1.GetRebalancePolicyResponse{
		Policy: &clusterv1.RebalancePolicy{PerHour: 20, AtOnce: 2, MinGainPercent: 15}, Standing: "waits while node node-b is draining", Index: 42,
	}, nil
}

func (f *fake) SetRebalancePolicy(_ context.Context, req *clusterv1.SetRebalancePolicyRequest) (*clusterv1.SetRebalancePolicyResponse, error) {
	return &clusterv1.SetRebalancePolicyResponse{Policy: req.GetPolicy(), Index: 43}, nil
}

// ApplyRebalance answers with two moves, then with one move and one dropped move, and then with none.
func (f *fake) ApplyRebalance(_ context.Context, req *clusterv1.ApplyRebalanceRequest) (*clusterv1.ApplyRebalanceResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rounds++
	move := func(id string) *clusterv1.RebalanceMove {
		return &clusterv1.RebalanceMove{WorkloadId: id, FromNodeId: "node-a", ToNodeId: "node-c", GainPercent: 41.7, Reason: "load 46.9 % here, 0.0 % there"}
	}
	out := &clusterv1.ApplyRebalanceResponse{Index: uint64(40 + f.rounds)}
	switch {
	case req.GetMinGainPercent() > 50:
	case f.rounds == 1:
		out.Moves = []*clusterv1.RebalanceMove{move("web-0"), move("db")}
	case f.rounds == 2:
		out.Moves = []*clusterv1.RebalanceMove{move("web-1")}
		late := move("api")
		late.Reason = `the amounts that are reserved on node "node-c" have changed, so the gain for workload "api" is not known any more`
		out.Dropped = []*clusterv1.RebalanceMove{late}
	}
	return out, nil
}

// TestRebalanceWaits: `persysctl rebalance --wait` requests moves again and again until no further move is worthwhile,
// and shows the progress. It must end with an error if the scheduler dropped a move, or if the wait is interrupted.
func TestRebalanceWaits(t *testing.T) {
	scenes := func() []scene {
		return []scene{
			{changes: []*clusterv1.WorkloadChange{
				told(41, view("web-0", "Pending", "", "waits until node node-a has stopped it")), told(41, view("db", "Running", "node-c", "")), synced(41),
				told(42, view("web-0", "Running", "node-c", "")),
			}},
			{changes: []*clusterv1.WorkloadChange{told(43, view("web-1", "Running", "node-c", "")), synced(43)}},
		}
	}
	f, s := start(t, nil), newSession(t)
	f.script = scenes()
	code := s.run(f, "rebalance", "--apply", "--wait")
	for _, want := range []string{"Moving 2 workloads:", "Moving 1 workload:", "3 moves done."} {
		if !strings.Contains(s.stdout.String(), want) {
			t.Errorf("the output does not contain %q: %s", want, s.stdout.String())
		}
	}
	for _, want := range []string{"waits until node node-a has stopped it", "api is not moved: the amounts", "1 move was dropped; the first: api: the amounts"} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("the messages lack %q: %s", want, s.stderr.String())
		}
	}
	if code != exitFailed {
		t.Errorf("exit %d with a dropped move, want %d", code, exitFailed)
	}
	var asked []uint32
	for _, r := range f.requests {
		if req, ok := r.(*clusterv1.ApplyRebalanceRequest); ok {
			asked = append(asked, req.GetMaxMoves())
		}
	}
	if !slices.Equal(asked, []uint32{250, 250, 250}) {
		t.Errorf("the rounds requested %v moves", asked)
	}

	f, s = start(t, nil), newSession(t)
	f.script = scenes()
	if code := s.run(f, "rebalance", "--apply", "--wait", "--max-moves", "2"); code != exitOK || f.rounds != 1 {
		t.Errorf("exit %d after %d rounds, want %d after 1: %s", code, f.rounds, exitOK, s.stderr.String())
	}
	f, s = start(t, nil), newSession(t)
	f.script = []scene{{changes: []*clusterv1.WorkloadChange{told(41, view("web-0", "Pending", "", "")), synced(41)}}}
	if code := s.run(f, "rebalance", "--apply", "--wait", "--timeout", "50ms", "-o", "json"); code != exitTimeout || f.rounds != 1 {
		t.Errorf("exit %d after %d rounds when the wait is over, want %d after 1", code, f.rounds, exitTimeout)
	}
	if out := s.stdout.String(); !json.Valid([]byte(out)) || !strings.Contains(out, `"web-0"`) || !strings.Contains(out, `"db"`) {
		t.Errorf("with -o json the moves before the end of the wait are not printed: %q", out)
	}
}

// all returns a copy of the fake scheduler's workloads, because a test may replace them while calls run.
func (f *fake) all() []*controlv1.WorkloadView {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.workloads)
}
