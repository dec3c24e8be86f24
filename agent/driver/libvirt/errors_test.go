package libvirt

import (
	"testing"

	lv "github.com/digitalocean/go-libvirt"

	"github.com/persys/compute/agent/driver"
)

// TestALostDaemonBehindAnotherIsALostConnection: virtqemud passes calls for networks and storage on to other daemons. If
// it has lost its connection to one of them, it answers with an internal error and does not connect to that daemon
// again, so the driver must open a new connection to virtqemud.
func TestALostDaemonBehindAnotherIsALostConnection(t *testing.T) {
	for message, want := range map[string]bool{
		"internal error: client socket is closed":                                          true,
		"End of file while reading data: Input/output error":                               true,
		"Cannot recv data: Connection reset by peer":                                       true,
		"Failed to connect socket to '/run/libvirt/virtstoraged-sock': Connection refused": true,
		"internal error: process exited while connecting to monitor":                       false,
	} {
		err := lv.Error{Code: uint32(lv.ErrInternalError), Message: message}
		if got := lost(err); got != want {
			t.Errorf("lost for an error with the text %q returned %t, want %t", message, got, want)
		}
		if got := driver.ClassOf(classify("pool", err)) == driver.RuntimeUnhealthy; got != want {
			t.Errorf("an error with the text %q got class %s; want RUNTIME_UNHEALTHY only if the connection is lost", message, driver.ClassOf(classify("pool", err)))
		}
	}
}
