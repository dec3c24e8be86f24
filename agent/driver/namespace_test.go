package driver_test

import (
	"strings"
	"testing"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

func TestInstancesOfOtherNamespacesAreRefused(t *testing.T) {
	labels := func(workload, namespace string) map[string]string {
		out := map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: workload}
		if namespace != "" {
			out[driver.LabelNamespace] = namespace
		}
		return out
	}
	for _, c := range []struct {
		name      string
		namespace string
		labels    map[string]string
		claimed   bool
		refused   string
	}{
		{"a volume with the label of the workload's own namespace is accepted", "shop", labels("db", "shop"), false, ""},
		{"a volume of the default namespace is accepted for a workload without namespace", "", labels("db", "default"), false, ""},
		{"a volume of the default namespace is accepted for a workload that names this namespace", "default", labels("db", "default"), false, ""},
		{"a volume of another namespace is refused", "shop", labels("db", "bank"), false, `belongs to namespace "bank", not to "shop"`},
		{"an instance of namespace bank is refused for a workload of the default namespace", "", labels("db", "bank"), false, `"bank"`},
		{"an instance of the default namespace is refused for a workload of namespace shop", "shop", labels("db", "default"), false, `"default"`},
		{"a volume without namespace label, but with the workload's id, is accepted in namespace shop", "shop", labels("db", ""), false, ""},
		{"an instance of another workload without namespace label is refused in namespace shop", "shop", labels("other", ""), false, `"default"`},
		{"a volume of another workload without namespace label is accepted in the default namespace", "", labels("other", ""), false, ""},
		{"an instance of a legacy v1 agent is refused for a workload of namespace shop", "shop", labels("db", ""), true, `"default"`},
		{"a volume of a legacy v1 agent is accepted in the default namespace", "", labels("db", ""), true, ""},
		{"a volume of another workload of the same namespace is accepted", "shop", labels("other", "shop"), false, ""},
	} {
		spec := driver.Spec{ID: "db", Body: &agentv1.WorkloadSpec{Namespace: c.namespace}}
		err := driver.CheckNamespace(spec, "container db", c.labels, c.claimed)
		if (err != nil) != (c.refused != "") || err != nil && (!strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), "container db")) {
			t.Errorf("%s: CheckNamespace returned the error %v, want an error that contains %q, or none if that is empty", c.name, err, c.refused)
		}
		if got := driver.Labels(driver.Container, spec, nil)[driver.LabelNamespace]; got != c.namespace {
			t.Errorf("in the case %s the namespace label of a new instance is %q, want that of the spec", c.name, got)
		}
	}
}
