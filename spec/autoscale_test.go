package spec

import (
	"strings"
	"testing"

	controlv1 "github.com/persys/compute/api/control/v1"
)

const autoscaled = "id: web\nautoscale: {min: 2, max: 6, cpu: 70}\nresources: {cpu: 500m}\ncontainer: {image: a}\n"

// TestAutoscaleInFiles: a new group gets the count in the file, or min if the file has none. An existing group keeps
// its number of members within min and max, and a group that was scaled to 0 stays stopped.
func TestAutoscaleInFiles(t *testing.T) {
	n := func(n int) *int { return &n }
	for _, c := range []struct {
		name, text string
		present    *int
		want       int
		desired    string
	}{
		{"a new group", "", nil, 2, "Running"},
		{"a new group with a count", "count: 4\n", nil, 4, "Running"},
		{"a group in the limits", "", n(5), 5, "Running"},
		{"a group in the limits with a count", "count: 4\n", n(5), 5, "Running"},
		{"a group above max", "", n(9), 6, "Running"},
		{"a group below min", "", n(1), 2, "Running"},
		{"a stopped group", "count: 4\n", n(0), 1, "Stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := PrepareWith(parseOne(t, autoscaled+c.text), nil, Defaults{Members: c.present})
			if err != nil {
				t.Fatal(err)
			}
			put := p.Command.GetPutWorkloads()
			if len(put.GetWorkloads()) != c.want || put.GetWorkloads()[0].GetDesired() != c.desired {
				t.Errorf("the command has %d workloads, desired %s, want %d, %s", len(put.GetWorkloads()), put.GetWorkloads()[0].GetDesired(), c.want, c.desired)
			}
			present := 0
			if c.present != nil {
				present = *c.present
			}
			if put.IfMembers == nil || int(put.GetIfMembers()) != present {
				t.Errorf("the command has the condition %v on the number of members, want %d", put.IfMembers, present)
			}
			if a := put.GetWorkloads()[0].GetDemand().GetAutoscale(); a.GetMin() != 2 || a.GetMax() != 6 || a.GetCpu() != 70 {
				t.Errorf("the demand has the autoscaler %v, want that of the file", a)
			}
		})
	}
}

// TestAutoscaleIsNoContent: a user changes only the settings of the autoscaler. The content hash must stay the same,
// so that no member is recreated. The stored specification of each member must contain the new settings, because later
// members are copied from it.
func TestAutoscaleIsNoContent(t *testing.T) {
	content := func(text string) string {
		p, err := Prepare(parseOne(t, text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p.Content
	}
	if content(autoscaled) != content(strings.Replace(autoscaled, "max: 6", "max: 7", 1)) {
		t.Error("other limits of the autoscaler change the content")
	}
	p, err := Prepare(parseOne(t, autoscaled), nil)
	if err != nil {
		t.Fatal(err)
	}
	stored := &controlv1.WorkloadSpec{}
	if err := stored.UnmarshalVT(p.Command.GetPutWorkloads().GetWorkloads()[0].GetSpec()); err != nil {
		t.Fatal(err)
	}
	if d := DemandOf("web-0", stored); d.GetAutoscale().GetMax() != 6 {
		t.Errorf("the demand of the stored specification is %v, want one with the limits", d)
	}
}

// TestAutoscaleFaults: invalid settings of the autoscaler are refused, and the error names the line.
func TestAutoscaleFaults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"min of 0", strings.Replace(autoscaled, "min: 2", "min: 0", 1), "file.yaml:2:18: autoscale.min: must be 1 to 1000"},
		{"no min", strings.Replace(autoscaled, "min: 2, ", "", 1), "autoscale.min: must be 1 to 1000"},
		{"max above the limit", strings.Replace(autoscaled, "max: 6", "max: 1001", 1), "autoscale.max: must be 1 to 1000"},
		{"max below min", strings.Replace(autoscaled, "max: 6", "max: 1", 1), "autoscale.max: must be at least min, 2"},
		{"cpu above 80", strings.Replace(autoscaled, "cpu: 70", "cpu: 81", 1), "autoscale.cpu: must be 1 to 80: resources.cpu also limits the CPU use"},
		{"no cpu", strings.Replace(autoscaled, ", cpu: 70", "", 1), "autoscale.cpu: must be 1 to 80"},
		{"a misspelt field", strings.Replace(autoscaled, "max: 6", "maximum: 6", 1), `unknown field "maximum"`},
		{"a count outside of the limits", autoscaled + "count: 7\n", "file.yaml:5:8: count: must be between min and max of autoscale, 2 and 6"},
		{"a count of 0", autoscaled + "count: 0\n", "count: must be between min and max"},
		{"a job", autoscaled + "kind: job\n", "autoscale: is for services"},
		{"a system workload", autoscaled + "kind: system\n", "autoscale: is for services"},
		{"a stack", "id: web\nautoscale: {min: 2, max: 6, cpu: 70}\ncompose: {inline: 'services: {a: {image: b}}'}\n", "autoscale: is for containers"},
		{"local data", strings.Replace(autoscaled, "image: a", "image: a, managed_volumes: [{name: d, path: /d, size: 1Gi}]", 1), "autoscale: is not for workloads with data that only their node keeps (volume d)"},
		{"another group", autoscaled + "group: other\n", "group: must be empty or"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("file.yaml", []byte(c.text), Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestAutoscaleNeedsCPU: an autoscaler without a CPU request is refused, because use is measured in percent of
// the request. A request that a policy sets by default is enough.
func TestAutoscaleNeedsCPU(t *testing.T) {
	docs, err := Documents("file.yaml", []byte(strings.Replace(autoscaled, "resources: {cpu: 500m}\n", "", 1)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := PrepareWith(docs[0].Request, nil, Defaults{CPU: 100}); err != nil {
		t.Errorf("with a CPU request from the policy's defaults the error is %v, want none", err)
	}
	_, err = PrepareWith(docs[0].Request, nil, Defaults{})
	if err == nil {
		t.Fatal("a workload without a CPU request is accepted")
	}
	if got, want := docs[0].Locate(err.Error()), "file.yaml:2:13: autoscale: needs resources.cpu"; !strings.Contains(got, want) {
		t.Errorf("the error is %q, want one with %q", got, want)
	}
}

// TestAutoscaleMaxFitsOneCommand: an autoscaler may grow a group to max members. The specification must be refused if
// a command with so many members would exceed the size limit.
func TestAutoscaleMaxFitsOneCommand(t *testing.T) {
	large := "id: web\nautoscale: {min: 2, max: 6, cpu: 70}\nresources: {cpu: 500m}\ncontainer: {image: a, command: [" + strings.Repeat("a", 100_000) + ", " + strings.Repeat("b", 100_000) + "]}\n"
	_, err := Prepare(parseOne(t, large), nil)
	if err == nil || !strings.Contains(err.Error(), "spec.autoscale.max: makes a command of") {
		t.Errorf("a max of 6 members of 200,000 bytes each returned %.200v, want an error", err)
	}
	if _, err := Prepare(parseOne(t, strings.Replace(large, "max: 6", "max: 4", 1)), nil); err != nil {
		t.Errorf("a max of 4 members is refused: %v", err)
	}
}
