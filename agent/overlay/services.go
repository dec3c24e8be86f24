package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
)

const (
	// withdrawal is the longest time that Withdraw waits. By then, every node that is connected to a
	// scheduler has removed the instance from its services. spread is how long Withdraw waits after this node
	// has the view without the instance, because other nodes may get the same view a little later.
	withdrawal, spread = time.Second, 200 * time.Millisecond
	// forgetCalm is the minimum time between two searches for tracked connections that must be deleted.
	forgetCalm = 200 * time.Millisecond
)

// serviceState is the part of Overlay's state that concerns services. Overlay.mu guards it.
type serviceState struct {
	view     workload.ServiceView
	known    bool          // at least one view of the services has arrived
	told     chan struct{} // closed when a newer view comes
	served   map[netip.Addr]bool
	routed   []netip.Prefix // slices of services with a route through their network's bridge, as of the last time that the bridge was ready
	problems []string
	looked   []workload.IngressPort // ports in ingress mode that the last list of the machine's sockets checked
	held     []workload.IngressPort // ports in ingress mode that programs of the machine use or Config.Forbids forbids, sorted
}

// SetServices gives Run a newer view of the services. It does not block.
func (o *Overlay) SetServices(v workload.ServiceView) {
	o.mu.Lock()
	o.services.view, o.services.known = v, true
	close(o.services.told)
	o.services.told = make(chan struct{})
	o.mu.Unlock()
	signal(o.balance)
}

// Serves reports whether containers of this machine can reach a service at its own address.
func (o *Overlay) Serves(service netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.services.served[service] && slices.ContainsFunc(o.services.routed, func(p netip.Prefix) bool { return p.Contains(service) })
}

// route records for which prefixes containers can reach services, after a comparison of the machine with the
// view. ready holds the networks that this comparison found to be set up. A prefix that worked before is kept,
// because the container engine may only be restarting. o.mu must be held.
func (o *Overlay) route(v *workload.NetworkView, ready []uint32) {
	var routed []netip.Prefix
	for _, n := range v.Networks {
		for _, p := range n.Services {
			if slices.Contains(ready, n.ID) || slices.Contains(o.services.routed, p) {
				routed = append(routed, p)
			}
		}
	}
	o.services.routed = routed
}

// Withdraw implements driver.Networks. It waits until the newest view of the services does not contain the instance
// any more. Other machines get that view at about the same time.
func (o *Overlay) Withdraw(ctx context.Context, id driver.ID) {
	limit := time.NewTimer(withdrawal)
	defer limit.Stop()
	own := o.addresses.used(string(id))
	for waited := false; ; waited = true {
		o.mu.Lock()
		told := o.services.told
		serves := slices.ContainsFunc(o.services.view.Services, func(s workload.NetworkService) bool {
			return slices.ContainsFunc(s.Endpoints, func(a netip.Addr) bool { return slices.Contains(own, a) })
		}) || slices.ContainsFunc(o.services.view.Ingress, func(p workload.NetworkIngress) bool {
			return slices.ContainsFunc(p.Endpoints, func(a netip.AddrPort) bool { return slices.Contains(own, a.Addr()) })
		})
		o.mu.Unlock()
		if !serves {
			if waited {
				sleep(ctx, spread)
			}
			return
		}
		select {
		case <-told:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// used returns the addresses that a workload has now on all of its networks.
func (a *addresses) used(id string) (out []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.all {
		if r.Workload == id && r.FreedAt.IsZero() {
			out = append(out, r.Address)
		}
	}
	return out
}

// runServices keeps the nftables table of services equal to the newest views, until ctx ends.
func (o *Overlay) runServices(ctx context.Context, b *Balancer) {
	defer b.Close()
	ticker := time.NewTicker(o.compare)
	defer ticker.Stop()
	retry := time.NewTimer(retryMin)
	defer retry.Stop()
	forget := time.NewTimer(0)
	defer forget.Stop()
	first := true
	var lost []netip.Prefix
	for {
		read := false
		select {
		case <-ctx.Done():
			return
		case <-forget.C:
			o.forget(b)
			continue
		case <-o.balance:
		case <-retry.C:
		case <-ticker.C:
			read = true
		}
		v, s := o.wanted()
		if v == nil {
			continue
		}
		was := b.have
		err := o.rebalance(b, v, s, read || first)
		first = false
		if err != nil {
			retry.Reset(retryMin)
		}
		o.reportServices(s, b.have, err)
		if b.have != nil && (left(was, *b.have) || !slices.Equal(lost, s.Lost)) {
			forget.Reset(forgetCalm)
			lost = s.Lost
		}
	}
}

// wanted returns the newest views of networks and of services that the schedulers sent. It returns nil if the
// machine has networks but no view of their services has arrived yet; the table then stays unchanged.
func (o *Overlay) wanted() (*workload.NetworkView, workload.ServiceView) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.view != nil && len(o.view.Networks) > 0 && !o.services.known {
		return nil, workload.ServiceView{}
	}
	return o.view, o.services.view
}

// rebalance makes the nftables table equal to the views. If read is set, it first reads the table
// from the kernel.
func (o *Overlay) rebalance(b *Balancer, v *workload.NetworkView, s workload.ServiceView, read bool) error {
	b.Owner = plan.Owner(alias(v.Cluster, o.cfg.Node))
	exists, other, err := b.Exists()
	held, err2 := o.heldPorts(b, v, s, read)
	want := plan.BalanceOf(*v, s, held...)
	switch {
	case err != nil:
		return err
	case other != "":
		return fmt.Errorf("the nftables table ip %s has the set %s, so it belongs to another agent: only one agent of a machine can have networks; if the other agent is gone, run: nft delete table ip %s",
			plan.ServiceTable, other, plan.ServiceTable)
	case want.Empty() && !exists:
		return err2
	case want.Empty():
		return errors.Join(b.Drop(), err2)
	}
	if filtered := filtersBridges(); filtered != b.Bridged {
		b.Bridged, b.have = filtered, nil
	}
	repairs := b.have != nil
	switch {
	case !exists:
		b.have = nil
	case read || b.have == nil:
		was := b.have
		if err := b.Read(); err != nil {
			o.log.Debug("cannot read the nftables table of services; it is written anew", "error", err)
			b.have = nil
		}
		repairs = was != nil && (b.have == nil || !was.To(*b.have).Empty())
	default:
		repairs = false
	}
	if err := b.Apply(want); err != nil {
		return fmt.Errorf("writing the nftables table of services: %w", err)
	}
	if repairs {
		o.cfg.Metrics.NetworkRepaired()
		o.log.Warn("another program changed the services of networks; repaired")
	}
	return err2
}

// heldPorts returns the ports in ingress mode at which programs of the machine listen, and those that the policy of the
// machine forbids. It lists the sockets if anew is set or if a port was not checked before. If listing fails, it treats
// ports that were not checked as used by programs, so that no program loses its port.
func (o *Overlay) heldPorts(b *Balancer, v *workload.NetworkView, s workload.ServiceView, anew bool) ([]workload.IngressPort, error) {
	var ports []workload.IngressPort
	for _, x := range s.Ingress {
		ports = append(ports, x.IngressPort)
	}
	o.mu.Lock()
	former, looked := o.services.held, o.services.looked
	o.mu.Unlock()
	if !anew && !slices.ContainsFunc(ports, func(p workload.IngressPort) bool { return !slices.Contains(looked, p) }) {
		return slices.DeleteFunc(slices.Clone(former), func(p workload.IngressPort) bool { return !slices.Contains(ports, p) }), nil
	}
	var inside []netip.Addr
	for _, n := range v.Networks {
		inside = append(inside, plan.Gateway(n.Slice))
	}
	var held []workload.IngressPort
	err := error(nil)
	if len(ports) > 0 {
		held, err = b.sockets.listening(ports, inside)
	}
	if err != nil {
		held = slices.DeleteFunc(slices.Clone(ports), func(p workload.IngressPort) bool {
			return slices.Contains(looked, p) && !slices.Contains(former, p)
		})
		err = fmt.Errorf("cannot find out which ports programs of this machine use: %w", err)
	}
	for _, p := range ports {
		if o.cfg.Forbids(p) && !slices.Contains(held, p) {
			held = append(held, p)
		}
	}
	slices.SortFunc(held, workload.IngressPort.Compare)
	o.mu.Lock()
	o.services.held, o.services.looked = held, ports
	o.mu.Unlock()
	if !slices.Equal(held, former) {
		o.log.Warn("this machine does not answer at ports in ingress mode: its programs use them, or PERSYS_POLICY forbids them", "ports", portsText(held), "forbidden", portsText(o.forbidden(held)))
	}
	return held, err
}

// HeldPorts returns two lists of ports, for example "22/tcp, 80/tcp". held are the ports in ingress mode at which this
// machine does not answer, because a program of the machine uses the port or the policy of the machine forbids it.
// forbidden are the ports in held that the policy forbids. Each list has at most 200 bytes; further ports are left out.
func (o *Overlay) HeldPorts() (held, forbidden string) {
	o.mu.Lock()
	list := o.services.held
	o.mu.Unlock()
	return portsText(list), portsText(o.forbidden(list))
}

// forbidden returns the ports of a list that the policy of the machine forbids.
func (o *Overlay) forbidden(list []workload.IngressPort) []workload.IngressPort {
	return slices.DeleteFunc(slices.Clone(list), func(p workload.IngressPort) bool { return !o.cfg.Forbids(p) })
}

// maxHeldText is the maximum length, in bytes, of the text that HeldPorts returns.
const maxHeldText = 200

func portsText(list []workload.IngressPort) string {
	text := ""
	for _, p := range list {
		if next := strings.TrimPrefix(text+", "+p.String(), ", "); len(next) <= maxHeldText {
			text = next
		}
	}
	return text
}

// filtersBridges reports whether the kernel can track the packets between the ports of a bridge.
func filtersBridges() bool {
	_, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
	return err == nil
}

// reportServices publishes which services containers can reach at the services' own addresses: those in have,
// the content of the nftables table. err is the reason why the table could not be written.
func (o *Overlay) reportServices(s workload.ServiceView, have *plan.Balance, err error) {
	served := map[netip.Addr]bool{}
	if have != nil {
		for _, x := range s.Services {
			served[x.Address] = have.Has(x.Address)
		}
	}
	var problems []string
	if err != nil {
		problems = strings.Split(err.Error(), "\n")
	}
	o.mu.Lock()
	changed := !slices.Equal(problems, o.services.problems)
	o.services.served, o.services.problems = served, problems
	o.mu.Unlock()
	if changed && len(problems) > 0 {
		o.log.Warn("services of networks have problems", "problems", strings.Join(problems, "; "))
	}
}

// forget deletes the connection tracking entries whose packets must go to another instance.
func (o *Overlay) forget(b *Balancer) {
	_, s := o.wanted()
	switch n, err := b.Forget(s); {
	case err != nil:
		o.log.Warn("cannot delete the tracked connections to former instances of services", "error", err)
	case n > 0:
		o.log.Info("connections to instances that are gone were closed", "connections", n)
	}
}
