package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Quarantine is how long a freed address is given to no other workload. Clients may still hold it.
const Quarantine = 5 * time.Minute

// Choose returns the address of a workload on a network: the one that it has or had, otherwise one that nobody ever
// had, otherwise the one that was freed first. It never returns the address of the network, of its bridge, or one of
// EnginePart. have holds the network's records in the slice.
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

// Former returns the records of a network that are outside its slice.
func Former(slice netip.Prefix, have []workload.NetworkAddress) []workload.NetworkAddress {
	return slices.DeleteFunc(slices.Clone(have), func(r workload.NetworkAddress) bool { return slice.Contains(r.Address) })
}
