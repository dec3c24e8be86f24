package spec

import (
	"testing"

	"github.com/persys/compute/agent/workload"
)

// FuzzParse reads the specification of a record, bare or under its name.
func FuzzParse(f *testing.F) {
	f.Add("container", []byte(`{"image":"x"}`))
	f.Add("compose", []byte(`{"spec":{"compose":{"compose_yaml":"x"}}}`))
	f.Add("vm", []byte(`{"VM":{"name":"x","disks":[{"size_gb":1}]}}`))
	f.Add("x", []byte(`null`))
	f.Add("", []byte(`{}`))
	f.Fuzz(func(t *testing.T, kind string, raw []byte) {
		spec, err := Parse(workload.Kind(kind), raw)
		if err == nil && spec.GetSpec() == nil {
			t.Fatalf("%q of type %q is nothing", raw, kind)
		}
	})
}
