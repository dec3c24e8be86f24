package fsm

import (
	"fmt"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

func macOf(n int) string { return fmt.Sprintf("52:54:00:00:00:%02x", n) }

func macs(list ...string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.MacAddresses = list })
}

func TestMACAddressesBelongToOneWorkload(t *testing.T) {
	of := func(id string, set ...func(*commandv1.WorkloadPut)) *commandv1.WorkloadPut {
		return put(id, set...).GetPutWorkloads().Workloads[0]
	}
	a, b := macs(macOf(1)), macs(macOf(2))
	group := func(p *commandv1.WorkloadPut) { p.Demand.Group = "g" }
	// member returns a command that updates the only member of a group.
	member := func(group string, set ...func(*commandv1.WorkloadPut)) Command {
		c := puts(group, of(group+"-0", append(set, func(p *commandv1.WorkloadPut) { p.Demand.Group = group })...))
		c.GetPutWorkloads().Update = updates(1, false)
		return c
	}
	for _, c := range []struct {
		name    string
		have    []Command
		next    Command
		kind    Kind
		refused []string
	}{
		{"two workloads with different addresses are accepted", []Command{put("one", a)}, put("two", b), OK, nil},
		{"a second workload with the address of the first is refused", []Command{put("one", a)}, put("two", a), Conflict,
			[]string{"vm.networks: ", "mac_address " + macOf(1), `workload "two"`, `already used by workload "one"`, "set another mac_address"}},
		{"a workload that shares one of several addresses with another workload is refused", []Command{put("one", macs(macOf(1), macOf(2)))}, put("two", macs(macOf(2), macOf(3))), Conflict, []string{macOf(2)}},
		{"a change that takes the address of another workload is refused", []Command{put("one", a), put("two", b)}, put("two", a, content("c1:new")), Conflict, []string{`used by workload "one"`}},
		{"a change of a workload that keeps its address is accepted", []Command{put("one", a)}, put("one", a, content("c1:new")), OK, nil},
		{"an address that its former workload no longer requests is free", []Command{put("one", a), put("one", b, content("c1:new"))}, put("two", a), OK, nil},
		{"the address of a deleted workload is free", []Command{put("one", a), remove("one", false)}, put("two", a), OK, nil},
		{"two workloads of one command with one address are refused", nil, puts("", of("one", a), of("two", a)), Conflict, []string{`also that of workload "one" in this request`}},
		{"a put with the field each accepts the first of two workloads with one address", nil, each(of("one", a), of("two", a)), OK, nil},
		{"the refusal does not name an owner in a namespace that the caller may not see", []Command{putNamespace("a"), putNamespace("b"), put("one", a, inNamespace("a"))},
			confined(put("two", a, inNamespace("b")), "b"), Conflict, []string{"already used by a workload of another namespace: "}},
		{"the refusal names an owner in a namespace of the caller", []Command{putNamespace("b"), put("one", a, inNamespace("b"))},
			confined(put("two", a, inNamespace("b")), "b"), Conflict, []string{`used by workload "one"`}},
		{"an address twice in a demand is refused", nil, put("one", macs(macOf(1), macOf(1))), Invalid, []string{"mac_addresses[1]"}},
		{"an address in upper case is refused", nil, put("one", macs("52:54:00:00:00:0A")), Invalid, []string{"mac_addresses[0]", "52:54:00:00:00:0A"}},
		{"a multicast address is refused", nil, put("one", macs("01:00:5e:00:00:01")), Invalid, []string{"mac_addresses[0]"}},
		{"the zero address is refused", nil, put("one", macs("00:00:00:00:00:00")), Invalid, []string{"mac_addresses[0]"}},
		{"a restart of the group of the owner is accepted", []Command{puts("g", of("g-0", a, group))}, puts("g", of("g-0", a, group, content("c1:new"))), OK, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := formed(t)
			for _, h := range c.have {
				w.ok(h)
			}
			res := w.do(c.next)
			if c.refused != nil {
				refused(t, res, c.kind, c.refused...)
				return
			}
			is(t, "verdict on the command", res.Kind, OK)
			for _, item := range res.Items[min(1, len(res.Items)):] {
				refused(t, res.Of(item), Conflict, macOf(1))
			}
		})
	}
	prove(t, []fact{
		{"a deleted machine keeps its address until its node has removed it", func(t *testing.T, w *world) {
			w.place("one", "a", a)
			w.run("one")
			w.ok(remove("one", false))
			refused(t, w.do(put("two", a)), Conflict, `workload "one", which is being deleted`)
			w.ok(gone("one", "a", nil))
			w.ok(put("two", a))
		}},
		{"an update that waits for its turn holds its new address", func(t *testing.T, w *world) {
			w.ok(member("g", a))
			w.bind("g-0", "a")
			w.run("g-0")
			w.ok(member("g", b, content("c1:new")))
			is(t, `content of workload "g-0"`, w.workload("g-0").Content, "c1:0123456789abcdef0123")
			refused(t, w.do(put("two", b)), Conflict, `workload "g-0", whose update waits`)
			refused(t, w.do(put("two", a)), Conflict, `workload "g-0"`)
		}},
		{"an address that an update has not given to its member when the update ends is free", func(t *testing.T, w *world) {
			w.ok(member("web", a))
			w.bind("web-0", "a")
			w.run("web-0")
			w.ok(member("web", b, content("c1:new")))
			w.ok(remove("web-0", false)) // the update leaves out a member that is being deleted
			r, _ := w.s.Rollout("web")
			w.ok(advance(GenerationPB(RolloutID(r)), &commandv1.AdvanceRollout{Complete: true}))
			r, _ = w.s.Rollout("web")
			is(t, "phase of the update", r.Phase, rollout.Completed)
			w.ok(put("two", b))
		}},
	})
}

// TestUpdatesAreScannedOnceForTheAddressesOfACommand: a command may have 1,000 workloads, and each update of a
// group 1,000 members. A scan of the updates for each address would stop the apply goroutine for seconds.
func TestUpdatesAreScannedOnceForTheAddressesOfACommand(t *testing.T) {
	w := formed(t)
	var list []*commandv1.WorkloadPut
	for i := range 100 {
		list = append(list, put(fmt.Sprintf("vm-%d", i), macs(macOf(2*i), macOf(2*i+1))).GetPutWorkloads().Workloads[0])
	}
	scans := 0
	c := macCheck{s: w.s, rollouts: func(fn func(string, *rollout.Rollout) bool) {
		scans++
		w.s.r.rollouts.Scan(fn)
	}}
	is(t, "refusal of the workloads", c.fault(list, make([]*Workload, len(list))), "")
	is(t, "number of scans of the updates for 200 addresses", scans, 1)
}

// macAddresses is a scenario of the golden corpus: commands about workloads with Ethernet addresses.
func macAddresses(w *world) {
	w.do(register("a"))
	w.do(put("one", macs(macOf(1), macOf(2))))
	w.do(put("two", macs(macOf(2))))
	w.do(put("two", macs(macOf(3))))
	w.do(put("two", macs(macOf(3), macOf(1)))) // not sorted
	w.do(put("one", macs(macOf(2)), content("c1:new")))
	w.do(put("two", macs(macOf(1), macOf(3)), content("c1:new")))
	w.do(w.assign("one", "a"))
	w.do(w.says("one", "Running"))
	w.do(remove("one", false))
	w.do(put("three", macs(macOf(2))))
	w.do(gone("one", "a", nil))
	w.do(put("three", macs(macOf(2))))
	w.do(puts("", put("four", macs(macOf(4))).GetPutWorkloads().Workloads[0], put("five", macs(macOf(4))).GetPutWorkloads().Workloads[0]))
}
