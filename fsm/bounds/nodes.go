package bounds

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Limits of the labels and taints that people set on one node.
const (
	MaxNodeKeys            = 64 // maximum number of labels, and of taints
	MaxNamespaceNodeLabels = 16 // maximum number of labels that a namespace requires of its nodes
	maxLabelValue          = 255
	maxEvictionAge         = 365 * 24 * 3600 // maximum number of seconds in a NoExecute taint
)

// LabelKeyRule is the pattern of the keys of labels and taints.
const LabelKeyRule = "[A-Za-z0-9][A-Za-z0-9_./-]{0,127}"

// reservedLabels are the keys of labels that schedulers set themselves.
var reservedLabels = [...]string{"node.id", "scheduler_shard"}

// TaintEffects are the effects of taints.
var TaintEffects = [...]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// LabelNodeFault describes the first invalid field of a LabelNode command; "" if every field is valid.
func LabelNodeFault(b *commandv1.LabelNode) string {
	list := b.GetLabels()
	if fault := sizeFault("labels", len(list)); fault != "" {
		return fault
	}
	for i, l := range list {
		at := fmt.Sprintf("labels[%d]", i)
		if fault := labelFault(at, l.GetKey(), l.GetValue()); fault != "" {
			return fault
		}
		for _, key := range reservedLabels {
			if l.GetKey() == key {
				return fmt.Sprintf("%s.key: %q is set by the schedulers and cannot be changed", at, key)
			}
		}
		for _, m := range list[:i] {
			if m.GetKey() == l.GetKey() {
				return fmt.Sprintf("%s.key: %q is there twice", at, l.GetKey())
			}
		}
	}
	return ""
}

// TaintNodeFault describes the first invalid field of a TaintNode command; "" if every field is valid.
func TaintNodeFault(b *commandv1.TaintNode) string {
	list := b.GetTaints()
	if fault := sizeFault("taints", len(list)); fault != "" {
		return fault
	}
	for i, n := range list {
		at, t := fmt.Sprintf("taints[%d]", i), n.GetTaint()
		if fault := labelFault(at, t.GetKey(), t.GetValue()); fault != "" {
			return fault
		}
		if fault := TaintFault(t.GetEffect(), t.GetSeconds()); fault != "" && !n.GetRemoved() {
			return at + "." + fault
		}
		for _, m := range list[:i] {
			if m.GetTaint().GetKey() == t.GetKey() {
				return fmt.Sprintf("%s.key: %q is there twice", at, t.GetKey())
			}
		}
	}
	return ""
}

// TaintFault describes an invalid effect or number of seconds of a taint; "" if both are valid.
func TaintFault(effect string, seconds uint32) string {
	for _, e := range TaintEffects {
		switch {
		case e != effect:
		case effect != "NoExecute" && seconds > 0:
			return fmt.Sprintf("seconds: %d is only for the effect NoExecute, and the effect is %s", seconds, effect)
		case seconds > maxEvictionAge:
			return fmt.Sprintf("seconds: %d is above %d", seconds, maxEvictionAge)
		default:
			return ""
		}
	}
	return fmt.Sprintf("effect: %q is none of NoSchedule, PreferNoSchedule, NoExecute", effect)
}

func sizeFault(field string, n int) string {
	if n == 0 || n > MaxNodeKeys {
		return fmt.Sprintf("%s: has %d entries, must have 1 to %d", field, n, MaxNodeKeys)
	}
	return ""
}

// NodeLabelFault describes an invalid key or value of a node label to which another record refers, for example a
// policy; "" if both are valid. at is the name of the field for the message.
func NodeLabelFault(at, key, value string) string { return labelFault(at, key, value) }

func labelFault(at, key, value string) string {
	switch {
	case !validLabelKey(key):
		return fmt.Sprintf("%s.key: %q does not match %s", at, key, LabelKeyRule)
	case len(value) > maxLabelValue:
		return fmt.Sprintf("%s.value: has %d bytes, at most %d", at, len(value), maxLabelValue)
	case !printable(value):
		return fmt.Sprintf("%s.value: %q is no printable text", at, value)
	}
	return ""
}

func validLabelKey(key string) bool {
	if key == "" || len(key) > 128 {
		return false
	}
	for i := 0; i < len(key); i++ {
		switch c := key[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '/' || c == '-'):
		default:
			return false
		}
	}
	return true
}

func printable(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
