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

// Identity is whose instances a driver may list and touch.
type Identity struct {
	ClusterID string
	NodeID    string
	// Owns says whether our own store claims a workload. It decides over instances without node
	// label, made by an agent that knew only the first three labels. Nil claims nothing.
	Owns func(ID) bool
}

// Check refuses a spec that is not for us: what Ensure made of it would be nobody's.
func (id Identity) Check(spec Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.ClusterID != id.ClusterID {
		return Errorf(InvalidSpecification, "ensure", "cluster_id: must be ours, %q (got %q, workload %q)", id.ClusterID, spec.ClusterID, spec.ID)
	}
	if spec.NodeID != id.NodeID {
		return Errorf(InvalidSpecification, "ensure", "node_id: must be ours, %q (got %q, workload %q)", id.NodeID, spec.NodeID, spec.ID)
	}
	return nil
}

// Ownership of an instance, from its labels.
type Ownership int

// The cases. A Sibling belongs to another agent of our cluster on the same engine: it may hold
// the name we want, and we take another. A Stranger is anything else: it is never touched, and a
// name that it holds is an error.
const (
	Stranger Ownership = iota
	Sibling
	Ours
	Claimed
)

// Of judges an instance by its labels.
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

// Labels of an instance made for spec: the user's, then ours over them.
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

// FromLabels fills what labels say of an instance. A generation that cannot be read is zero: it
// then loses against any real one.
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
