package service

import "strings"

// The prefixes of labels that users cannot set.
const (
	AgentLabels   = "persys."
	ComposeLabels = "com.docker.compose."
)

// ReservedLabel returns an error text for a label that only agents or Compose may set, and "" for any other
// label. Reserved labels say to which workload and namespace a container, network or volume of an engine
// belongs. If users could set them, a container of one workload could pass for a container of another
// workload or namespace.
func ReservedLabel(key string) string {
	switch {
	case strings.HasPrefix(key, AgentLabels):
		return "begins with " + AgentLabels + ", which is for the labels of the agents: remove it, or choose another name"
	case strings.HasPrefix(key, ComposeLabels):
		return "begins with " + ComposeLabels + ", which is for the labels of Compose: remove it, or choose another name"
	}
	return ""
}
