//go:build !linux || !cgo || !libvirt_dlopen

package libvirt

import (
	"log/slog"
	"time"

	"github.com/persys/compute/agent/driver"
)

// Built reports whether this binary was built with libvirt support.
const Built = false

// Available returns an error, because this binary was built without libvirt support.
func Available() error {
	return driver.Errorf(driver.InvalidConfiguration, "libvirt", "this is the static build, without virtual machines: use the package persys-libvirt, or `make build-vm` (cgo and -tags libvirt_dlopen)")
}

func connect(string, time.Duration, *slog.Logger) (hypervisor, error) { return nil, Available() }
