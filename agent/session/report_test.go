package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/workload"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// A report says that another node may be tried if the status of the workload does.
func TestAReportAsksForAnotherNode(t *testing.T) {
	for _, want := range []bool{true, false} {
		if got := report(&core.Workload{Status: &core.Status{ID: "web", TryElsewhere: want}}); got.GetTryElsewhere() != want {
			t.Errorf("the report is %v, want try_elsewhere %t", got, want)
		}
	}
}

// Every workload of a node fails at the same time, with a message of the maximum length. The heartbeat is
// still small enough to be sent.
func TestAHeartbeatFits(t *testing.T) {
	words := strings.Repeat("no space left on device ", workload.MaxMetadata/24) + "the end"
	saved := core.Saved{Status: map[string]core.SavedStatus{}}
	for i := range 600 {
		id := fmt.Sprintf("w-%d", i)
		saved.Intents = append(saved.Intents, &core.Intent{ID: id, Type: workload.Container})
		saved.Status[id] = core.SavedStatus{Status: &core.Status{ID: id, Message: words, Class: workload.StorageProvisionFailed}}
	}
	now := time.Unix(1_800_000_000, 0)
	list, _ := changes(core.Restore(core.Settings{}, saved, now), true, true, 0, now)
	if n := proto.Size(&controlv1.HeartbeatRequest{WorkloadStatuses: list}); n > dial.MaxMessage {
		t.Errorf("the heartbeat has %d bytes, want at most %d", n, dial.MaxMessage)
	}
	if got := list[0].GetReason().GetMessage(); !strings.HasSuffix(got, "the end") || len(got) < 500 {
		t.Errorf("the message of a workload was shortened to %q, want its end and at least 500 bytes", got)
	}
}
