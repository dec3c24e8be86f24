package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"time"

	"github.com/persys/compute/agent/overlay"
	"github.com/persys/compute/agent/overlay/plan"
	"github.com/persys/compute/agent/workload"
	"github.com/persys/compute/testbed"
)

const (
	updateServices  = 10_000
	updateInstances = 3
	updateBatch     = 1_000 // changed instances in one view: ten views a second are 10,000 changes
	updateRounds    = 20
	updateLoad      = time.Second // maximum time to load all services into the kernel
)

// hostAddr returns the IP address first + n.
func hostAddr(first netip.Addr, n int) netip.Addr {
	a := first.As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// serviceWorld returns the view of a machine with one network and a number of services in this network. All
// instances of the services are on other machines.
func serviceWorld(services, instances int) (v workload.NetworkView, s workload.ServiceView) {
	cidr := netip.MustParsePrefix("10.216.0.0/14")
	n := workload.Network{ID: 1, CIDR: cidr, Slice: netip.MustParsePrefix("10.216.0.0/26")}
	first := netip.MustParseAddr("10.219.0.0")
	for i := 0; i < services; i += 64 {
		n.Services = append(n.Services, netip.PrefixFrom(hostAddr(first, i), 26))
	}
	v.Networks = []workload.Network{n}
	for i := range services {
		x := workload.NetworkService{Address: hostAddr(first, i)}
		for j := range instances {
			x.Endpoints = append(x.Endpoints, hostAddr(netip.MustParseAddr("10.217.0.0"), i*instances+j))
		}
		s.Services = append(s.Services, x)
	}
	return v, s
}

// netUpdate measures how many changed instances of services one machine takes over per second. It includes
// all work of the agent, from the view of all services to the rules in the kernel. The peer is the command
// nft, which gets the same changes as one file per view.
func netUpdate(ctx context.Context, _ *env) (r result, err error) {
	r = result{unit: "changes/s", goal: 10_000}
	machine, err := testbed.NewNamespace()
	if err != nil {
		return r, err
	}
	defer machine.Close()
	err = machine.Do(func() error {
		b, err := overlay.OpenBalancer()
		if err != nil {
			return err
		}
		defer b.Close()
		b.Owner = plan.Owner("bench")
		v, s := serviceWorld(updateServices, updateInstances)
		began := time.Now()
		if err := b.Apply(plan.BalanceOf(v, s)); err != nil {
			return err
		}
		load := time.Since(began)
		r.missed = load > updateLoad
		script := nftMaps(s)
		if err := nftFile(ctx, script); err != nil {
			return err
		}
		var ours, theirs []float64
		for round := range updateRounds {
			next := workload.ServiceView{Services: slices.Clone(s.Services)}
			var peer bytes.Buffer
			for i := range updateBatch {
				at := (i*7 + round) % updateServices
				list := slices.Clone(next.Services[at].Endpoints)
				was := list[0]
				list[0] = hostAddr(netip.MustParseAddr("10.218.0.0"), round*updateBatch+i)
				next.Services[at].Endpoints = list
				fmt.Fprintf(&peer, "delete element ip bench slots { %s . 0 : %s }\nadd element ip bench slots { %s . 0 : %s }\n", next.Services[at].Address, was, next.Services[at].Address, list[0])
			}
			began := time.Now()
			if err := b.Apply(plan.BalanceOf(v, next)); err != nil {
				return err
			}
			ours = append(ours, updateBatch/time.Since(began).Seconds())
			began = time.Now()
			if err := nftFile(ctx, peer.String()); err != nil {
				return err
			}
			theirs = append(theirs, updateBatch/time.Since(began).Seconds())
			s = next
		}
		r.ours, r.peer = median(ours), median(theirs)
		r.note = fmt.Sprintf("%d services of %d instances loaded in %s, at most %s; %d changes in a view", updateServices, updateInstances, load.Round(time.Millisecond), updateLoad, updateBatch)
		return nil
	})
	return r, err
}

// nftMaps returns a script for nft, the peer of this benchmark, that creates its map of the services.
func nftMaps(s workload.ServiceView) string {
	var out bytes.Buffer
	out.WriteString("table ip bench {\n\tmap slots { type ipv4_addr . mark : ipv4_addr; elements = {\n")
	for _, x := range s.Services {
		for i, a := range x.Endpoints {
			fmt.Fprintf(&out, "%s . %d : %s,\n", x.Address, i, a)
		}
	}
	out.WriteString("}\n}\n}\n")
	return out.String()
}

// nftFile runs the command nft with a script, in the network namespace of the calling thread.
func nftFile(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = bytes.NewBufferString(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %.300s", err, out)
	}
	return nil
}
