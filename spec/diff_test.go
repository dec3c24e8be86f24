package spec

import (
	"slices"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
)

func TestDiffListsChangedFields(t *testing.T) {
	with := func(f func(*controlv1.WorkloadSpec)) *controlv1.WorkloadSpec {
		s := &controlv1.WorkloadSpec{Type: "container", Workload: &controlv1.WorkloadSpec_Container{Container: &controlv1.ContainerSpec{
			Image: "a:1", Command: []string{"run", "fast"}, Env: map[string]string{"A": "1"},
		}}}
		f(s)
		return s
	}
	base := with(func(*controlv1.WorkloadSpec) {})
	for _, c := range []struct {
		fact string
		to   *controlv1.WorkloadSpec
		want []Difference
	}{
		{"the same specification has no differences", with(func(*controlv1.WorkloadSpec) {}), nil},
		{"a changed, a new and a dropped field are listed in the order of their paths", with(func(s *controlv1.WorkloadSpec) {
			s.GetContainer().Image, s.GetContainer().Command, s.Priority = "a:2", []string{"run"}, 3
		}), []Difference{{"container.command[1]", "fast", ""}, {"container.image", "a:1", "a:2"}, {"priority", "", "3"}}},
		{"a redacted value in place of a plain one is shown as a difference", Redact(with(func(s *controlv1.WorkloadSpec) { s.GetContainer().Env["A"] = "2" })), []Difference{{"container.env.A", "1", "***"}}},
	} {
		if got := Diff(base, c.to); !slices.Equal(got, c.want) {
			t.Errorf("%s: Diff returns %v, want %v", c.fact, got, c.want)
		}
	}
	if got := len(Diff(nil, base)); got != 5 {
		t.Errorf("Diff with nil as one of the specifications returns %d differences, want all 5 fields", got)
	}
}
