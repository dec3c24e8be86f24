package volume

import (
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestVolumesOfUsersStay: a volume that a user created stays when its workloads are deleted, even if a later order
// does not say that a user created the volume.
func TestVolumesOfUsersStay(t *testing.T) {
	b := newBench(t, &fake{})
	at := b.attach("db", driver.Container, folder("made", retain, func(s *agentv1.ManagedVolumeSpec) { s.ByHand = true }))[0]
	write(t, at.Path, "f", "three")
	b.restart()
	b.attach("db", driver.Container, folder("made"))
	if err := b.m.Release(t.Context(), "db", Retention{}); err != nil || !holds(at.Path, "f", "three") {
		t.Fatalf("Release of the workload returned %v, or removed the data of the user's volume; want no error and the data kept", err)
	}
	b.phase("local:made", Retained)
	if err := b.m.Delete(t.Context(), "local:made"); err != nil || !gone(at.Path) {
		t.Errorf("Delete of the user's volume returned %v, or left the volume's data", err)
	}
}
