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
		{"a new group gets min members", "", nil, 2, "Running"},
		{"a new group with a count gets the count", "count: 4\n", nil, 4, "Running"},
		{"a group between min and max keeps its members", "", n(5), 5, "Running"},
		{"a group between min and max keeps its members, although the file has a count", "count: 4\n", n(5), 5, "Running"},
		{"a group above max gets max members", "", n(9), 6, "Running"},
		{"a group below min gets min members", "", n(1), 2, "Running"},
		{"a group that was scaled to 0 stays stopped", "count: 4\n", n(0), 1, "Stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := PrepareWith(parseOne(t, autoscaled+c.text), nil, Defaults{Members: c.present})
			if err != nil {
				t.Fatal(err)
			}
			put := p.Command.GetPutWorkloads()
			if len(put.GetWorkloads()) != c.want || put.GetWorkloads()[0].GetDesired() != c.desired {
				t.Errorf("the command has %d workloads with desired state %s, want %d with desired state %s", len(put.GetWorkloads()), put.GetWorkloads()[0].GetDesired(), c.want, c.desired)
			}
			present := 0
			if c.present != nil {
				present = *c.present
			}
			if put.IfMembers == nil || int(put.GetIfMembers()) != present {
				t.Errorf("the command has the condition %v on the number of members, want %d", put.IfMembers, present)
			}
			if a := put.GetWorkloads()[0].GetDemand().GetAutoscale(); a.GetMin() != 2 || a.GetMax() != 6 || a.GetCpu() != 70 {
				t.Errorf("the demand of the first member has the autoscaler settings %v, want those of the file: min 2, max 6, cpu 70", a)
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
		t.Error("another maximum of the autoscaler changes the content hash, want the same hash")
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
		t.Errorf("the demand of the stored specification is %v, want one with the autoscaler's max of 6", d)
	}
}

// TestAutoscaleFaults: invalid settings of the autoscaler are refused, and the error names the line.
func TestAutoscaleFaults(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an autoscaler with a min of 0", strings.Replace(autoscaled, "min: 2", "min: 0", 1), "file.yaml:2:18: autoscale.min: must be 1 to 1000"},
		{"an autoscaler without a min", strings.Replace(autoscaled, "min: 2, ", "", 1), "autoscale.min: must be 1 to 1000"},
		{"an autoscaler with a max above 1000", strings.Replace(autoscaled, "max: 6", "max: 1001", 1), "autoscale.max: must be 1 to 1000"},
		{"an autoscaler whose max is below its min", strings.Replace(autoscaled, "max: 6", "max: 1", 1), "autoscale.max: must be at least min, 2"},
		{"an autoscaler with a CPU target above 80 percent", strings.Replace(autoscaled, "cpu: 70", "cpu: 81", 1), "autoscale.cpu: must be 1 to 80: resources.cpu also limits the CPU use"},
		{"an autoscaler without a CPU target", strings.Replace(autoscaled, ", cpu: 70", "", 1), "autoscale.cpu: must be 1 to 80"},
		{"an autoscaler with a misspelt field", strings.Replace(autoscaled, "max: 6", "maximum: 6", 1), `unknown field "maximum"`},
		{"a count outside of the autoscaler's min and max", autoscaled + "count: 7\n", "file.yaml:5:8: count: must be between min and max of autoscale, 2 and 6"},
		{"a count of 0 with an autoscaler", autoscaled + "count: 0\n", "count: must be between min and max"},
		{"an autoscaler of a job", autoscaled + "kind: job\n", "autoscale: is for services"},
		{"an autoscaler of a system workload", autoscaled + "kind: system\n", "autoscale: is for services"},
		{"an autoscaler of a Compose stack", "id: web\nautoscale: {min: 2, max: 6, cpu: 70}\ncompose: {inline: 'services: {a: {image: b}}'}\n", "autoscale: is for containers"},
		{"an autoscaler of a workload with local data", strings.Replace(autoscaled, "image: a", "image: a, managed_volumes: [{name: d, path: /d, size: 1Gi}]", 1), "autoscale: is not for workloads with data that only their node keeps (volume d)"},
		{"an autoscaler of a workload that names another group", autoscaled + "group: other\n", "group: must be empty or"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("file.yaml", []byte(c.text), Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse returned error %v, want an error that contains %q", err, c.want)
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
		t.Errorf("PrepareWith with a CPU request from the policy's defaults returned error %v, want none", err)
	}
	_, err = PrepareWith(docs[0].Request, nil, Defaults{})
	if err == nil {
		t.Fatal("an autoscaler of a workload without a CPU request must be refused, but was accepted")
	}
	if got, want := docs[0].Locate(err.Error()), "file.yaml:2:13: autoscale: needs resources.cpu"; !strings.Contains(got, want) {
		t.Errorf("the error for an autoscaler without a CPU request is %q, want one that contains %q", got, want)
	}
}

// TestAutoscaleMaxFitsOneCommand: an autoscaler may grow a group to max members. The specification must be refused if
// a command with so many members would exceed the size limit.
func TestAutoscaleMaxFitsOneCommand(t *testing.T) {
	large := "id: web\nautoscale: {min: 2, max: 6, cpu: 70}\nresources: {cpu: 500m}\ncontainer: {image: a, command: [" + strings.Repeat("a", 100_000) + ", " + strings.Repeat("b", 100_000) + "]}\n"
	_, err := Prepare(parseOne(t, large), nil)
	if err == nil || !strings.Contains(err.Error(), "spec.autoscale.max: makes a command of") {
		t.Errorf("an autoscaler with a max of 6 members of 200,000 bytes each returned %.200v, want an error", err)
	}
	if _, err := Prepare(parseOne(t, strings.Replace(large, "max: 6", "max: 4", 1)), nil); err != nil {
		t.Errorf("an autoscaler with a max of 4 members of 200,000 bytes each must be accepted, but was refused: %v", err)
	}
}
