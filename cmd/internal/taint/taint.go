// Package taint parses and formats node taints in the form key[=value]:effect[:seconds].
package taint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// NoExecute is the only effect whose taint can have a time limit in seconds, after which workloads must leave the node.
const NoExecute = "NoExecute"

// Effects of taints.
var effects = [...]string{"NoSchedule", "PreferNoSchedule", NoExecute}

// Parse parses one taint. The effect may be in upper or lower case.
func Parse(text string) (*controlv1.Taint, error) {
	parts := strings.Split(strings.TrimSpace(text), ":")
	if len(parts) < 2 || len(parts) > 3 {
		return nil, fmt.Errorf("taint %q must be key=value:%s, with :seconds after %s", text, strings.Join(effects[:], "|"), NoExecute)
	}
	t := &controlv1.Taint{}
	t.Key, t.Value, _ = strings.Cut(parts[0], "=")
	if t.Key == "" {
		return nil, fmt.Errorf("taint %q has no key", text)
	}
	i := slices.IndexFunc(effects[:], func(e string) bool { return strings.EqualFold(e, parts[1]) })
	if i < 0 {
		return nil, fmt.Errorf("taint %q: the effect %q must be one of %s", text, parts[1], strings.Join(effects[:], ", "))
	}
	t.Effect = effects[i]
	if len(parts) == 2 {
		return t, nil
	}
	seconds, err := strconv.ParseUint(parts[2], 10, 32)
	if err != nil || t.Effect != NoExecute {
		return nil, fmt.Errorf("taint %q: %q must be a whole number of seconds, and only %s has one", text, parts[2], NoExecute)
	}
	t.Seconds = uint32(seconds)
	return t, nil
}

// Text formats a taint so that Parse can read it.
func Text(t *controlv1.Taint) string {
	s := t.GetKey()
	if t.GetValue() != "" {
		s += "=" + t.GetValue()
	}
	s += ":" + t.GetEffect()
	if t.GetSeconds() > 0 {
		s += ":" + strconv.FormatUint(uint64(t.GetSeconds()), 10)
	}
	return s
}
