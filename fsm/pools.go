package fsm

import (
	"strings"

	"github.com/persys/compute/fsm/bounds"
)

// A namespace may name labels that nodes must carry to run its workloads: its node pool. See ADR 59.

// Label returns the value of a label of the node. Every node has NodeIDLabel.
func (n *Node) Label(key string) (value string, ok bool) {
	if key == NodeIDLabel {
		return n.ID, true
	}
	for _, l := range n.Labels() {
		if l.Key == key {
			return l.Value, true
		}
	}
	return "", false
}

// MissesLabel returns the first of the given labels that the node does not carry with this value.
func (n *Node) MissesLabel(labels []Label) (Label, bool) {
	for _, l := range labels {
		if v, ok := n.Label(l.Key); !ok || v != l.Value {
			return l, true
		}
	}
	return Label{}, false
}

// outside returns why node n is outside of the node pool of the workload's namespace; "" if it is in the pool.
func (t *Tx) outside(w *Workload, n *Node) string {
	of, ok := t.r.namespaces.Get(w.In())
	if !ok {
		return ""
	}
	if l, misses := n.MissesLabel(of.NodeLabels); misses {
		return "node " + quoted(n.ID) + " has no label " + l.Key + "=" + l.Value + ", which namespace " + quoted(of.Name) + " requires of its nodes"
	}
	return ""
}

// nodeLabelsFault returns an error text if n.NodeLabels, the labels that nodes must have to run
// workloads of the namespace, are invalid; "" if they are valid.
func (n *Namespace) nodeLabelsFault() string {
	if len(n.NodeLabels) > bounds.MaxNamespaceNodeLabels {
		return "node_labels: " + decimal(len(n.NodeLabels)) + " entries, at most " + decimal(bounds.MaxNamespaceNodeLabels)
	}
	for _, l := range n.NodeLabels {
		if fault := bounds.NodeLabelFault("node_labels", l.Key, l.Value); fault != "" {
			return fault
		}
	}
	return ""
}

func labelsText(list []Label) string {
	out := make([]string, len(list))
	for i, l := range list {
		out[i] = l.Key + "=" + l.Value
	}
	return strings.Join(out, ",")
}
