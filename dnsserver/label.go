package dnsserver

import "github.com/persys/compute/fsm/bounds"

// Label converts the id of a workload, group, node or replica to a valid DNS label (docs/RULES.md, "Ids").
func Label(id string) string { return bounds.DNSLabel(id) }

// maxLabel is the longest DNS label, in bytes (RFC 1035, 2.3.4).
const maxLabel = 63

func isLabel(s string) bool { return bounds.IsDNSLabel(s) }
