package libvirt

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/arpsnoop"
)

// Options configure a Driver. Zero values select the defaults.
type Options struct {
	// URI is the address of the hypervisor; default qemu:///system. It must name a hypervisor on this
	// machine, because disks are local files: its transport is a Unix socket.
	URI       string
	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store took a domain over from a legacy v1 agent, whose domains lack the
	// element with our record in their metadata. Any other domain without the element is foreign, even if it
	// has the name of a workload.
	Owns func(driver.ID) bool
	// Content returns the content (hash of the specification) that the agent's store recorded for a domain
	// whose metadata lacks our record. May be nil.
	Content func(id driver.ID, runtimeID string) (content string, ok bool)
	// Images is the folder for disks of which the specification gives no path, for images of which it gives
	// only the name, and for the files of each domain. QEMU's user must be able to enter it. Default
	// /var/lib/libvirt/images.
	Images string
	// VNC is the address on which the guests' VNC screens listen; "none" turns the screens off. Default
	// 127.0.0.1.
	VNC string
	// Acceleration is auto, kvm or qemu. With auto, guests use KVM if a probe guest boots with it, and
	// emulation otherwise.
	Acceleration string
	// StopGrace is how long a guest may take to shut down when it is replaced, removed or stopped by Ensure;
	// it is then powered off. Default 30 s.
	StopGrace time.Duration
	// CallTimeout bounds one call to libvirt. Default 60 s.
	CallTimeout time.Duration
	Logger      *slog.Logger
}

// Driver implements driver.Driver on one libvirt daemon.
type Driver struct {
	hv       hypervisor
	identity driver.Identity
	opt      Options
	at       layout
	accel    accelerator
	quotas   quotas
	snooper  *arpsnoop.Snooper

	mu sync.Mutex
	// changing holds, for each domain whose record is being written, a channel that is closed after the
	// write. It keeps List from writing the same record at the same time.
	changing map[string]chan struct{}
	// awaitingAddress holds the running guests whose address is not known yet, with the time until which the
	// driver polls for the address.
	awaitingAddress map[driver.ID]time.Time
	// recordWrites is a semaphore that limits how many records in the metadata of domains are written in the
	// background at a time.
	recordWrites chan struct{}
	// backoff holds the names of calls that timed out, each with the time until which the call is not repeated.
	backoff map[string]time.Time
}

var (
	_ driver.Driver   = (*Driver)(nil)
	_ driver.Meter    = (*Driver)(nil)
	_ driver.Consoler = (*Driver)(nil)
)

// defaultURI is the URI of a hypervisor that runs as a service of the machine.
const defaultURI = "qemu:///system"

// New does not contact libvirt's daemon; while the daemon is down, calls of the driver fail.
func New(opt Options) (*Driver, error) {
	opt.URI = cmp.Or(opt.URI, defaultURI)
	opt.Logger = cmp.Or(opt.Logger, slog.Default())
	if opt.CallTimeout <= 0 {
		opt.CallTimeout = time.Minute
	}
	hv, err := connect(opt.URI, opt.CallTimeout, opt.Logger)
	if err != nil {
		return nil, err
	}
	return newDriver(opt, hv)
}

func newDriver(opt Options, hv hypervisor) (*Driver, error) {
	if opt.ClusterID == "" {
		return nil, driver.Errorf(driver.InvalidConfiguration, "libvirt", "ClusterID: must not be empty")
	}
	if opt.NodeID == "" {
		return nil, driver.Errorf(driver.InvalidConfiguration, "libvirt", "NodeID: must not be empty")
	}
	opt.Images = cmp.Or(opt.Images, defaultImages)
	if !filepath.IsAbs(opt.Images) {
		return nil, driver.Errorf(driver.InvalidConfiguration, "libvirt", "Images: %q must be an absolute path", opt.Images)
	}
	opt.VNC = cmp.Or(opt.VNC, "127.0.0.1")
	if opt.VNC == "none" {
		opt.VNC = ""
	}
	opt.Acceleration = cmp.Or(opt.Acceleration, "auto")
	if opt.StopGrace <= 0 {
		opt.StopGrace = 30 * time.Second
	}
	opt.Logger = cmp.Or(opt.Logger, slog.Default())
	d := &Driver{
		hv: hv, opt: opt, at: layout{images: opt.Images},
		identity: driver.Identity{ClusterID: opt.ClusterID, NodeID: opt.NodeID, Owns: opt.Owns},
		changing: map[string]chan struct{}{}, awaitingAddress: map[driver.ID]time.Time{}, backoff: map[string]time.Time{},
		recordWrites: make(chan struct{}, notesAtOnce), snooper: arpsnoop.New(),
	}
	d.accel.try = d.tryKVM
	return d, nil
}

// Close closes the connection. Guests keep running.
func (d *Driver) Close() error {
	d.snooper.Close()
	return d.hv.close()
}

// Kind returns driver.VM.
func (d *Driver) Kind() driver.Kind { return driver.VM }

// Probe implements driver.Driver. It asks libvirt how it can run guests, and starts the KVM probe (a tiny guest
// that shows whether KVM works) in the background.
func (d *Driver) Probe(ctx context.Context) (driver.Capacity, error) {
	f, err := d.hv.facts(ctx)
	if err != nil {
		return driver.Capacity{Reason: err.Error()}, err
	}
	c := driver.Capacity{EngineID: f.engine, Version: f.version, Healthy: true}
	if f.kvm == nil && f.tcg == nil {
		c.Healthy, c.Reason = false, "libvirt offers neither KVM nor emulation for "+f.arch+" guests: is QEMU installed?"
		return c, nil
	}
	d.accel.prepare(d, f)
	return c, nil
}
