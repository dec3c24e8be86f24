package persysctl

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// The commands list, get and why show a workload that is being stopped or deleted with the node on which it
// still runs, and with the seconds until the agent kills it. If the record has a more specific reason, they
// show that reason.
func TestStoppingInstancesAreShown(t *testing.T) {
	at := func(s *controlv1.Stopping, ago int) *controlv1.Stopping {
		s.Since = timestamppb.New(epoch.Add(-time.Duration(ago) * time.Second))
		return s
	}
	for _, tt := range []struct {
		name                                       string
		desired, status, node, code                string
		stopping                                   *controlv1.Stopping
		wantStatus, wantNode, wantReason, wantLine string
	}{
		{"a deletion", "Deleted", "Deleting", "", "Deleting", at(&controlv1.Stopping{NodeIds: []string{"a"}, GraceSeconds: 30}, 9), "Deleting", "a",
			"waits for the instance to end; it is killed in 21s", "Deleting on a: waits for the instance to end; it is killed after 30s"},
		{"a deletion on two nodes", "Deleted", "Deleting", "", "Deleting", at(&controlv1.Stopping{NodeIds: []string{"a", "b"}}, 9), "Deleting", "a,b",
			"waits for the instance to end", "Deleting on a,b: waits for the instance to end"},
		{"the time is over", "Deleted", "Deleting", "", "Deleting", at(&controlv1.Stopping{NodeIds: []string{"a"}, GraceSeconds: 30}, 31), "Deleting", "a",
			"waits for the node to report the end of the instance", "Deleting on a: waits for the instance to end; it is killed after 30s"},
		{"a deletion that takes too long", "Deleted", "Deleting", "", "DeleteTimeout", at(&controlv1.Stopping{NodeIds: []string{"a"}, GraceSeconds: 30}, 300), "Deleting", "a",
			"DeleteTimeout: node a", "Deleting on a: DeleteTimeout: node a"},
		{"a stop", "Stopped", "Pending", "a", "Working", &controlv1.Stopping{NodeIds: []string{"a"}, GraceSeconds: 30}, "Stopping", "a",
			"waits for the instance to end; it is killed after 30s", "Stopping on a: waits for the instance to end; it is killed after 30s"},
		{"a stop just ordered", "Stopped", "Updating", "a", "UserStop", &controlv1.Stopping{NodeIds: []string{"a"}}, "Stopping", "a", "waits for the instance to end", "Stopping on a: waits for the instance to end"},
		{"stopped", "Stopped", "Stopped", "a", "UserStop", nil, "Stopped", "a", "", "Stopped on a: UserStop: node a"},
		{"an update", "Running", "Updating", "a", "Working", nil, "Updating", "a", "Working: node a", "Updating on a: Working: node a"},
	} {
		v := &controlv1.WorkloadView{
			WorkloadId: "web", DesiredState: tt.desired, Status: tt.status, AssignedNodeId: tt.node, Stopping: tt.stopping,
			Reason: &controlv1.ReasonDetail{Code: tt.code, Message: "node a"},
		}
		c := &cli{world: world{now: func() time.Time { return epoch }}}
		if got := shownStatus(v); got != tt.wantStatus {
			t.Errorf("%s: the status is %q, want %q", tt.name, got, tt.wantStatus)
		}
		if got := shownNode(v); got != tt.wantNode {
			t.Errorf("%s: the node is %q, want %q", tt.name, got, tt.wantNode)
		}
		if got := c.reasonCell(v); got != tt.wantReason {
			t.Errorf("%s: list prints the reason %q, want %q", tt.name, got, tt.wantReason)
		}
		if got := (&progress{view: v}).line(time.Time{}); got != tt.wantLine {
			t.Errorf("%s: --wait prints %q, want %q", tt.name, got, tt.wantLine)
		}
	}
	// On a terminal, --wait shows the seconds until a stopping workload is killed. If the time of the order is not
	// known, the count starts when the command first sees the workload stopping.
	p := &progress{stopping: epoch, view: &controlv1.WorkloadView{DesiredState: "Stopped", Status: "Pending", AssignedNodeId: "a", Stopping: &controlv1.Stopping{NodeIds: []string{"a"}, GraceSeconds: 30}}}
	if got := p.line(epoch.Add(9 * time.Second)); !strings.HasSuffix(got, "killed in 21s") {
		t.Errorf("9 s after a stop the progress is %q", got)
	}
}
