package fsm

import (
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/bounds"
)

// A DNS name leads to one workload or to one group. Workload "Web" has the DNS label "web-3f5ec1", so no
// other workload or group may have the id "web-3f5ec1". A workload may have the name of a group only if it is
// a member of the group. All members of a group are in one namespace; otherwise a user of one namespace could add an
// instance to the DNS name of another.

// labelKeys returns the keys of a workload in the index byLabel, which finds ids and groups by
// their DNS label: one key for its id, one for its group. An id or group that is its own DNS label
// has no key in byLabel, because the table of workloads or the index of groups finds it.
func labelKeys(w *Workload) (id, group string) {
	if l := bounds.DNSLabel(w.ID); w.ID != "" && l != w.ID {
		id = pair(l, "w/"+w.ID)
	}
	if g := w.Demand.Group; g != "" {
		if l := bounds.DNSLabel(g); l != g {
			group = pair(l, "g/"+g+"/"+w.ID)
		}
	}
	return id, group
}

// NameFault returns why the command b would be refused because of the DNS names or the Ethernet
// addresses of its workloads; "" if it would be accepted. The list leaving has the workloads that
// the same command deletes. The function sees reports whether the caller may see a namespace.
func (s State) NameFault(b *commandv1.PutWorkloads, leaving []*Workload, sees func(namespace string) bool) string {
	olds := make([]*Workload, len(b.GetWorkloads()))
	for i, p := range b.GetWorkloads() {
		olds[i], _ = s.r.workloads.Get(p.GetId())
	}
	return s.identityFault(b.GetWorkloads(), olds, leaving, sees)
}

// identityFault is NameFault for a caller that has looked up the present records. An element of
// olds is nil if its workload does not exist.
func (s State) identityFault(puts []*commandv1.WorkloadPut, olds, leaving []*Workload, sees func(string) bool) string {
	if why := s.nameFault(puts, olds, leaving); why != "" {
		return why
	}
	if why := s.ingressFault(puts, olds, leaving, sees); why != "" {
		return why
	}
	return s.macFault(puts, olds, sees)
}

// nameFault returns why the DNS names of the workloads in puts, or of their group, are not free; "" if all are free.
// The list leaving has the workloads that the same command deletes, so their names are free.
func (s State) nameFault(puts []*commandv1.WorkloadPut, olds, leaving []*Workload) string {
	for i, p := range puts {
		id, group, namespace := p.GetId(), p.GetDemand().GetGroup(), namespaceOf(p, olds[i])
		made := olds[i] == nil
		if made {
			if why := s.labelFault("workload", id, id, group, namespace, leaving); why != "" {
				return why
			}
		}
		if group != "" && (made || olds[i].Demand.Group != group) {
			if why := s.labelFault("group", group, id, group, namespace, leaving); why != "" {
				return why
			}
		}
	}
	return ""
}

// labelFault checks that no other workload or group has the DNS label of name, which is the id of a
// new workload or the name of its group (what says which). It returns an error text, or "".
func (s State) labelFault(what, name, id, group, namespace string, leaving []*Workload) (why string) {
	label := bounds.DNSLabel(name)
	clash := func(other *Workload, asGroup bool) {
		member := group != "" && (other.Demand.Group == group || other.ID == group && other.IsSystem())
		switch {
		case why != "" || other.ID == id || other.Desired == DesiredDeleted || isIn(leaving, other):
		case member && other.In() == namespace:
		case member:
			why = "group " + quoted(group) + " is in another namespace: choose another name"
		case asGroup:
			why = what + " " + quoted(name) + " would have the DNS name of group " + quoted(other.Demand.Group) + ", " + quoted(label) + ": choose another name"
		default:
			why = what + " " + quoted(name) + " would have the DNS name of workload " + quoted(other.ID) + ", " + quoted(label) + ": choose another name, or delete that workload first"
		}
	}
	if w, ok := s.r.workloads.Get(label); ok {
		clash(w, false)
	}
	s.Group(label, func(w *Workload) bool { clash(w, true); return why == "" })
	prefix := label + "/"
	s.r.byLabel.Ascend(prefix, func(key string, _ struct{}) bool {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			return false
		}
		kind, rest, _ := strings.Cut(rest, "/")
		if w, ok := s.r.workloads.Get(rest[strings.LastIndexByte(rest, '/')+1:]); ok {
			clash(w, kind == "g")
		}
		return why == ""
	})
	return why
}

func isIn(list []*Workload, w *Workload) bool {
	for _, x := range list {
		if x.ID == w.ID {
			return true
		}
	}
	return false
}
