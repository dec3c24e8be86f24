package spec

import (
	"strings"
	"testing"
)

// TestCountOfZero: an apply with `count: 0` must keep only the first member of the group, stopped, so that the
// specification is not lost. Without a count, the apply must make a single workload without a group.
func TestCountOfZero(t *testing.T) {
	for _, c := range []struct{ name, text, id, desired, group string }{
		{"a count of 0 keeps the first member, stopped", "id: web\ncount: 0", "web-0", "Stopped", "web"},
		{"a count of 0 with the desired state stopped keeps the first member, stopped", "id: web\ncount: 0\ndesired: stopped", "web-0", "Stopped", "web"},
		{"a count of 1 makes a group with one member", "id: web\ncount: 1", "web-0", "Running", "web"},
		{"no count", "id: web", "web", "Running", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Prepare(parseOne(t, strings.Replace(web, "id: web", c.text, 1)), fixedKey{})
			if err != nil {
				t.Fatal(err)
			}
			put := p.Command.GetPutWorkloads()
			if len(put.Workloads) != 1 || put.GroupOf != c.group {
				t.Fatalf("the command has %d workloads in group %q, want 1 in group %q", len(put.Workloads), put.GroupOf, c.group)
			}
			if w := put.Workloads[0]; w.Id != c.id || w.Desired != c.desired || w.Demand.Group != c.group {
				t.Errorf("the workload has id %s and desired state %s in group %q; want id %s and desired state %s in group %q", w.Id, w.Desired, w.Demand.Group, c.id, c.desired, c.group)
			}
		})
	}
}
