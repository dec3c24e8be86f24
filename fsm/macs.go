package fsm

import (
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// Two virtual machines with one Ethernet address disturb each other as soon as both are on one network. So an
// address belongs to one workload only, whatever its node. The address is free again when the record of the
// workload is removed. Imported workloads may share an address, and keep it until their specifications
// change.

// indexMACs updates the index byMAC when the record after of a workload replaces the record before.
func (t *Tx) indexMACs(before, after *Workload) {
	m := own(t, &t.r.byMAC, ownByMAC)
	for _, mac := range before.Demand.MACs {
		m.Delete(pair(mac, before.ID))
	}
	for _, mac := range after.Demand.MACs {
		m.Set(pair(mac, after.ID), struct{}{})
	}
}

// macFault returns why the workloads in puts cannot have the Ethernet addresses that they request; "" if they can.
// The function sees reports whether the caller may see a namespace. A refusal does not name workloads of namespaces
// that the caller may not see.
func (s State) macFault(puts []*commandv1.WorkloadPut, olds []*Workload, sees func(namespace string) bool) string {
	c := macCheck{s: s, sees: sees, rollouts: s.r.rollouts.Scan}
	return c.fault(puts, olds)
}

// macCheck checks that no workload of one command requests an Ethernet address that another
// workload has.
type macCheck struct {
	s        State
	sees     func(namespace string) bool
	rollouts func(func(group string, r *rollout.Rollout) bool) // calls a function for each running update of a group
	waiting  *table[[]string]                                  // result of the method wait; nil until the first address is looked up
}

func (c *macCheck) fault(puts []*commandv1.WorkloadPut, olds []*Workload) string {
	var claimed *table[string] // workload that claims each address, if the command has several puts
	for i, p := range puts {
		for _, mac := range p.GetDemand().GetMacAddresses() {
			if len(puts) > 1 {
				if claimed == nil {
					claimed = tree[string, string]()
				}
				if other, twice := claimed.Set(mac, p.GetId()); twice {
					return macText(p.GetId(), mac) + " is also that of workload " + quoted(other) + " in this request: " + macNext
				}
			}
			if olds[i] != nil && slices.Contains(olds[i].Demand.MACs, mac) {
				continue
			}
			if why := c.taken(p.GetId(), mac); why != "" {
				return why
			}
		}
	}
	return ""
}

// taken returns why an Ethernet address is not free for workload id; "" if it is free. An address
// is taken if another workload has it, or will get it when a rolling update reaches that workload.
func (c *macCheck) taken(id, mac string) (why string) {
	taken := func(owner *Workload, how string) bool {
		if owner.ID == id {
			return true
		}
		who := "workload " + quoted(owner.ID) + how
		if !c.sees(owner.In()) {
			who = "a workload of another namespace"
		}
		why = macText(id, mac) + " is already used by " + who + ": " + macNext
		return false
	}
	prefix := mac + "/"
	c.s.r.byMAC.Ascend(prefix, func(key string, _ struct{}) bool {
		other, ok := strings.CutPrefix(key, prefix)
		if !ok {
			return false
		}
		w, ok := c.s.r.workloads.Get(other)
		switch {
		case !ok:
			return true
		case w.Desired == DesiredDeleted:
			return taken(w, ", which is being deleted (`persysctl get "+clip(w.ID)+"` shows it)")
		}
		return taken(w, "")
	})
	if why != "" {
		return why
	}
	if c.waiting == nil {
		c.wait()
	}
	members, _ := c.waiting.Get(mac)
	for _, member := range members {
		if w, ok := c.s.r.workloads.Get(member); ok && !taken(w, ", whose update waits") {
			break
		}
	}
	return why
}

// wait returns, for each Ethernet address, the workloads that will get the address when a rolling
// update reaches them. The updates are scanned once per command, because a command may have 1,000
// workloads and an update 1,000 members.
func (c *macCheck) wait() {
	c.waiting = tree[string, []string]()
	c.rollouts(func(_ string, r *rollout.Rollout) bool {
		if r.Phase == rollout.Completed {
			return true
		}
		for i := range r.Members {
			for _, mac := range r.Members[i].Put.GetDemand().GetMacAddresses() {
				members, _ := c.waiting.Get(mac)
				c.waiting.Set(mac, append(members, r.Members[i].ID))
			}
		}
		return true
	})
}

func macText(id, mac string) string {
	return "vm.networks: mac_address " + mac + " of workload " + quoted(id)
}

const macNext = "set another mac_address, or delete that workload first"
