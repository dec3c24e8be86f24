package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Difference is a field that differs between two specifications. Field is its path in the API. Before and
// After are its texts; "" if the field is not set.
type Difference struct{ Field, Before, After string }

// Diff compares two specifications field by field and returns the differences sorted by path. nil stands for
// an empty specification. Redact both specifications before the result is shown to users; secrets that differ
// are then not listed.
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

// flat returns a map from the path of each field that is set to the text of its value.
func flat(s *controlv1.WorkloadSpec) map[string]string {
	out := map[string]string{}
	if s == nil {
		return out
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(s)
	if err != nil {
		return out // no error is possible: only invalid UTF-8 causes one, and a stored specification has none
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
			key := strconv.Itoa(i)
			if file, ok := below.(map[string]any); ok && strings.HasSuffix(at, "compose.files") {
				key = fmt.Sprint(file["path"]) // name a file by its path and not by its index, so that an added file does not change the names of the following files
				delete(file, "path")
			}
			walk(out, at+"["+key+"]", below)
		}
	default:
		out[at] = fmt.Sprint(x)
	}
}
