package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Quarantine is how long a freed address is not given to another workload, because clients may still use
// it.
const Quarantine = 5 * time.Minute

// Choose returns the address of a workload on a network: the address that the workload has or had, otherwise
// one that was never used, otherwise the one that was freed first. It never returns the address of the network
// or of its bridge, or an address of EnginePart. have holds the records of addresses that this node gave out.
// slice is the part of the network's address range that the node uses.
func Choose(slice netip.Prefix, have []workload.NetworkAddress, id string, now time.Time) (netip.Addr, error) {
	records := map[netip.Addr]workload.NetworkAddress{}
	for _, r := range have {
		if r.Workload == id && slice.Contains(r.Address) {
			return r.Address, nil
		}
		records[r.Address] = r
	}
	engine, ok := EnginePart(slice)
	if !ok {
		return netip.Addr{}, fmt.Errorf("the slice %s is too small: at least 16 addresses are needed", slice)
	}
	var best netip.Addr
	var freed time.Time
	used, waiting := 0, 0
	for a := Gateway(slice).Next(); a.Less(engine.Addr()); a = a.Next() {
		r, known := records[a]
		switch {
		case !known:
			return a, nil
		case r.FreedAt.IsZero():
			used++
		case now.Sub(r.FreedAt) < Quarantine:
			waiting++
		case !best.IsValid() || r.FreedAt.Before(freed):
			best, freed = a, r.FreedAt
		}
	}
	if !best.IsValid() {
		return best, fmt.Errorf("the slice %s has no free address: %d are in use, %d were freed less than %s ago", slice, used, waiting, Quarantine)
	}
	return best, nil
}

// Former returns those records whose addresses are outside of the slice, because the node had another part of
// the network's addresses before.
func Former(slice netip.Prefix, have []workload.NetworkAddress) []workload.NetworkAddress {
	return slices.DeleteFunc(slices.Clone(have), func(r workload.NetworkAddress) bool { return slice.Contains(r.Address) })
}
