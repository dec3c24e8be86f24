package mover

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/transfer"
	"github.com/persys/compute/agent/volume"
	"github.com/persys/compute/agent/workload"
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

type noStore struct{}

func (noStore) PutVolume(volume.Volume) error         { return nil }
func (noStore) DropVolume(string) error               { return nil }
func (noStore) PutAttachment(volume.Attachment) error { return nil }
func (noStore) DropAttachment(string) error           { return nil }

// TestOnlyTheTargetCopies: an agent sends a volume only to the node that the schedulers named, for a move that they
// listed, and in the right phase.
func TestOnlyTheTargetCopies(t *testing.T) {
	m := New(Config{Node: "a", Storage: newStorage(t), Workload: func(string) *core.Workload { return nil }})
	listed := &controlv1.VolumeMove{Id: &controlv1.Generation{Incarnation: 1, Sequence: 7}, WorkloadId: "db", Volumes: []string{"data"}, From: "a", To: "b"}
	open := func(set func(*agentv1.VolumeReadOpen)) *agentv1.VolumeReadOpen {
		o := &agentv1.VolumeReadOpen{Move: &agentv1.Generation{Incarnation: 1, Sequence: 7}, WorkloadId: "db", Volume: "data"}
		set(o)
		return o
	}
	same := func(*agentv1.VolumeReadOpen) {}
	last := func(o *agentv1.VolumeReadOpen) { o.Final = true }
	for _, c := range []struct {
		name, phase, caller string
		set                 func(*agentv1.VolumeReadOpen)
		want                codes.Code
	}{
		{"the target", copying, "b", same, codes.OK},
		{"the target at the end", final, "b", last, codes.OK},
		{"another node", copying, "c", same, codes.PermissionDenied},
		{"another volume", copying, "b", func(o *agentv1.VolumeReadOpen) { o.Volume = "other" }, codes.PermissionDenied},
		{"another move", copying, "b", func(o *agentv1.VolumeReadOpen) { o.Move.Sequence = 6 }, codes.Unavailable},
		{"no move", copying, "b", func(o *agentv1.VolumeReadOpen) { o.Move = nil }, codes.Unavailable},
		{"another workload", copying, "b", func(o *agentv1.VolumeReadOpen) { o.WorkloadId = "web" }, codes.Unavailable},
		{"the last copy too early", stopping, "b", last, codes.Unavailable},
		{"after the switch", "placed", "b", same, codes.Unavailable},
		{"an undone move", undone, "b", last, codes.Unavailable},
	} {
		listed.Phase = c.phase
		m.Heard(&controlv1.VolumeMoves{Moves: []*controlv1.VolumeMove{listed}})
		if _, err := m.admits(open(c.set), c.caller); status.Code(err) != c.want {
			t.Errorf("%s: the error is %v, want code %s", c.name, err, c.want)
		}
	}
	var none *Mover
	none.Heard(&controlv1.VolumeMoves{})
	if len(none.Reports()) != 0 {
		t.Error("a nil mover reports moves")
	}
}

// TestOnlyAStoppedWorkloadIsCopiedForTheLastTime: also a part of a failed stack, and a paused container, may write to the volume.
func TestOnlyAStoppedWorkloadIsCopiedForTheLastTime(t *testing.T) {
	at := time.Unix(1000, 0)
	stopped, running := &core.Intent{DesiredState: "stopped"}, &core.Intent{DesiredState: "running"}
	for _, c := range []struct {
		name string
		w    *core.Workload
		runs bool
	}{
		{"no workload", nil, false},
		{"no instance", &core.Workload{Intent: stopped}, false},
		{"it is to run", &core.Workload{Intent: running}, true},
		{"it runs", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Running, StartedAt: at}}, true},
		{"its state is not known", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Unknown}}, true},
		{"it has ended", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Stopped, StartedAt: at, FinishedAt: at}}, false},
		{"it has failed", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Failed, StartedAt: at, FinishedAt: at}}, false},
		{"it was never started", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Stopped}}, false},
		{"a service has failed, and others run", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Failed, StartedAt: at, FinishedAt: at, PartlyRunning: true}}, true},
		{"it is paused", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Stopped, StartedAt: at}}, true},
		{"a service of a stack is paused", &core.Workload{Intent: stopped, Observed: &workload.Observed{State: workload.Stopped, StartedAt: at, FinishedAt: at, PartlyRunning: true}}, true},
		{"its former type may run", &core.Workload{Intent: &core.Intent{DesiredState: "stopped", PreviousTypes: []workload.Kind{workload.Compose}}}, true},
	} {
		m := New(Config{Node: "a", Workload: func(string) *core.Workload { return c.w }})
		if got := m.mayRun("db"); got != c.runs {
			t.Errorf("%s: the workload may run: %t, want %t", c.name, got, c.runs)
		}
	}
}

func TestWhichErrorsEndACopy(t *testing.T) {
	for _, c := range []struct {
		err   error
		fatal bool
	}{
		{fmt.Errorf("x: %w", transfer.ErrNoSpace), true},
		{fmt.Errorf("x: %w", syscall.ENOSPC), true},
		{fmt.Errorf("x: %w", transfer.ErrLimit), true},
		{fmt.Errorf("x: %w", transfer.ErrKind), true},
		{fmt.Errorf("x: %w", transfer.ErrCorrupt), false}, // tried again
		{status.Error(codes.Unavailable, "no connection"), false},
		{fmt.Errorf("volume: %w", status.Error(codes.FailedPrecondition, "in use")), true},
		{status.Error(codes.Unimplemented, "an older agent"), true},
	} {
		if got := fatal(c.err); got != c.fatal {
			t.Errorf("%v ends the copy: %t, want %t", c.err, got, c.fatal)
		}
	}
}
