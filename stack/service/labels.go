package service

import "strings"

// The prefixes of labels that users cannot set.
const (
	AgentLabels   = "persys."
	ComposeLabels = "com.docker.compose."
)

// ReservedLabel returns an error text if only agents or Compose may set a label, because it says to whom an object on an
// engine belongs; "" if users may set it. If the author of a specification could set such a label, an object could pass
// for one of another workload or namespace.
func ReservedLabel(key string) string {
	switch {
	case strings.HasPrefix(key, AgentLabels):
		return "begins with " + AgentLabels + ", which is for the labels of the agents: remove it, or choose another name"
	case strings.HasPrefix(key, ComposeLabels):
		return "begins with " + ComposeLabels + ", which is for the labels of Compose: remove it, or choose another name"
	}
	return ""
}
