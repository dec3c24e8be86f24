package fsm

import (
	"fmt"
	"slices"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// Surge members (ADR 58): the extra members that an update with start_first makes. Their records have
// Demand.Surge. The record of the update lists them. A command that ends or replaces the update deletes the
// surge members that the new record does not list.

// SurgeCount returns how many surge members (extra members that start before old ones stop) an
// update of a group with this number of members creates.
func SurgeCount(u *commandv1.UpdatePolicy, members int) int {
	if u == nil {
		return 0
	}
	return rollout.PolicyOf(u).SurgeCount(members)
}

// surging reports whether an update that has not ended still needs w, a surge member (an extra
// member that the update started first).
func (s State) surging(w *Workload) bool {
	r, ok := s.Rollout(w.Demand.Group)
	return ok && r.Phase != rollout.Completed &&
		slices.ContainsFunc(r.Members, func(m rollout.Member) bool { return m.Surge && m.ID == w.ID })
}

// portNote is a hint for a surge member (an extra member that starts before an old one stops) which has no node:
// the old members may hold the host ports with fixed numbers that it needs. It is "" for other workloads.
func (w *Workload) portNote() string {
	if !w.Demand.Surge || w.Node != "" || len(w.Demand.Ports) == 0 {
		return ""
	}
	p := w.Demand.Ports[0]
	return fmt.Sprintf("; an extra member needs a node where host port %d/%s is free", p.Port, p.Protocol)
}

// dropSurge deletes the surge members (extra members of an update) of a group that no update lists
// any more.
func (t *Tx) dropSurge(group string) {
	if group == "" {
		return
	}
	var gone []*Workload
	t.state().Group(group, func(w *Workload) bool {
		if w.Demand.Surge && w.Desired != DesiredDeleted && !t.state().surging(w) {
			gone = append(gone, w)
		}
		return true
	})
	for _, w := range gone {
		t.deleteOne(w, false, false)
	}
}

// admitsSurge refuses a command if the id of one of its surge members (extra members for the time of an
// update) belongs to another workload, or if the files of a surge member do not exist. With judge, a person asks for
// the update, so the policy of the namespace must permit the surge members too.
func (t *Tx) admitsSurge(b *commandv1.PutWorkloads, judge bool) (Result, bool) {
	if len(b.GetSurge()) == 0 {
		return Result{}, true
	}
	if fault := bundlesFault(t.state(), t.offered, b.GetSurge()); fault != "" {
		return refuse(Invalid, "surge: %s", fault), false
	}
	in := NamespaceOf(t.state(), b.GetWorkloads()[0])
	olds := make([]*Workload, len(b.GetSurge()))
	for i, p := range b.GetSurge() {
		w, ok := t.r.workloads.Get(p.GetId())
		if olds[i] = w; ok && (w.Demand.Group != b.GetGroupOf() || w.In() != in || !MadeByCount(b.GetGroupOf(), w.ID)) {
			return refuse(Conflict, "workload %s exists, and start-first needs its id for an extra member of %s: delete it, or set order: stop-first", w.ID, b.GetGroupOf()), false
		}
	}
	if d := t.orphanAmong(b.GetSurge(), olds); d != nil {
		return refuse(Conflict, "an instance %q that the cluster does not know is on node %q, and start-first needs its id for an extra member of %s: adopt or delete it (persysctl drift), or set order: stop-first",
			clip(d.Workload), d.Node, b.GetGroupOf()), false
	}
	if judge {
		for _, p := range b.GetSurge() {
			if res, ok := t.judgedIn(in, p); !ok {
				return res, false
			}
		}
	}
	return Result{}, true
}

// ownMembers returns the number of members of an update without its surge members (extra members); 0 if
// there is no update.
func ownMembers(r *rollout.Rollout) (n int) {
	if r == nil {
		return 0
	}
	for i := range r.Members {
		if !r.Members[i].Surge {
			n++
		}
	}
	return n
}

// sameSurge reports whether the surge members (extra members) of update r have, or will get, the
// specifications in puts.
func (t *Tx) sameSurge(r *rollout.Rollout, puts []*commandv1.WorkloadPut) bool {
	if len(r.Members)-ownMembers(r) != len(puts) {
		return false
	}
	for _, p := range puts {
		i := slices.IndexFunc(r.Members, func(m rollout.Member) bool { return m.Surge && m.ID == p.GetId() })
		if i < 0 {
			return false
		}
		next := Intended(p)
		if m := &r.Members[i]; m.Put != nil && !Intended(m.Put).SameAs(next) || m.State(t.state().Seen(m.ID)) == "Left" {
			return false
		} else if w, ok := t.r.workloads.Get(m.ID); m.Put == nil && (!ok || w.Content != next.Content || !demandEqual(w.Demand, next.Demand)) {
			return false
		}
	}
	return true
}

// keepSurge adds to r, an update that restores previous specifications, the surge members (extra
// members of the former update) that are available, so that they stay until r ends.
func (t *Tx) keepSurge(r *rollout.Rollout) {
	t.state().Group(r.Group, func(w *Workload) bool {
		if w.Demand.Surge && w.Desired == DesiredRunning && w.Available() {
			r.Members = append(r.Members, rollout.Member{ID: w.ID, Content: w.Content, TakenAt: t.r.info.Clock, Settled: true, Surge: true})
		}
		return true
	})
}

// surges adds the surge members (extra members for the time of the update) in command b to r, the update
// that b begins, and marks the canaries. was is the update that r replaces if both have the same
// specifications: its canaries stay canaries. Otherwise was is nil.
func (t *Tx) surges(r, was *rollout.Rollout, b *commandv1.PutWorkloads, under []approval) Result {
	p := r.Policy
	if p.StartFirst && len(b.GetSurge()) == 0 {
		return refuse(Invalid, "update.start_first: the command has no surge members")
	}
	canary := func(id string) bool {
		return was != nil && slices.ContainsFunc(was.Members, func(m rollout.Member) bool { return m.ID == id && m.Canary })
	}
	marked := 0
	for i := range r.Members {
		if r.Members[i].Canary = canary(r.Members[i].ID); r.Members[i].Canary {
			marked++
		}
	}
	if !p.StartFirst {
		for _, available := range []bool{false, true} { // members that are down first: changing them makes no other member unavailable
			for i := range r.Members {
				m := &r.Members[i]
				if marked < p.Canary && m.Put != nil && !m.Canary && t.state().Seen(m.ID).Available == available {
					m.Canary, marked = true, marked+1
				}
			}
		}
		return Result{}
	}
	in := NamespaceOf(t.state(), b.GetWorkloads()[0])
	for i, put := range b.GetSurge() {
		put = put.CloneVT()
		put.Namespace, put.Policy, put.Confined = in, under[0].policy, under[0].confined
		m := rollout.Member{ID: strings.Clone(put.GetId()), Put: put, Surge: true, Canary: i < p.Canary}
		if w, ok := t.r.workloads.Get(m.ID); ok && w.Demand.Surge && w.Desired != DesiredDeleted {
			if m.Content = w.Content; w.SameAs(Intended(put)) {
				m.Put, m.TakenAt = nil, t.r.info.Clock
			}
		}
		r.Members = append(r.Members, m)
	}
	return Result{}
}

// leaveSurge is called in a restore, which ends updates. For each surge member (extra member of an
// update) that has a node, it adds a residual, so that the node removes the instance.
func (t *Tx) leaveSurge(facts State) {
	facts.Workloads("", func(w *Workload) bool {
		n, ok := t.r.nodes.Get(w.Node)
		if !w.Demand.Surge || !ok {
			return true
		}
		left := *w.Demand
		left.Asks = nil
		left.Ports = united(left.Ports, w.FormerPorts)
		t.r.residuals.Set(pair(n.ID, w.ID), &Residual{
			Node: n.ID, Workload: w.ID, Generation: t.generation(), Engine: n.Engine(), Demand: left,
			Since: t.r.info.Clock, Reason: CodeDeleting,
		})
		return true
	})
}
