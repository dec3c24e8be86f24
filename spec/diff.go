package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Difference is a field that differs between two specifications, by its wire path. An unset side is
// empty.
type Difference struct{ Field, Before, After string }

// Diff compares two specifications field by field and returns the differences sorted by path. Nil
// is an empty specification. Redact both before showing the result to users; then differing secrets
// are not listed.
func Diff(before, after *controlv1.WorkloadSpec) []Difference {
	a, b := flat(before), flat(after)
	var out []Difference
	for field, v := range a {
		if b[field] != v {
			out = append(out, Difference{field, v, b[field]})
		}
	}
	for field, v := range b {
		if _, both := a[field]; !both {
			out = append(out, Difference{field, "", v})
		}
	}
	slices.SortFunc(out, func(x, y Difference) int { return cmp.Compare(x.Field, y.Field) })
	return out
}

// flat returns the path and text of each field that is set.
func flat(s *controlv1.WorkloadSpec) map[string]string {
	out := map[string]string{}
	if s == nil {
		return out
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(s)
	if err != nil {
		return out // invalid UTF-8 cannot have been stored
	}
	var tree any
	if json.Unmarshal(text, &tree) == nil {
		walk(out, "", tree)
	}
	return out
}

func walk(out map[string]string, at string, v any) {
	switch x := v.(type) {
	case map[string]any:
		for k, below := range x {
			path := k
			if at != "" {
				path = at + "." + k
			}
			walk(out, path, below)
		}
	case []any:
		for i, below := range x {
			walk(out, at+"["+strconv.Itoa(i)+"]", below)
		}
	default:
		out[at] = fmt.Sprint(x)
	}
}
