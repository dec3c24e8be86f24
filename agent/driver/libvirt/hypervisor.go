package libvirt

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/persys/compute/agent/driver"
)

// hypervisor is the part of libvirt that the driver uses, without libvirt's types. Errors are
// *driver.Error with a class; they wrap errAbsent if the object does not exist. Reads stop when ctx
// ends. Changes are completed even if ctx ends meanwhile, as long as the daemon answers, so that a
// later call does not meet a half-done change.
type hypervisor interface {
	facts(ctx context.Context) (*facts, error)

	domains(ctx context.Context) ([]domain, error)            // transient ones included
	domain(ctx context.Context, name string) (*domain, error) // errAbsent
	define(ctx context.Context, xml string) error
	undefine(ctx context.Context, uuid string) error
	start(ctx context.Context, uuid string) error
	resume(ctx context.Context, uuid string) error
	shutdown(ctx context.Context, uuid string) error // ACPI request to the guest
	destroy(ctx context.Context, uuid string) error  // powers off; succeeds if the domain is off
	// note replaces our metadata element in the configuration and, with live, in the live description.
	note(ctx context.Context, uuid, element string, live bool) error
	// transient starts a domain without defining it.
	transient(ctx context.Context, xml string) error

	// addresses returns the leases of libvirt's DHCP and, with agent, the addresses that the guest agent reports.
	addresses(ctx context.Context, uuid string, agent bool) ([]address, error)
	stats(ctx context.Context) ([]stat, error)
	console(ctx context.Context, uuid string) (io.ReadWriteCloser, error)

	network(ctx context.Context, name string) (xml string, err error) // errAbsent; starts the network
	bridge(ctx context.Context, name string) bool
	// volume creates a volume from xml unless it exists.
	volume(ctx context.Context, pool, name, xml string) error
	// growVolume enlarges a volume to at least capacity bytes; errAbsent if there is none. No guest may use it meanwhile.
	growVolume(ctx context.Context, pool, name string, capacity int64) error
	// pools returns the active storage pools.
	pools(ctx context.Context) ([]driver.Pool, error)
	removeVolume(ctx context.Context, pool, name string) error

	// watch calls fn with the names of changed domains, and with "" when any domain may have changed,
	// until ctx ends. It reconnects after a restart of the daemon.
	watch(ctx context.Context, fn func(name string)) error
	close() error
}

var (
	errAbsent = errors.New("does not exist")
	errTaken  = errors.New("is taken")
)

// domain is one domain with both descriptions.
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

// pausedByDisk is the reason when QEMU pauses a guest after a disk error (VIR_DOMAIN_PAUSED_IOERROR).
const pausedByDisk = 5

// stateWords are the state names of virsh.
var stateWords = [...]string{"no state", "running", "blocked", "paused", "in shutdown", "shut off", "crashed", "suspended"}

// offReasons are libvirt's reasons for a shut-off domain, by number, as we record them.
var offReasons = [...]string{"unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "daemon"}

// address is one interface of a running guest with its known addresses.
type address struct {
	name, mac string
	ips       []string
}

// stat holds the counters of one running domain.
type stat struct {
	name                string
	at                  time.Time
	cpu                 time.Duration
	memory, memoryLimit int64 // bytes
	read, write         int64
	rx, tx              int64
	disk                int64 // bytes that its disks occupy on this machine
}
