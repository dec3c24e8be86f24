package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
)

// List is driver.Driver's. Finding that a guest ended writes down when.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := d.hv.domains(ctx)
	if err != nil {
		return nil, err
	}
	var out []driver.Observed
	young := map[driver.ID]time.Time{}
	for _, dom := range all {
		in := &instance{}
		in.read(dom)
		ownership := d.of(in.config, dom.name)
		if !dom.persistent || ownership != driver.Ours && ownership != driver.Claimed {
			continue
		}
		if err := d.mark(ctx, in); err != nil {
			if errors.Is(err, errAbsent) {
				continue // gone since the list
			}
			return nil, err
		}
		o := d.observe(in)
		o.Owned = ownership == driver.Ours
		if in.active {
			d.addAddresses(ctx, in, &o)
			if r := in.live; r != nil && r.Leases > 0 && len(o.Addresses) < r.Leases+len(r.Static) {
				young[o.ID] = r.Started.Add(addressPatience)
			}
		}
		out = append(out, o)
	}
	d.mu.Lock()
	d.young = young
	d.mu.Unlock()
	slices.SortFunc(out, func(a, b driver.Observed) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out, nil
}

// mark brings the record of starts and ends up to what is seen: a guest that ended while nobody
// looked, or that somebody else started.
func (d *Driver) mark(ctx context.Context, in *instance) error {
	r := in.config
	switch {
	case r == nil:
		return nil
	case !in.active:
		return d.ended(ctx, in, "")
	case in.live != nil && in.live.Instance == r.Instance && !r.Finished.IsZero():
		return d.change(ctx, in, func(r *record) { r.Started, r.Finished, r.End = time.Now().UTC(), time.Time{}, "" })
	}
	return nil
}

// observe says what a domain shows. While it runs, that is the description it was started with.
func (d *Driver) observe(in *instance) driver.Observed {
	r := in.config
	if in.active && in.live != nil {
		r = in.live
	}
	labels := map[string]string{}
	if r != nil {
		labels = r.Labels
	}
	o := driver.FromLabels(labels)
	o.Name, o.RuntimeID = in.name, in.uuid
	o.Metadata = map[string]string{
		"vm.domain_state_code": strconv.Itoa(in.state), "vm.domain_reason_code": strconv.Itoa(in.reason),
		"vm.domain_state": stateWord(in.state),
	}
	if r == nil {
		o.ID = driver.ID(in.name)
	} else {
		o.RuntimeID = r.Instance
		o.StartedAt, o.FinishedAt = r.Started, r.Finished
		if in.active {
			o.FinishedAt = time.Time{}
		}
		if s := r.Seed; s != nil {
			o.Metadata["vm.cloud_init_seed_path"] = s.Path
			o.Metadata["vm.cloud_init_seed_checksum"] = s.Checksum
			o.Metadata["vm.cloud_init_seed_size_bytes"] = strconv.FormatInt(s.Size, 10)
			o.Metadata["vm.cloud_init_seed_prepared_at"] = s.At.Format(time.RFC3339)
		}
	}
	d.judge(in, r, &o)
	return o
}

// judge fills the state (contract/semantics.md, section 12).
func (d *Driver) judge(in *instance, r *record, o *driver.Observed) {
	end := offReason(in.domain)
	if r != nil && r.End != "" {
		end = r.End // libvirt forgets the reason when it restarts
	}
	switch in.state {
	case stateRunning:
		o.State = driver.Running
	case stateNone, stateBlocked, statePaused, stateSuspended:
		o.State, o.Message = driver.Pending, "the guest is "+stateWord(in.state)
	case stateShutdown:
		o.State, o.Message = driver.Running, "shutting down"
	case stateShutoff:
		o.State = driver.Stopped
		o.Metadata["vm.domain_reason"] = end
		if r != nil && r.Started.IsZero() {
			break
		}
		o.Message = "shut off: " + end
		if end == "crashed" || end == "failed" {
			o.State, o.Class = driver.Failed, driver.RuntimeError
			o.Message = "the guest or its QEMU crashed; see its console (persysctl logs) and libvirt's log of the domain"
		}
	case stateCrashed:
		o.State, o.Class = driver.Failed, driver.RuntimeError
		o.Message = "the guest crashed"
	default:
		o.State, o.Message = driver.Unknown, fmt.Sprintf("libvirt calls its state %d", in.state)
	}
}

func stateWord(state int) string {
	if state < 0 || state >= len(stateWords) {
		return "unknown"
	}
	return stateWords[state]
}

// addressPatience is how long after its start a guest's address is looked for often.
const addressPatience = 5 * time.Minute

// addAddresses asks where a running guest can be reached: what it got from DHCP, what its agent says,
// and what it was told.
func (d *Driver) addAddresses(ctx context.Context, in *instance, o *driver.Observed) {
	agent := strings.Contains(in.domain.live, "org.qemu.guest_agent.0") && strings.Contains(in.domain.live, "state='connected'")
	nics, err := d.hv.addresses(ctx, in.uuid, agent)
	if err != nil {
		o.Metadata["vm.network_lookup_error"] = driver.Bound(err.Error())
	}
	var macs, names []string
	for _, n := range nics {
		if n.mac != "" && !slices.Contains(macs, n.mac) {
			macs = append(macs, n.mac)
		}
		if n.name != "" && n.name != "lo" && !slices.Contains(names, n.name) {
			names = append(names, n.name)
		}
		for _, ip := range n.ips {
			if !slices.Contains(o.Addresses, ip) && !strings.HasPrefix(ip, "127.") && ip != "::1" && !strings.HasPrefix(ip, "fe80:") {
				o.Addresses = append(o.Addresses, ip)
			}
		}
	}
	if in.live != nil {
		for _, ip := range in.live.Static {
			if !slices.Contains(o.Addresses, ip) {
				o.Addresses = append(o.Addresses, ip)
			}
		}
	}
	if len(o.Addresses) > 0 {
		o.Metadata["vm.ip_addresses"] = strings.Join(o.Addresses, ",")
		o.Metadata["vm.primary_ip"] = o.Addresses[0]
	}
	if len(macs) > 0 {
		o.Metadata["vm.mac_addresses"] = strings.Join(macs, ",")
	}
	if len(names) > 0 {
		o.Metadata["vm.interfaces"] = strings.Join(names, ",")
	}
}

// Usage is driver.Meter's.
func (d *Driver) Usage(ctx context.Context, of []driver.Observed) ([]driver.Usage, error) {
	all, err := d.hv.stats(ctx)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]stat, len(all))
	for _, s := range all {
		byName[s.name] = s
	}
	var out []driver.Usage
	for _, o := range of {
		s, ok := byName[o.Name]
		if !ok {
			continue
		}
		out = append(out, driver.Usage{
			ID: o.ID, Instance: o.RuntimeID + "/" + strconv.FormatInt(o.StartedAt.UnixNano(), 10), At: s.at,
			CPU: s.cpu, Memory: s.memory, MemoryLimit: s.memoryLimit, DiskRead: s.read, DiskWrite: s.write,
			NetReceived: s.rx, NetSent: s.tx, Disk: s.disk, Source: "libvirt",
		})
	}
	return out, nil
}
