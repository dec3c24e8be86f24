package driver

import "github.com/persys/compute/stack/service"

// Labels that every instance carries (RULES.md "One engine, several agents" and contract/semantics.md section
// 12). Instances of legacy v1 agents carry only the first three.
const (
	LabelPrefix     = service.AgentLabels
	LabelManaged    = "persys.managed" // the value is always "true"
	LabelWorkload   = "persys.workload_id"
	LabelRevision   = "persys.revision_id"
	LabelCluster    = "persys.cluster_id"
	LabelNode       = "persys.node_id"
	LabelGeneration = "persys.generation"
	LabelContent    = "persys.content"
	LabelJob        = "persys.job" // true on the containers of jobs, whose last lines of output are reported
	LabelKind       = "persys.kind"
	LabelNamespace  = "persys.namespace" // namespace of the workload; instances and volumes made before this label existed lack it
)

// Labels of containers only.
const (
	// LabelDevices lists the CDI devices of a container, separated by commas. The docker driver uses it to find
	// containers with devices, and then reads the devices from their settings.
	LabelDevices = LabelPrefix + "devices"
	// LabelRestart is the restart policy that the Compose file gives the service. The policy of the container
	// in the engine can differ: the engine does not distinguish `no` from an absent policy, and containers of
	// exclusive stacks have no policy there.
	LabelRestart = LabelPrefix + "restart"
	// LabelAwaited marks the containers of services that another service waits for (service_completed_successfully),
	// because some versions of Compose write no labels about dependencies.
	LabelAwaited = LabelPrefix + "awaited"
	// LabelOptional lists the services, separated by commas, on which the service of a container depends with
	// required: false, because Compose does not write this into its label about dependencies.
	LabelOptional = LabelPrefix + "optional"
	// LabelHooks holds the post_start and pre_stop hooks of a container as JSON, sealed under the agent's key (Sealer).
	// It is part of the configuration that Compose compares, so that changed hooks replace the containers of a service.
	LabelHooks = LabelPrefix + "hooks"
	// LabelFiles has the digests of the files of a service's secrets and configs. Compose compares the labels of a
	// service, so a changed file replaces its containers. Agents do not read this label.
	LabelFiles = LabelPrefix + "files"
)

// Sealer encrypts the text of a label with the agent's key. So people who list containers cannot read secrets in the label,
// and only the agent itself can have written a label that Open accepts. *pki.Key implements Sealer.
type Sealer interface {
	// SealSame returns the same result for the same plaintext and context.
	SealSame(plaintext, context []byte) string
	Open(sealed string, context []byte) ([]byte, error)
}

// DefaultNamespace is the namespace of a workload without a namespace.
const DefaultNamespace = "default"

// CheckNamespace returns an error if the labels of an instance or volume name another namespace than spec.
// The parameter what describes the object in the error. An object with the workload's id but without a
// namespace label is accepted in any namespace, with one exception: if a legacy v1 agent made the object
// (claimed), it belongs to the default namespace, because such agents have no namespaces.
func CheckNamespace(spec Spec, what string, labels map[string]string, claimed bool) error {
	want := spec.Body.GetNamespace()
	have := labels[LabelNamespace]
	if have == "" && !claimed && labels[LabelWorkload] == string(spec.ID) || SameNamespace(have, want) {
		return nil
	}
	return Errorf(InvalidConfiguration, "ensure",
		"%s on this node belongs to namespace %q, not to %q: use another workload id, or let an admin remove it (persysctl drift, persysctl gc)", what, orDefault(have), orDefault(want))
}

// OtherNamespace reports whether the namespace label in labels is set and names a namespace other than the
// given one.
func OtherNamespace(labels map[string]string, namespace string) bool {
	have := labels[LabelNamespace]
	return have != "" && !SameNamespace(have, namespace)
}

// SameNamespace compares two namespaces; "" is the default one.
func SameNamespace(a, b string) bool { return orDefault(a) == orDefault(b) }

func orDefault(namespace string) string {
	if namespace == "" {
		return DefaultNamespace
	}
	return namespace
}

// Identity holds the ids of the agent's cluster and node. From these and the labels of an instance, it decides
// whether a driver may list and change the instance.
type Identity struct {
	ClusterID string
	NodeID    string
	// Owns reports whether the agent's store lists a workload. An instance without a node label, which a
	// legacy v1 agent made, belongs to this agent if Owns returns true for its workload. If Owns is nil, such
	// instances are treated as Foreign.
	Owns func(ID) bool
}

// Check returns an error if spec names another cluster or node than id, because the instance would then carry
// labels by which this agent does not find it.
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

// The kinds of owners. If a Sibling's instance has the name that a new instance should get, the driver uses another
// name. If a Foreign instance has the name, the driver returns an error. Drivers never change Foreign instances.
const (
	Foreign Ownership = iota // neither this agent nor another agent of our cluster
	Sibling                  // another agent of our cluster on the same engine
	Owned                    // this agent
	Claimed                  // a legacy v1 agent; this agent's store lists the workload (Identity.Owns)
)

// Of returns the owner of the instance that carries labels.
func (id Identity) Of(labels map[string]string) Ownership {
	workload := ID(labels[LabelWorkload])
	if labels[LabelManaged] != "true" || workload == "" {
		return Foreign
	}
	cluster, node := labels[LabelCluster], labels[LabelNode]
	switch {
	case cluster != "" && cluster != id.ClusterID:
		return Foreign
	case node == id.NodeID && cluster == id.ClusterID:
		return Owned
	case node == "":
		if id.Owns != nil && id.Owns(workload) {
			return Claimed
		}
		return Foreign
	case cluster == id.ClusterID:
		return Sibling
	}
	return Foreign
}

// Labels returns the labels of an instance for spec: the labels user, which the user chose, without reserved ones, and
// the labels of agents.
func Labels(kind Kind, spec Spec, user map[string]string) map[string]string {
	out := make(map[string]string, len(user)+len(spec.Labels)+8)
	for _, from := range []map[string]string{user, spec.Labels} {
		for k, v := range from {
			if service.ReservedLabel(k) == "" {
				out[k] = v
			}
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
	if spec.Body.GetJob() {
		out[LabelJob] = "true"
	}
	if in := spec.Body.GetNamespace(); in != "" {
		out[LabelNamespace] = in
	}
	return out
}

// ContainerLabels returns the labels of a container for spec: the labels that Labels returns, and with an
// empty value every other label that agents read from containers. A container inherits every label of its
// image that it does not set itself. Without the empty labels, the author of an image could choose the
// container's namespace, or its hooks. A container that is no part of a stack also gets empty labels of
// Compose: otherwise an image with such labels could make Compose treat the container as part of another
// workload's stack.
func ContainerLabels(kind Kind, spec Spec, user map[string]string) map[string]string {
	out := Labels(kind, spec, user)
	for k, v := range map[string]string{LabelNamespace: DefaultNamespace, LabelJob: "", LabelDevices: "", LabelRestart: "", LabelAwaited: "", LabelOptional: "", LabelHooks: ""} {
		if _, set := out[k]; !set {
			out[k] = v
		}
	}
	if kind != Compose {
		// The label config-hash is left out, because `docker compose ls` lists containers that have it.
		for _, name := range []string{"project", "service", "container-number", "oneoff"} {
			out[service.ComposeLabels+name] = ""
		}
	}
	return out
}

// FromLabels returns an Observed in which only those fields are set that an instance's labels contain. An
// unreadable generation becomes zero, which is lower than any real one.
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
