package overlay

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
)

// addresses holds the addresses that this node gave to its containers on networks. Each change is written to
// disk before a container gets the address.
type addresses struct {
	store AddressStore
	mu    sync.Mutex
	all   []workload.NetworkAddress
}

func (a *addresses) load() (err error) {
	a.all, err = a.store.Addresses()
	return err
}

func sameAddress(x, y workload.NetworkAddress) bool {
	return x.Network == y.Network && x.Address == y.Address
}

// put stores a record. a.mu must be held.
func (a *addresses) put(r workload.NetworkAddress) error {
	if err := a.store.PutAddress(r); err != nil {
		return err
	}
	a.all = append(slices.DeleteFunc(a.all, func(x workload.NetworkAddress) bool { return sameAddress(x, r) }), r)
	return nil
}

// drop deletes the record of an address, on disk and in memory. a.mu must be held.
func (a *addresses) drop(r workload.NetworkAddress) error {
	if err := a.store.DropAddress(r); err != nil {
		return err
	}
	a.all = slices.DeleteFunc(a.all, func(x workload.NetworkAddress) bool { return sameAddress(x, r) })
	return nil
}

func (a *addresses) of(network uint32) []workload.NetworkAddress {
	return slices.DeleteFunc(slices.Clone(a.all), func(r workload.NetworkAddress) bool { return r.Network != network })
}

// take returns a workload's address on a network. It keeps the address that the workload has or had, and
// otherwise chooses a free one.
func (a *addresses) take(n workload.Network, id string, now time.Time) (workload.NetworkAddress, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	have := a.of(n.ID)
	for _, r := range plan.Former(n.Slice, have) {
		if err := a.drop(r); err != nil {
			return r, err
		}
	}
	out := workload.NetworkAddress{Network: n.ID, Workload: id}
	var err error
	if out.Address, err = plan.Choose(n.Slice, have, id, now); err != nil || slices.Contains(have, out) {
		return out, err
	}
	return out, a.put(out)
}

// free records that a workload has given up its addresses, except those on the networks in except.
func (a *addresses) free(id string, except []uint32, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range slices.Clone(a.all) {
		if r.Workload != id || !r.FreedAt.IsZero() || slices.Contains(except, r.Network) {
			continue
		}
		r.FreedAt = now
		if err := a.put(r); err != nil {
			return err
		}
	}
	return nil
}

// learn records the addresses of existing containers that have no record, for example after the loss of the
// state file. It deletes the records of networks that neither the schedulers' newest view nor the engine
// contains.
func (a *addresses) learn(held []workload.NetworkAddress, v *workload.NetworkView, networks []plan.ObservedNetwork) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range held {
		i := slices.IndexFunc(a.all, func(r workload.NetworkAddress) bool { return sameAddress(r, h) })
		if i < 0 {
			if err := a.put(h); err != nil {
				return err
			}
		}
	}
	for _, r := range slices.Clone(a.all) {
		known := slices.ContainsFunc(v.Networks, func(n workload.Network) bool { return n.ID == r.Network }) ||
			slices.ContainsFunc(networks, func(n plan.ObservedNetwork) bool { return n.ID == r.Network })
		if !known {
			if err := a.drop(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// networksAt returns the networks of the workload that has the address; nil if no workload has it.
func (a *addresses) networksAt(at netip.Addr) (out []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.all, func(r workload.NetworkAddress) bool { return r.Address == at && r.FreedAt.IsZero() })
	if i < 0 {
		return nil
	}
	for _, r := range a.all {
		if r.Workload == a.all[i].Workload && r.FreedAt.IsZero() {
			out = append(out, r.Network)
		}
	}
	return out
}

// Join implements driver.Networks.
func (o *Overlay) Join(ctx context.Context, id driver.ID, networks []uint32) ([]driver.Place, error) {
	if len(networks) == 0 {
		return nil, nil
	}
	view, err := o.await(ctx, networks)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	named := o.named
	o.mu.Unlock()
	places := make([]driver.Place, 0, len(networks))
	for _, n := range networks {
		i := slices.IndexFunc(view.Networks, func(x workload.Network) bool { return x.ID == n })
		r, err := o.addresses.take(view.Networks[i], string(id), time.Now().UTC())
		if err != nil {
			return nil, driver.Errorf(driver.InsufficientResources, "network", "network %s/%s on this node: %w", view.Networks[i].Namespace, view.Networks[i].Name, err)
		}
		place := driver.Place{Network: engineName(n), Address: r.Address}
		if slices.Contains(named, n) {
			place.Resolver = plan.Gateway(view.Networks[i].Slice)
		}
		places = append(places, place)
	}
	return places, nil
}

// joinLimit is how long Join waits until the networks of a container are set up on this machine.
const joinLimit = 30 * time.Second

// await waits until the given networks are set up on this machine. It returns the schedulers' view that
// contains them.
func (o *Overlay) await(ctx context.Context, networks []uint32) (*workload.NetworkView, error) {
	limit := time.NewTimer(joinLimit)
	defer limit.Stop()
	for {
		o.mu.Lock()
		view, passed, problems := o.view, o.passed, o.problems
		missing, unready := uint32(0), uint32(0)
		for _, n := range networks {
			switch {
			case view == nil || !slices.ContainsFunc(view.Networks, func(x workload.Network) bool { return x.ID == n }):
				missing = n
			case !slices.Contains(o.ready, n):
				unready = n
			}
		}
		o.mu.Unlock()
		if missing == 0 && unready == 0 {
			return view, nil
		}
		select {
		case <-passed:
			continue
		case <-ctx.Done():
		case <-limit.C:
		}
		switch {
		case missing != 0 && view != nil && len(view.Problems) > 0:
			return nil, driver.Errorf(driver.NetworkUnreachable, "network", "network %d is not set up on this node: %s", missing, strings.Join(view.Problems, "; "))
		case missing != 0:
			return nil, driver.Errorf(driver.NetworkUnreachable, "network", "network %d is unknown to this node, because the schedulers have not sent it yet: wait, or check the agent's connection to the schedulers", missing)
		case len(problems) > 0:
			return nil, driver.Errorf(driver.NetworkUnreachable, "network", "network %d is not set up on this node: %s", unready, strings.Join(problems, "; "))
		}
		return nil, driver.Errorf(driver.NetworkUnreachable, "network", "network %d is not set up on this node yet", unready)
	}
}

// Leave implements driver.Networks.
func (o *Overlay) Leave(id driver.ID, except ...uint32) error {
	return o.addresses.free(string(id), except, time.Now().UTC())
}

var _ driver.Networks = (*Overlay)(nil)
