package message

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

// If the status of a workload says that another node may be tried, the report to the schedulers says so too.
func TestAReportAsksForAnotherNode(t *testing.T) {
	for _, want := range []bool{true, false} {
		if got := report(&core.Workload{Status: &core.Status{ID: "web", TryElsewhere: want}}); got.GetTryElsewhere() != want {
			t.Errorf("the report to the schedulers is %v, want try_elsewhere %t", got, want)
		}
	}
}

// Every workload of a node fails at the same time, and each report has a message of the maximum length. The
// agent shortens them, so that the heartbeat is small enough to be sent.
func TestAHeartbeatFits(t *testing.T) {
	words := strings.Repeat("no space left on device ", workload.MaxMetadata/24) + "the end"
	saved := core.Saved{Status: map[string]core.SavedStatus{}}
	for i := range 600 {
		id := fmt.Sprintf("w-%d", i)
		saved.Intents = append(saved.Intents, &core.Intent{ID: id, Type: workload.Container})
		saved.Status[id] = core.SavedStatus{Status: &core.Status{ID: id, Message: words, Class: workload.StorageProvisionFailed}}
	}
	now := time.Unix(1_800_000_000, 0)
	list, _ := Reports(core.Restore(core.Settings{}, saved, now), true, true, 0, now)
	if n := proto.Size(&controlv1.HeartbeatRequest{WorkloadStatuses: list}); n > dial.MaxMessage {
		t.Errorf("the heartbeat has %d bytes, want at most %d", n, dial.MaxMessage)
	}
	if got := list[0].GetReason().GetMessage(); !strings.HasSuffix(got, "the end") || len(got) < 500 {
		t.Errorf("the message of a workload was shortened to %q, want its end and at least 500 bytes", got)
	}
}

// If the status of a failed workload says that no retry helps (retry_terminal), the report to the schedulers
// has the field terminal.
func TestReportSaysThatNoRetryHelps(t *testing.T) {
	for text, want := range map[string]bool{"true": true, "": false} {
		st := &core.Status{ID: "web", State: workload.Failed, Metadata: map[string]string{"retry_terminal": text}}
		if got := report(&core.Workload{Status: st}); got.GetTerminal() != want {
			t.Errorf("with retry_terminal %q the report is %v, want terminal %t", text, got, want)
		}
	}
}
