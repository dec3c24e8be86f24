package agentd

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
)

// When libvirt is installed while the agent runs, the agent must add its driver for virtual machines at the next
// check, and exactly once.
func TestLibvirtIsAddedOnceItExists(t *testing.T) {
	engine, err := sim.NewEngine(sim.Options{Kind: driver.VM})
	if err != nil {
		t.Fatal(err)
	}
	missing, refused := errors.New("no libvirt daemon listens"), errors.New("refused")
	away, broken := missing, error(nil)
	m := machines{offered: func() error { return away }, away: missing, log: slog.New(slog.DiscardHandler),
		open: func(b agent.Binding) (driver.Driver, error) {
			return engine.Driver(driver.Identity{ClusterID: b.ClusterID, NodeID: b.NodeID}), broken
		}}
	for _, c := range []struct {
		what         string
		away, broken error
		want         int
		err          error
	}{
		{"no libvirt", missing, nil, 0, nil}, {"a libvirt that cannot be used", nil, refused, 0, refused}, {"libvirt can be used", nil, nil, 1, nil}, {"the driver exists already", nil, nil, 0, nil},
	} {
		away, broken = c.away, c.broken
		if got, err := m.late(agent.Binding{ClusterID: "c1", NodeID: "node-a"}); len(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: there are %d drivers and the error %v; want %d and %v", c.what, len(got), err, c.want, c.err)
		}
	}
	if m.away != nil {
		t.Errorf("late returned no driver although libvirt is available (%v), so an agent that joins another cluster now could not run virtual machines", m.away)
	}
}

// An agent does not start with the URI of another machine's libvirt, unless it offers no virtual machines.
func TestLibvirtMustBeOnThisMachine(t *testing.T) {
	for _, offers := range []bool{true, false} {
		c := Config{NodeID: "n", StatePath: "x", VM: offers, LibvirtURI: "qemu+ssh://root@other/system"}
		err := c.complete()
		if refused := err != nil && strings.Contains(err.Error(), "PERSYS_LIBVIRT_URI") && strings.Contains(err.Error(), "this machine"); refused != offers {
			t.Errorf("with PERSYS_VM_ENABLED=%t the settings give the error %v", offers, err)
		}
	}
}

// The agent's systemd unit must be ordered after the sockets of all libvirt daemons, so that the agent finds libvirt
// when the machine boots.
func TestUnitComesAfterLibvirt(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/systemd/persys-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), "\nAfter=")
	after, _, _ = strings.Cut(after, "\n")
	for _, unit := range []string{"libvirtd.service", "libvirtd.socket", "virtqemud.service", "virtqemud.socket"} {
		if !slices.Contains(strings.Fields(after), unit) {
			t.Errorf("the unit is not ordered after %s: %s", unit, after)
		}
	}
}
