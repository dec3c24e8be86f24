package libvirt

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/persys/compute/agent/driver"
)

// hypervisor is the part of libvirt that the driver uses, without libvirt's types. Errors are *driver.Error
// with a class; they wrap errAbsent if the object does not exist. Reads stop when ctx ends. Changes are
// completed even if ctx ends, as long as the daemon answers, so that no later call finds an unfinished
// change.
type hypervisor interface {
	facts(ctx context.Context) (*facts, error)

	domains(ctx context.Context) ([]domain, error)            // domains lists all domains, also transient ones
	domain(ctx context.Context, name string) (*domain, error) // domain reads one domain; its error wraps errAbsent if the domain does not exist
	define(ctx context.Context, xml string) error
	undefine(ctx context.Context, uuid string) error
	start(ctx context.Context, uuid string) error
	resume(ctx context.Context, uuid string) error
	shutdown(ctx context.Context, uuid string) error // shutdown asks the guest by ACPI to shut down
	destroy(ctx context.Context, uuid string) error  // destroy powers the domain off; it succeeds if the domain is off already
	// note replaces the element with our record in the metadata of a domain's configuration. If live is set,
	// it also replaces it in the live description of the running domain.
	note(ctx context.Context, uuid, element string, live bool) error
	// transient starts a domain from xml. libvirt forgets the domain when it stops.
	transient(ctx context.Context, xml string) error

	// addresses returns the addresses that libvirt's DHCP server leased to the domain. If agent is set, it
	// also returns the addresses that the guest agent reports.
	addresses(ctx context.Context, uuid string, agent bool) ([]address, error)
	stats(ctx context.Context) ([]stat, error)
	console(ctx context.Context, uuid string) (io.ReadWriteCloser, error)

	network(ctx context.Context, name string) (xml string, err error) // network starts a network; its error wraps errAbsent if the network does not exist
	bridge(ctx context.Context, name string) bool
	// volume creates the volume called name in a pool from xml, unless the volume exists.
	volume(ctx context.Context, pool, name, xml string) error
	// growVolume enlarges a volume to at least capacity bytes. It returns an error that wraps errAbsent if
	// the volume or pool does not exist. No guest may use the volume during the call.
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

// domain is one domain of libvirt with its two descriptions: the live one, and the configuration for the next
// start.
type domain struct {
	name, uuid   string
	state        int
	reason       int
	active       bool
	config, live string // XML of the two descriptions; live is set only while the domain is active
	persistent   bool
}

// The domain states of libvirt that the driver distinguishes.
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

// offReasons are the reasons for which a domain is shut off, by libvirt's number, with the names that the
// driver records.
var offReasons = [...]string{"unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "daemon"}

// address is one interface of a running guest, with its known IP addresses.
type address struct {
	name, mac string
	ips       []string
}

// stat holds the resource usage counters of one running domain.
type stat struct {
	name                string
	at                  time.Time
	cpu                 time.Duration
	memory, memoryLimit int64 // in bytes
	read, write         int64
	rx, tx              int64
	disk                int64 // bytes that the domain's disks occupy on this machine
}
