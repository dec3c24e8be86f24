package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	lv "github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/hostcaps"
)

func (v *connection) facts(ctx context.Context) (*facts, error) {
	v.mu.Lock()
	known := v.known
	alive := v.link != nil && v.link.ctx.Err() == nil
	v.mu.Unlock()
	if known != nil && alive {
		// Call libvirt, because a cached connection does not show that the daemon has just died.
		_, err := ask(ctx, v, "probe", reads, (*lv.Libvirt).ConnectGetLibVersion)
		if err == nil {
			return known, nil
		}
		if driver.ClassOf(err) == driver.RuntimeUnhealthy {
			return nil, err
		}
	}
	f, err := ask(ctx, v, "probe", reads, func(c *lv.Libvirt) (*facts, error) {
		text, err := c.ConnectGetCapabilities()
		if err != nil {
			return nil, err
		}
		arch, uuid, machines, err := hostcaps.GuestTypes(text)
		if err != nil {
			return nil, err
		}
		host, err := c.ConnectGetHostname()
		if err != nil {
			return nil, err
		}
		f := &facts{engine: "libvirt:" + uuid + ":" + host, arch: arch}
		lib, err := c.ConnectGetLibVersion()
		if err != nil {
			return nil, err
		}
		hyper, err := c.ConnectGetVersion()
		if err != nil {
			return nil, err
		}
		f.version = "libvirt " + version(lib) + ", QEMU " + version(hyper)
		for kind, machine := range machines {
			text, err := c.ConnectGetDomainCapabilities(nil, lv.OptString{arch}, lv.OptString{machine}, lv.OptString{kind}, 0)
			if lost(err) {
				return nil, err
			}
			if err != nil {
				continue // libvirt cannot run guests of this machine type; try the next one
			}
			m, err := hostcaps.ReadMachine(text)
			if err != nil {
				return nil, err
			}
			if m.Type == "" {
				m.Type = machine
			}
			switch kind {
			case "kvm":
				f.kvm = m
			case "qemu":
				f.tcg = m
			}
		}
		return f, nil
	})
	if err != nil {
		return nil, err
	}
	if f.kvm != nil || f.tcg != nil { // without KVM and emulation the facts are not cached, because QEMU may be installed while the agent runs
		v.mu.Lock()
		v.known = f
		v.mu.Unlock()
	}
	return f, nil
}

// version formats a version number of libvirt, which is 1,000,000 × major + 1,000 × minor + release.
func version(n uint64) string { return fmt.Sprintf("%d.%d.%d", n/1000000, n/1000%1000, n%1000) }

// readDomain reads a domain with several calls. The domain may start or end between two calls, so readDomain
// repeats them until the answers are consistent.
func readDomain(c *lv.Libvirt, d lv.Domain) (*domain, error) {
	out := &domain{name: d.Name, uuid: uuid.UUID(d.UUID).String()}
	persistent, err := c.DomainIsPersistent(d)
	if err != nil {
		return nil, err
	}
	out.persistent = persistent != 0
	for range 10 {
		if out.config, err = c.DomainGetXMLDesc(d, lv.DomainXMLInactive); err != nil {
			return nil, err
		}
		if out.live, err = c.DomainGetXMLDesc(d, 0); err != nil {
			return nil, err
		}
		state, reason, err := c.DomainGetState(d, 0)
		if err != nil {
			return nil, err
		}
		if out.active, err = isActive(c, d); err != nil {
			return nil, err
		}
		out.state, out.reason = int(state), int(reason)
		off := out.state == stateShutoff || out.state == stateCrashed && !out.active
		if off != out.active {
			break
		}
	}
	if !out.active {
		out.live = ""
	}
	return out, nil
}

func isActive(c *lv.Libvirt, d lv.Domain) (bool, error) {
	active, err := c.DomainIsActive(d)
	return active != 0, err
}

func (v *connection) domains(ctx context.Context) ([]domain, error) {
	return ask(ctx, v, "list", reads, func(c *lv.Libvirt) ([]domain, error) {
		all, _, err := c.ConnectListAllDomains(1, 0)
		if err != nil {
			return nil, err
		}
		var out []domain
		for _, found := range all {
			d, err := readDomain(c, found)
			if gone(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			out = append(out, *d)
		}
		return out, nil
	})
}

// gone reports whether err means that the domain or volume does not exist.
func gone(err error) bool {
	var e lv.Error
	return errors.As(err, &e) && (e.Code == uint32(lv.ErrNoDomain) || e.Code == uint32(lv.ErrNoStorageVol))
}

func (v *connection) domain(ctx context.Context, name string) (*domain, error) {
	return ask(ctx, v, "look up", reads, func(c *lv.Libvirt) (*domain, error) {
		d, err := c.DomainLookupByName(name)
		if err != nil {
			return nil, err
		}
		return readDomain(c, d)
	})
}

func (v *connection) define(ctx context.Context, xml string) error {
	return act(ctx, v, "define", func(c *lv.Libvirt) error {
		_, err := c.DomainDefineXMLFlags(xml, 0)
		return err
	})
}

func (v *connection) undefine(ctx context.Context, id string) error {
	return on(ctx, v, "undefine", id, func(c *lv.Libvirt, d lv.Domain) error {
		return c.DomainUndefineFlags(d, lv.DomainUndefineManagedSave|lv.DomainUndefineSnapshotsMetadata|
			lv.DomainUndefineCheckpointsMetadata|lv.DomainUndefineNvram)
	})
}

func (v *connection) start(ctx context.Context, id string) error {
	return on(ctx, v, "start", id, func(c *lv.Libvirt, d lv.Domain) error {
		// libvirt must not start the domain at boot: the schedulers decide where the workload runs after a
		// reboot.
		if err := c.DomainSetAutostart(d, 0); err != nil {
			return err
		}
		flags, err := startFlags(c, d)
		if err != nil {
			return err
		}
		_, err = c.DomainCreateWithFlags(d, uint32(flags))
		if active, aerr := isActive(c, d); err != nil && aerr == nil && active {
			return nil // another caller has started the domain
		}
		return err
	})
}

// startFlags returns the flags for a start of the domain. If a memory image was saved (by a person, or when
// the host shut down) under an earlier definition, the flags force a fresh boot. Otherwise libvirt would
// resume the image with disks that no longer match it.
func startFlags(c *lv.Libvirt, d lv.Domain) (lv.DomainCreateFlags, error) {
	saved, err := c.DomainHasManagedSaveImage(d, 0)
	if err != nil || saved == 0 {
		return 0, err
	}
	config, err := c.DomainGetXMLDesc(d, lv.DomainXMLInactive)
	if err != nil {
		return 0, err
	}
	text, _ := c.DomainManagedSaveGetXMLDesc(d, 0) // if this call fails, the variable text is empty: libvirt cannot read the saved image, so it cannot resume it either
	is, was := readRecord(config), readRecord(text)
	if is == nil || was != nil && was.Instance == is.Instance {
		return 0, nil
	}
	return lv.DomainStartForceBoot, nil
}

func (v *connection) resume(ctx context.Context, id string) error {
	return on(ctx, v, "resume", id, (*lv.Libvirt).DomainResume)
}

func (v *connection) shutdown(ctx context.Context, id string) error {
	return on(ctx, v, "stop", id, func(c *lv.Libvirt, d lv.Domain) error { return c.DomainShutdownFlags(d, lv.DomainShutdownAcpiPowerBtn) })
}

func (v *connection) destroy(ctx context.Context, id string) error {
	return on(ctx, v, "stop", id, func(c *lv.Libvirt, d lv.Domain) error {
		err := c.DomainDestroyFlags(d, 0)
		if active, aerr := isActive(c, d); err != nil && aerr == nil && !active {
			return nil
		}
		return err
	})
}

func (v *connection) note(ctx context.Context, id, element string, live bool) error {
	return on(ctx, v, "note", id, func(c *lv.Libvirt, d lv.Domain) error {
		where := lv.DomainAffectConfig
		if live {
			where |= lv.DomainAffectLive
		}
		return c.DomainSetMetadata(d, int32(lv.DomainMetadataElement), lv.OptString{element}, lv.OptString{"persys"}, lv.OptString{namespace}, where)
	})
}

func (v *connection) transient(ctx context.Context, xml string) error {
	return act(ctx, v, "start", func(c *lv.Libvirt) error {
		_, err := c.DomainCreateXML(xml, lv.DomainStartAutodestroy)
		return err
	})
}

func (v *connection) addresses(ctx context.Context, id string, agent bool) ([]address, error) {
	return ask(ctx, v, "addresses", reads, func(c *lv.Libvirt) ([]address, error) {
		d, err := lookup(c, id)
		if err != nil {
			return nil, err
		}
		var out []address
		add := func(from []lv.DomainInterface) {
			for _, f := range from {
				a := address{name: f.Name, mac: strings.Join(f.Hwaddr, "")} // Hwaddr has at most one element
				for _, ip := range f.Addrs {
					a.ips = append(a.ips, ip.Addr)
				}
				out = append(out, a)
			}
		}
		leases, err := c.DomainInterfaceAddresses(d, uint32(lv.DomainInterfaceAddressesSrcLease), 0)
		add(leases)
		if agent {
			// Without a timeout libvirt waits forever for the guest agent, and each waiting call takes one of
			// only five that a connection may have at a time.
			_, _ = c.DomainAgentSetResponseTimeout(d, int32(agentWait/time.Second), 0)
			inside, aerr := c.DomainInterfaceAddresses(d, uint32(lv.DomainInterfaceAddressesSrcAgent), 0)
			if aerr == nil {
				err = nil
				add(inside)
			}
		}
		return out, err
	})
}

func (v *connection) network(ctx context.Context, name string) (string, error) {
	return ask(ctx, v, "network", changes, func(c *lv.Libvirt) (string, error) {
		n, err := c.NetworkLookupByName(name)
		if err != nil {
			return "", err
		}
		if up, err := c.NetworkIsActive(n); err != nil {
			return "", err
		} else if up == 0 {
			if err := c.NetworkCreate(n); err != nil {
				if up, aerr := c.NetworkIsActive(n); aerr != nil || up == 0 {
					return "", fmt.Errorf("starting network %s: %w", name, err)
				}
			}
		}
		return c.NetworkGetXMLDesc(n, 0)
	})
}

func (v *connection) bridge(_ context.Context, name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", filepath.Base(name), "bridge"))
	return err == nil
}

func (v *connection) stats(ctx context.Context) ([]stat, error) {
	return ask(ctx, v, "stats", reads, func(c *lv.Libvirt) ([]stat, error) {
		all, err := c.ConnectGetAllDomainStats(nil,
			uint32(lv.DomainStatsCPUTotal|lv.DomainStatsBalloon|lv.DomainStatsBlock|lv.DomainStatsInterface),
			uint32(lv.ConnectGetAllDomainsStatsActive|lv.ConnectGetAllDomainsStatsNowait))
		if err != nil {
			return nil, err
		}
		now := time.Now()
		var out []stat
		for _, s := range all {
			out = append(out, readStats(s, now))
		}
		return out, nil
	})
}

// readStats sums the counters of one domain. libvirt names them "cpu.time", "block.0.rd.bytes" and so on.
func readStats(record lv.DomainStatsRecord, now time.Time) stat {
	out := stat{name: record.Dom.Name, at: now, disk: -1}
	var resident int64
	for _, p := range record.Params {
		counter, ok := p.Value.I.(uint64)
		if !ok {
			continue
		}
		n := int64(counter)
		group, field, _ := strings.Cut(p.Field, ".")
		if group == "block" || group == "net" {
			_, field, _ = strings.Cut(field, ".") // the number of the disk or interface
		}
		switch group + "." + field {
		case "cpu.time":
			out.cpu = time.Duration(n)
		case "balloon.maximum":
			out.memoryLimit = n << 10
		case "balloon.current":
			out.memory = n << 10
		case "balloon.rss":
			resident = n << 10
		case "block.rd.bytes":
			out.read += n
		case "block.wr.bytes":
			out.write += n
		case "block.allocation":
			out.disk = max(out.disk, 0) + n
		case "net.rx.bytes":
			out.rx += n
		case "net.tx.bytes":
			out.tx += n
		}
	}
	if resident > 0 { // if libvirt knows it, report the memory that QEMU's process takes from the machine
		out.memory = resident
	}
	return out
}
