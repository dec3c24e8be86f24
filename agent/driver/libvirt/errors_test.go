package libvirt

import (
	"testing"

	lv "github.com/digitalocean/go-libvirt"

	"github.com/persys/compute/agent/driver"
)

// TestALostDaemonBehindAnotherIsALostConnection: a daemon that has lost the daemon of networks or storage reports an
// internal error. The driver must open a new connection, because the daemon does not.
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
			t.Errorf("%q: lost is %v, want %v", message, got, want)
		}
		if got := driver.ClassOf(classify("pool", err)) == driver.RuntimeUnhealthy; got != want {
			t.Errorf("%q: the class is %s", message, driver.ClassOf(classify("pool", err)))
		}
	}
}
