package spec

import (
	"testing"

	"github.com/persys/compute/agent/workload"
)

// FuzzParse checks that Parse returns a specification or an error for any bytes. A specification is stored
// alone, or in an object under the name of its type.
func FuzzParse(f *testing.F) {
	f.Add("container", []byte(`{"image":"x"}`))
	f.Add("compose", []byte(`{"spec":{"compose":{"compose_yaml":"x"}}}`))
	f.Add("vm", []byte(`{"VM":{"name":"x","disks":[{"size_gb":1}]}}`))
	f.Add("x", []byte(`null`))
	f.Add("", []byte(`{}`))
	f.Fuzz(func(t *testing.T, kind string, raw []byte) {
		spec, err := Parse(workload.Kind(kind), raw)
		if err == nil && spec.GetSpec() == nil {
			t.Fatalf("Parse of %q with type %q returned no specification and no error", raw, kind)
		}
	})
}
