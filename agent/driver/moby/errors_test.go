package moby

import (
	"errors"
	"testing"

	"github.com/persys/compute/agent/driver"
)

// Each error text that engines send with HTTP status 500 gets the right class.
func TestErrorsByText(t *testing.T) {
	for text, want := range map[string]driver.Class{
		"failed to create endpoint: Bind for 0.0.0.0:80 failed: port is already allocated":                    driver.PortBindConflict,
		"mkdir /var/lib/docker/x: no space left on device":                                                    driver.StorageFull,
		`error gathering device information while adding custom device "/dev/kvm": no such file or directory`: driver.RuntimeResourceMissing,
		"CDI device injection failed: unresolvable CDI devices vendor.com/gpu=0":                              driver.RuntimeResourceMissing,
		`could not select device driver "" with capabilities: [[gpu]]`:                                        driver.RuntimeResourceMissing,
		"invalid mount config for type \"bind\": bind source path does not exist: /srv/web":                   driver.StorageAttachFailed,
	} {
		if got := driver.ClassOf(Classify("start", errors.New(text))); got != want {
			t.Errorf("an engine error with the text %q got class %s, want %s", text, got, want)
		}
	}
}
