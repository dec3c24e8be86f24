package driver

// Labels that every instance of ours carries (RULES.md "One engine, several agents" and
// contract/semantics.md section 12). The first three are those of legacy v1 agents.
const (
	LabelPrefix     = "persys."
	LabelManaged    = "persys.managed" // "true"
	LabelWorkload   = "persys.workload_id"
	LabelRevision   = "persys.revision_id"
	LabelCluster    = "persys.cluster_id"
	LabelNode       = "persys.node_id"
	LabelGeneration = "persys.generation"
	LabelContent    = "persys.content"
	LabelKind       = "persys.kind"
)

// Identity selects the instances that a driver may list and touch.
type Identity struct {
	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store claims a workload. It decides for instances without a
	// node label, which legacy v1 agents made. Nil claims nothing.
	Owns func(ID) bool
}

// Check refuses a spec of another cluster or node, whose instance no agent would own.
func (id Identity) Check(spec Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.ClusterID != id.ClusterID {
		return Errorf(InvalidSpecification, "ensure", "cluster_id: must be this agent's cluster, %q (got %q, workload %q)", id.ClusterID, spec.ClusterID, spec.ID)
	}
	if spec.NodeID != id.NodeID {
		return Errorf(InvalidSpecification, "ensure", "node_id: must be this agent's node, %q (got %q, workload %q)", id.NodeID, spec.NodeID, spec.ID)
	}
	return nil
}

// Ownership is the owner of an instance, derived from its labels.
type Ownership int

// The owners. A Sibling belongs to another agent of our cluster on the same engine; it may hold the
// name that we want, and then we use another name. Everything else is a Stranger: it is never
// touched, and if it holds a name that we need, that is an error.
const (
	Stranger Ownership = iota
	Sibling
	Ours
	Claimed
)

// Of returns the owner of an instance from its labels.
func (id Identity) Of(labels map[string]string) Ownership {
	workload := ID(labels[LabelWorkload])
	if labels[LabelManaged] != "true" || workload == "" {
		return Stranger
	}
	cluster, node := labels[LabelCluster], labels[LabelNode]
	switch {
	case cluster != "" && cluster != id.ClusterID:
		return Stranger
	case node == id.NodeID && cluster == id.ClusterID:
		return Ours
	case node == "":
		if id.Owns != nil && id.Owns(workload) {
			return Claimed
		}
		return Stranger
	case cluster == id.ClusterID:
		return Sibling
	}
	return Stranger
}

// Labels returns the labels of an instance for spec. Our labels override the user's.
func Labels(kind Kind, spec Spec, user map[string]string) map[string]string {
	out := make(map[string]string, len(user)+len(spec.Labels)+8)
	for _, from := range []map[string]string{user, spec.Labels} {
		for k, v := range from {
			if len(k) >= len(LabelPrefix) && k[:len(LabelPrefix)] == LabelPrefix {
				continue
			}
			out[k] = v
		}
	}
	out[LabelManaged] = "true"
	out[LabelWorkload] = string(spec.ID)
	out[LabelRevision] = spec.Revision
	out[LabelCluster] = spec.ClusterID
	out[LabelNode] = spec.NodeID
	out[LabelGeneration] = spec.Generation.String()
	out[LabelContent] = spec.Content
	out[LabelKind] = string(kind)
	return out
}

// FromLabels fills an Observed from an instance's labels. An unreadable generation becomes zero,
// which loses against any real one.
func FromLabels(labels map[string]string) Observed {
	generation, err := ParseGeneration(labels[LabelGeneration])
	if err != nil {
		generation = Generation{}
	}
	return Observed{
		ID:         ID(labels[LabelWorkload]),
		Revision:   labels[LabelRevision],
		Content:    labels[LabelContent],
		Generation: generation,
		ClusterID:  labels[LabelCluster],
		NodeID:     labels[LabelNode],
		Labels:     labels,
	}
}
