package spec

import (
	"cmp"
	"strconv"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
)

// OnEveryNode reports whether a specification makes one member for every node: a system workload, or a job that runs
// once on every node.
func OnEveryNode(s *controlv1.WorkloadSpec) bool {
	return isKind(s, KindSystem) || isKind(s, KindJob) && s.GetJob().GetEveryNode()
}

// system validates a specification that makes one member for every node.
func (e *Errors) system(id string, s *controlv1.WorkloadSpec) {
	if s.GetJob().GetEveryNode() && IsCron(s) {
		e.add("spec.job.every_node", "is only for kind: job", "true")
	}
	if !OnEveryNode(s) {
		return
	}
	field, what := "spec.kind", "system"
	if IsJob(s) {
		field, what = "spec.job.every_node", "true"
		if s.GetJob().Completions != nil {
			e.add("spec.job.completions", "is not for a job with every_node: it runs once on every node that matches", strconv.Itoa(int(s.GetJob().GetCompletions())))
		}
		if s.GetJob().GetParameterized() != nil {
			e.add("spec.job.parameterized", "is not for a job with every_node", "")
		}
		if ttl := s.GetJob().GetTtlAfterFinishedSeconds(); ttl != 0 {
			e.add("spec.job.ttl_after_finished_seconds", "is not for a job with every_node: its records say on which nodes it has run", strconv.FormatInt(ttl, 10))
		}
	}
	switch {
	case s.GetType() == TypeVM:
		e.add(field, "is for containers and Compose stacks: a virtual machine has an address and disks of its own", what)
	case s.Count != nil:
		e.add("spec.count", "is not for a workload on every node: constraints say on which nodes it runs", strconv.Itoa(int(s.GetCount())))
	}
	if s.GetExclusive() {
		e.add("spec.exclusive", "is not for a workload on every node: each member is bound to its node and never moves", "true")
	}
	if s.GetGroup() != "" && s.GetGroup() != id {
		e.addf("spec.group", s.GetGroup(), "must be empty or %q: the members form the group of that name", id)
	}
	for i, c := range s.GetConstraints() {
		if c.GetKey() == fsm.NodeIDLabel {
			e.add("spec.constraints["+strconv.Itoa(i)+"]", "is not for a workload on every node: name a label that the wanted nodes have", fsm.NodeIDLabel)
		}
	}
	if n := len(id); bounds.ValidID(id) && n > bounds.MaxTemplateID {
		e.addf("workload_id", id, "has %d characters, at most %d: the ids of the members are longer", n, bounds.MaxTemplateID)
	}
}

// systemUpdate returns the update strategy of a workload on every node. The members of a system workload are
// updated one by one unless the specification says otherwise, the members of a job all at once.
func systemUpdate(s *controlv1.WorkloadSpec) *commandv1.UpdatePolicy {
	if IsJob(s) {
		return nil
	}
	return updatePolicy(cmp.Or(s.GetUpdate(), &controlv1.UpdateStrategy{}))
}
