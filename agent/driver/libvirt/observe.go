package libvirt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/neighbours"
)

// List is driver.Driver's. Finding that a guest ended writes down when.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := d.hv.domains(ctx)
	if err != nil {
		return nil, err
	}
	var out []driver.Observed
	young := map[driver.ID]time.Time{}
	table := sync.OnceValue(func() map[string][]string { return neighbours.Kernel("/proc/net/arp") })
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
			d.addAddresses(ctx, in, table, &o)
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
		return d.change(ctx, in, func(r *record) {
			r.Started, r.Finished, r.End, r.Heard = time.Now().UTC(), time.Time{}, "", nil
		})
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
		if r.CPU != nil {
			o.Metadata["cpu_limit"], o.Message = r.CPU.shown()
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
// what its interfaces say of themselves where neither tells, and what it was told.
func (d *Driver) addAddresses(ctx context.Context, in *instance, table func() map[string][]string, o *driver.Observed) {
	agent := strings.Contains(in.domain.live, "org.qemu.guest_agent.0") && strings.Contains(in.domain.live, "state='connected'")
	nics, err := d.hv.addresses(ctx, in.uuid, agent)
	if err != nil {
		o.Metadata["vm.network_lookup_error"] = driver.Bound(err.Error())
	}
	for _, n := range d.unanswered(in, nics) {
		if n.ips = d.said(ctx, in, n.mac, table); len(n.ips) > 0 {
			nics = append(nics, n)
		}
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

// unanswered are the interfaces of a running guest of which neither libvirt nor the guest's agent tells an
// address, and that were not told one.
func (d *Driver) unanswered(in *instance, answers []address) []address {
	asked := in.live.asked(interfacesOf(in.domain.live))
	d.listen(asked)
	return slices.DeleteFunc(asked, func(n address) bool {
		return slices.ContainsFunc(answers, func(a address) bool { return strings.EqualFold(a.mac, n.mac) && len(a.ips) > 0 })
	})
}

// said are the addresses that an interface said it has since the guest was started; if it was not heard,
// those of the kernel's table, where an address of its former life may be, too.
func (d *Driver) said(ctx context.Context, in *instance, mac string, table func() map[string][]string) []string {
	var since time.Time
	var noted []string
	if in.live != nil { // it is one of ours, not an existing agent's
		since, noted = in.live.Started, in.live.Heard[mac]
	}
	now := d.snooper.Of(mac, since)
	switch {
	case len(now) == 0 && len(noted) > 0:
		return noted
	case len(now) == 0:
		return table()[mac]
	}
	if in.live != nil && !slices.Equal(now, noted) && in.config != nil && in.config.Instance == in.live.Instance {
		err := d.change(ctx, in, func(r *record) {
			r.Heard = maps.Clone(r.Heard)
			if r.Heard == nil {
				r.Heard = map[string][]string{}
			}
			r.Heard[mac] = now
		})
		if err != nil { // it is noted at the next look
			d.opt.Logger.Debug("noting a guest's address", "domain", in.name, "err", err)
		}
	}
	return now
}

// listen begins to hear which addresses interfaces say they have, as far as this agent may.
func (d *Driver) listen(nics []address) {
	macs := make([]string, len(nics))
	for i, n := range nics {
		macs[i] = n.mac
	}
	if err := d.snooper.Want(macs); err != nil {
		d.opt.Logger.Warn("the addresses of guests on plain bridges are found only if they have talked to this machine, or run the QEMU guest agent", "err", err)
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
