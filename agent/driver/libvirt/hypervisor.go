package libvirt

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/persys/compute/agent/driver"
)

// hypervisor is what the driver needs of libvirt, in libvirt's terms but without its types. Errors are
// *driver.Error, classified; errAbsent is inside the one of something that does not exist. Reads give
// up with ctx. What changes something is carried through even when ctx ends meanwhile, as far as the
// daemon answers at all, so that a later call does not meet half of it.
type hypervisor interface {
	facts(ctx context.Context) (*facts, error)

	domains(ctx context.Context) ([]domain, error)            // also those that are nowhere defined
	domain(ctx context.Context, name string) (*domain, error) // errAbsent
	define(ctx context.Context, xml string) error
	undefine(ctx context.Context, uuid string) error
	start(ctx context.Context, uuid string) error
	resume(ctx context.Context, uuid string) error
	shutdown(ctx context.Context, uuid string) error // asks the guest
	destroy(ctx context.Context, uuid string) error  // does not ask; stopping what is off succeeds
	// note replaces our element; live also in the copy that runs.
	note(ctx context.Context, uuid, element string, live bool) error
	// transient starts a domain that is nowhere defined.
	transient(ctx context.Context, xml string) error

	// addresses are those that libvirt's own DHCP gave, and with agent those that the guest's tells.
	addresses(ctx context.Context, uuid string, agent bool) ([]address, error)
	stats(ctx context.Context) ([]stat, error)
	console(ctx context.Context, uuid string) (io.ReadWriteCloser, error)

	network(ctx context.Context, name string) (xml string, err error) // errAbsent; it is up
	bridge(ctx context.Context, name string) bool
	// volume makes sure that a volume is there, and makes it from xml if it is not.
	volume(ctx context.Context, pool, name, xml string) error
	// growVolume makes a volume larger that is smaller; errAbsent if there is none. No guest may use it meanwhile.
	growVolume(ctx context.Context, pool, name string, capacity int64) error
	// pools are the storage pools that are up.
	pools(ctx context.Context) ([]driver.Pool, error)
	removeVolume(ctx context.Context, pool, name string) error

	// watch tells fn the names of domains that changed, and "" when everything may have, until ctx
	// ends. It survives the daemon.
	watch(ctx context.Context, fn func(name string)) error
	close() error
}

var (
	errAbsent = errors.New("does not exist")
	errTaken  = errors.New("is taken")
)

// domain is one domain, in both copies of its description.
type domain struct {
	name, uuid   string
	state        int
	reason       int
	active       bool
	config, live string // XML; live only while active
	persistent   bool
}

// libvirt's domain states.
const (
	stateNone = iota
	stateRunning
	stateBlocked
	statePaused
	stateShutdown
	stateShutoff
	stateCrashed
	stateSuspended
)

// pausedByDisk is why QEMU pauses a guest itself (VIR_DOMAIN_PAUSED_IOERROR).
const pausedByDisk = 5

// stateWords are the names of virsh.
var stateWords = [...]string{"no state", "running", "blocked", "paused", "in shutdown", "shut off", "crashed", "suspended"}

// Why a domain is off, by libvirt's numbers; and what we write down about it.
var offReasons = [...]string{"unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "daemon"}

// address is one interface of a running guest with what is known of its addresses.
type address struct {
	name, mac string
	ips       []string
}

// stat are the counters of one running domain.
type stat struct {
	name                string
	at                  time.Time
	cpu                 time.Duration
	memory, memoryLimit int64 // bytes
	read, write         int64
	rx, tx              int64
	disk                int64 // bytes that its disks occupy here
}
