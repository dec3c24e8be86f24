package message

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm/bounds"
)

// TestFailureClassFromTheEnum: if an agent sends no failure class, the enum value FailureReason decides
// whether a failed workload is retried.
func TestFailureClassFromTheEnum(t *testing.T) {
	for reason, want := range map[controlv1.FailureReason]string{
		controlv1.FailureReason_FAILURE_REASON_UNSPECIFIED: "",
		controlv1.FailureReason_IMAGE_PULL_FAILED:          "IMAGE_PULL_FAILED",
		controlv1.FailureReason_IMAGE_NOT_FOUND:            "INVALID_IMAGE",
		controlv1.FailureReason_INSUFFICIENT_RESOURCES:     "INSUFFICIENT_RESOURCES",
		controlv1.FailureReason_INVALID_SPEC:               "INVALID_SPECIFICATION",
		controlv1.FailureReason_RUNTIME_ERROR:              "RUNTIME_ERROR",
		controlv1.FailureReason_NETWORK_ERROR:              "NETWORK_ERROR",
		controlv1.FailureReason_STORAGE_ERROR:              "STORAGE_ERROR",
		controlv1.FailureReason_VM_BOOT_FAILED:             "VM_BOOT_FAILED",
		controlv1.FailureReason(99):                        "99",
	} {
		st := &controlv1.WorkloadStatus{WorkloadId: "web", State: "Failed", FailureReason: reason}
		is(t, "code of "+reason.String(), Report(st, false).Observation.Code, want)
		st.Reason = &controlv1.ReasonDetail{Code: "PORT_BIND_CONFLICT"}
		is(t, "detail with "+reason.String(), Report(st, false).Observation.Code, "PORT_BIND_CONFLICT")
		st.State = "Running"
		is(t, "code of a workload that runs on a legacy v1 agent with "+reason.String(), Report(st, true).Observation.Code, "")
		st.Reason = nil
		is(t, "code of a running workload", Report(st, false).Observation.Code, "")
	}
}

// TestLongStatusTextsAreCut: long texts in a workload's status are cut before the status is compared with the
// state or stored.
func TestLongStatusTextsAreCut(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	st := &controlv1.WorkloadStatus{
		WorkloadId: "web", State: "Failed", Message: long, Reason: &controlv1.ReasonDetail{Code: long},
		Addresses: slices.Repeat([]string{long}, 1000),
		Ports:     slices.Repeat([]*controlv1.Port{{HostPort: 80, ContainerPort: 80, Protocol: long}}, 1000),
	}
	o := Report(st, false).Observation
	if len(o.Message) != MaxMessage || len(o.Code) != MaxCode || len(o.Addresses) != MaxList || len(o.Addresses[0]) > MaxAddress ||
		len(o.Ports) != MaxList || len(o.Ports[0].Protocol) > 8 {
		t.Errorf("a status has a message of %d bytes, a code of %d, %d addresses and %d ports, want at most the limits", len(o.Message), len(o.Code), len(o.Addresses), len(o.Ports))
	}
	if !utf8.ValidString(o.Message) {
		t.Error("the message of the status was cut inside a character")
	}
}

// An agent reports in a heartbeat that a workload has failed and that no retry can help. The converted report
// (observation) must contain this fact too, because the planner reads it to decide whether the workload is started
// again.
func TestAHeartbeatSaysThatNoRetryHelps(t *testing.T) {
	for _, terminal := range []bool{true, false} {
		r := Report(&controlv1.WorkloadStatus{WorkloadId: "web", State: "Failed", Terminal: terminal}, false)
		is(t, "terminal", r.Observation.Terminal, terminal)
	}
}

// TestWorkloadUsageThatCannotBe: an impossible value in the resource usage of a workload is replaced by the
// nearest possible value.
func TestWorkloadUsageThatCannotBe(t *testing.T) {
	got := used([]*controlv1.WorkloadUsageSnapshot{
		{WorkloadId: "a", CpuPercent: math.NaN(), MemoryBytes: -1, DiskReadBytes: math.MinInt64},
		{WorkloadId: "b", CpuPercent: math.Inf(1), MemoryBytes: 7, NetRxBytes: -7},
		{WorkloadId: "c", CpuPercent: math.Inf(-1)},
	})
	for i, want := range []string{"0 0 0", fmt.Sprint(float64(bounds.MaxCPU/10), 7, 0), "0 0 0"} {
		u := got[i]
		if text := fmt.Sprint(u.CPUPercent, u.Memory, u.DiskRead+u.NetReceived); text != want {
			t.Errorf("the usage of workload %q is %s, want %s", u.Workload, text, want)
		}
	}
}

// TestHeldVolumes: if a heartbeat has too many volumes for one log command, the command is marked as
// incomplete.
func TestHeldVolumes(t *testing.T) {
	report := &controlv1.VolumeReport{Complete: true, Volumes: []*controlv1.HeldVolume{{Name: "data", Driver: "local", Namespace: "shop", SizeGb: 2, Owner: "db"}}}
	got := heldVolumes("n1", report)
	is(t, "node", got.GetNode(), "n1")
	is(t, "complete", got.GetComplete(), true)
	is(t, "volume", got.GetVolumes()[0].String(), (&commandv1.HeldVolume{Name: "data", Driver: "local", Namespace: "shop", SizeGb: 2, Owner: "db"}).String())
	for range maxHeldVolumes {
		report.Volumes = append(report.Volumes, report.Volumes[0])
	}
	got = heldVolumes("n1", report)
	is(t, "volumes", len(got.GetVolumes()), maxHeldVolumes)
	is(t, "whether a report with too many volumes counts as complete", got.GetComplete(), false)
	if heldVolumes("n1", nil) != nil {
		t.Error("a heartbeat without a report of volumes became a command, as if the node had no volumes")
	}
}

func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}
