package libvirt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt/arpsnoop"
)

// List implements driver.Driver. If it finds that a guest has ended, it records the time in the domain's
// metadata.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := d.hv.domains(ctx)
	if err != nil {
		return nil, err
	}
	var seen []*instance
	for _, dom := range all {
		in := &instance{}
		in.read(dom)
		// If somebody undefined one of our domains, libvirt keeps it until its guest ends. List returns it
		// until then.
		if of := d.of(in.config, dom.name); of == driver.Owned || of == driver.Claimed && dom.persistent {
			seen = append(seen, in)
		}
	}
	answers := d.interfaces(ctx, seen)
	var out []driver.Observed
	young := map[driver.ID]time.Time{}
	table := sync.OnceValue(func() map[string][]string { return arpsnoop.Kernel("/proc/net/arp") })
	patience, cancel := context.WithTimeout(ctx, noteWait)
	defer cancel()
	for i, in := range seen {
		if ctx.Err() != nil {
			break
		}
		if err := d.mark(patience, in); err != nil {
			if errors.Is(err, errAbsent) {
				continue // the domain was deleted after the listing
			}
			if driver.ClassOf(err) == driver.RuntimeUnhealthy {
				return nil, err
			}
			// List must return the other domains, so it continues and only logs this error. The next call
			// for this domain will return it.
			d.opt.Logger.Debug("could not record a guest's end", "domain", in.name, "err", err)
		}
		o := d.observe(in)
		o.Owned = d.of(in.config, in.name) == driver.Owned
		if in.active {
			d.addAddresses(patience, in, answers[i], table, &o)
			if r := in.live; r != nil && r.Leases > 0 && len(o.Addresses) < r.Leases+len(r.Static) {
				young[o.ID] = r.Started.Add(addressPatience)
			}
		}
		out = append(out, o)
	}
	if err := ctx.Err(); err != nil {
		return nil, err // after the time limit the list may be incomplete, so return an error
	}
	d.mu.Lock()
	d.awaitingAddress = young
	d.mu.Unlock()
	slices.SortFunc(out, func(a, b driver.Observed) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out, nil
}

// mark corrects the recorded start and end of a guest if they contradict its observed state. The guest may
// have ended while no agent ran, or somebody else may have started it.
func (d *Driver) mark(patience context.Context, in *instance) error {
	r := in.config
	switch {
	case r == nil:
	case !in.active && r.runs():
		return d.aside(patience, in, func(ctx context.Context, in *instance) error { return d.ended(ctx, in, "") })
	case in.active && in.live != nil && in.live.Instance == r.Instance && !r.runs(): // the guest runs, but no start is recorded, for example because a start was abandoned
		seen := time.Now().UTC()
		return d.aside(patience, in, func(ctx context.Context, in *instance) error {
			return d.change(ctx, in, func(r *record) {
				if !r.runs() { // nobody has recorded the start since List read the domain
					r.Started, r.Finished, r.End, r.Heard = seen, time.Time{}, "", nil
				}
			})
		})
	}
	return nil
}

// aside changes the record of a domain while List runs. The change may wait 30 s for another call that has locked the
// domain. List does not wait that long: it goes on when the context patience ends, and the change continues in the
// background. List then does not change this record again before the time restFor has passed.
func (d *Driver) aside(patience context.Context, in *instance, change func(context.Context, *instance) error) error {
	what := "note " + in.uuid
	if d.rests(what) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(patience), restFor)
	theirs, done := *in, make(chan error, 1)
	go func() {
		defer cancel()
		select {
		case d.recordWrites <- struct{}{}:
			defer func() { <-d.recordWrites }()
			done <- change(ctx, &theirs)
		case <-ctx.Done():
			done <- ctx.Err()
		}
	}()
	select {
	case err := <-done:
		if err == nil {
			*in = theirs
		}
		return err
	case <-patience.Done():
		d.rest(what)
		return patience.Err()
	}
}

// rests reports whether a call timed out less than restFor ago. The parameter what is the name of the call:
// "note" or "agent", and the UUID of the domain. List does not repeat such a call, so that one domain that is
// locked, or whose guest agent does not answer, does not delay every List.
func (d *Driver) rests(what string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.backoff[what])
}

func (d *Driver) rest(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(d.backoff, func(_ string, until time.Time) bool { return now.After(until) })
	d.backoff[what] = now.Add(restFor)
}

// observe returns the observed state of a domain. For a running domain it uses the live description.
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
	if in.active && in.live == nil {
		o.Content, o.Revision = "", "" // a legacy v1 agent started the running guest; the configuration applies to the next start
	}
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

// judge sets the state in o from the state of the domain and from the record in its metadata, as section 12 of
// contract/semantics.md specifies.
func (d *Driver) judge(in *instance, r *record, o *driver.Observed) {
	end := offReason(in.domain)
	if r != nil && r.End != "" {
		end = r.End // libvirt forgets the reason of the end when it restarts, so use the recorded one
	}
	switch in.state {
	case stateRunning:
		o.State = driver.Running
	case stateSuspended: // the guest suspended itself and may have set a wake-up timer
		o.State, o.Message = driver.Running, "the guest sleeps: it suspended itself to RAM; wake it with `virsh dompmwakeup "+in.name+"` on its node"
	case stateNone, stateBlocked, statePaused:
		o.State, o.Message = driver.Pending, "the guest is "+stateWord(in.state)
		if in.state == statePaused && in.reason == pausedByDisk {
			o.Message += ": one of its disks could not be read or written; free space on this node or repair the disk's server, then continue the guest with `virsh resume " + in.name + "` on its node, or boot it again with `persysctl restart`"
		}
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
		o.State, o.Message = driver.Unknown, fmt.Sprintf("libvirt reports the unknown domain state %d", in.state)
	}
}

func stateWord(state int) string {
	if state < 0 || state >= len(stateWords) {
		return "unknown"
	}
	return stateWords[state]
}

// addressPatience is how long the driver polls often for a guest's address, counted from the
// guest's start.
const addressPatience = 5 * time.Minute

const (
	// agentWait is the time limit of one call to a guest agent. agentsWait is the time limit for the calls to
	// all guest agents together.
	agentWait  = 5 * time.Second
	agentsWait = 3 * agentWait
	// libvirt serves five calls of one connection at a time, keep-alives included. At most two calls to guest
	// agents and two record writes run at a time, so that one of the five stays free.
	agentsAtOnce, notesAtOnce = 2, 2
	// noteWait is how long List waits for the records that it writes into the metadata of domains.
	noteWait = 3 * time.Second
	// restFor is how long a call that timed out is not tried again, and how long a change may take in the
	// background.
	restFor = time.Minute
	// mostAddresses is the maximum number of addresses that a guest may report, because every heartbeat
	// carries them.
	mostAddresses = 64
)

// answer holds the IP addresses that libvirt and the guest agent report for the interfaces of a domain.
type answer struct {
	nics []address
	err  error
}

// interfaces asks libvirt and the guest agents for the addresses of all running guests. It skips guest agents
// that timed out less than restFor ago: a guest agent that does not answer must not delay the addresses of
// the other guests.
func (d *Driver) interfaces(ctx context.Context, seen []*instance) []answer {
	agents, cancel := context.WithTimeout(ctx, agentsWait)
	defer cancel()
	answers := make([]answer, len(seen))
	var asked errgroup.Group
	asked.SetLimit(agentsAtOnce)
	for i, in := range seen {
		if !in.active {
			continue
		}
		asked.Go(func() error {
			a := &answers[i]
			if !d.askAgent(agents, in, a) {
				a.nics, a.err = d.hv.addresses(ctx, in.uuid, false)
			}
			return nil
		})
	}
	_ = asked.Wait()
	return answers
}

// askAgent adds the addresses that a domain's guest agent reports to a. It returns whether libvirt answered,
// even if the guest agent did not.
func (d *Driver) askAgent(ctx context.Context, in *instance, a *answer) bool {
	what := "agent " + in.uuid
	if ctx.Err() != nil || !strings.Contains(in.domain.live, "org.qemu.guest_agent.0") || !strings.Contains(in.domain.live, "state='connected'") || d.rests(what) {
		return false
	}
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, agentWait+time.Second)
	defer cancel()
	a.nics, a.err = d.hv.addresses(within, in.uuid, true)
	if time.Since(began) >= agentWait {
		d.rest(what)
	}
	return within.Err() == nil
}

// reachable reports whether other machines can use an address to reach a guest (it is no loopback,
// unspecified, multicast or IPv6 link-local address).
func reachable(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && ip.Zone() == "" && !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsMulticast() && !(ip.Is6() && ip.IsLinkLocalUnicast())
}

// addAddresses adds the addresses of a running guest to its observation: its static addresses, those of
// DHCP leases, and those that its guest agent reports. If none of these is known for an interface, it adds
// those from the interface's ARP traffic.
func (d *Driver) addAddresses(patience context.Context, in *instance, told answer, table func() map[string][]string, o *driver.Observed) {
	nics := told.nics
	if told.err != nil {
		o.Metadata["vm.network_lookup_error"] = driver.Bound(told.err.Error())
	}
	for _, n := range d.unanswered(in, nics) {
		if n.ips = d.said(patience, in, n.mac, table); len(n.ips) > 0 {
			nics = append(nics, n)
		}
	}
	var macs, names []string
	for _, n := range nics {
		if n.mac != "" && len(macs) < mostAddresses && !slices.Contains(macs, n.mac) {
			macs = append(macs, n.mac)
		}
		if n.name != "" && n.name != "lo" && len(names) < mostAddresses && !slices.Contains(names, n.name) {
			names = append(names, n.name)
		}
		for _, ip := range n.ips {
			if len(o.Addresses) < mostAddresses && !slices.Contains(o.Addresses, ip) && reachable(ip) {
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
		o.Metadata["vm.mac_addresses"] = driver.Bound(strings.Join(macs, ","))
	}
	if len(names) > 0 {
		o.Metadata["vm.interfaces"] = driver.Bound(strings.Join(names, ","))
	}
}

// unanswered returns those interfaces of a running guest whose address is not known: they have no static
// address, and neither libvirt nor the guest agent reports one.
func (d *Driver) unanswered(in *instance, answers []address) []address {
	asked := in.live.asked(interfacesOf(in.domain.live))
	d.listen(asked)
	return slices.DeleteFunc(asked, func(n address) bool {
		return slices.ContainsFunc(answers, func(a address) bool { return strings.EqualFold(a.mac, n.mac) && len(a.ips) > 0 })
	})
}

// said returns the addresses that an interface announced by ARP since the guest's start. If the interface
// announced no address, said returns the addresses in the kernel's neighbour table, which may hold an address
// from an earlier run.
func (d *Driver) said(patience context.Context, in *instance, mac string, table func() map[string][]string) []string {
	var since time.Time
	var noted []string
	if in.live != nil { // the domain has a record, so no legacy v1 agent made it
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
		err := d.aside(patience, in, func(ctx context.Context, in *instance) error {
			return d.change(ctx, in, func(r *record) {
				if !r.Started.Equal(since) {
					return // the guest was started again meanwhile, so these addresses do not belong in its record
				}
				r.Heard = maps.Clone(r.Heard)
				if r.Heard == nil {
					r.Heard = map[string][]string{}
				}
				r.Heard[mac] = now
			})
		})
		if err != nil { // if the write fails, the next List tries it again
			d.opt.Logger.Debug("could not record a guest's address", "domain", in.name, "err", err)
		}
	}
	return now
}

// listen starts ARP snooping for the interfaces of a guest, if this process may open the socket
// (CAP_NET_RAW).
func (d *Driver) listen(nics []address) {
	macs := make([]string, len(nics))
	for i, n := range nics {
		macs[i] = n.mac
	}
	if err := d.snooper.Want(macs); err != nil {
		d.opt.Logger.Warn("cannot listen for ARP: addresses of guests on plain bridges are known only if the guest has talked to this machine or runs the QEMU guest agent", "err", err)
	}
}

// Usage implements driver.Meter with libvirt's counters of each domain.
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
