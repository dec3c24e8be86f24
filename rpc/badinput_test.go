package rpc

import (
	"strings"
	"testing"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
)

// TestBadInputIsRefusedAtApply applies files with one mistake each. The error names the field, the broken rule and the
// value, and in some cases the command to run next. It also names the line, as persysctl shows it. The parser finds
// mistakes that are visible in the file itself; the scheduler refuses the other mistakes. Nothing is stored.
func TestBadInputIsRefusedAtApply(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	g.place("other", "a")
	before := g.puts()
	for _, c := range []struct {
		name, text string
		line       string   // position in the file
		want       []string // field, rule, value, next command
	}{
		{"a cron has a schedule that never fires", "id: w\nkind: cron\ncron:\n  schedule: 0 0 30 2 *\ncontainer: {image: a}\n",
			"w.yaml:4:", []string{"cron.schedule: ", "never fires: no such day exists", `got "0 0 30 2 *"`}},
		{"a cron has a schedule with four fields", "id: w\nkind: cron\ncron:\n  schedule: 0 0 30 2\ncontainer: {image: a}\n",
			"w.yaml:4:", []string{"cron.schedule: ", `got "0 0 30 2"`}},
		{"a cron names a time zone that does not exist", "id: w\nkind: cron\ncron:\n  schedule: '@daily'\n  time_zone: Mars/Olympus\ncontainer: {image: a}\n",
			"w.yaml:5:", []string{"cron.time_zone: ", "zone", `got "Mars/Olympus"`}},
		{"a job has a parallelism above its completions", "id: w\nkind: job\njob:\n  completions: 2\n  parallelism: 3\ncontainer: {image: a}\n",
			"w.yaml:5:", []string{"job.parallelism: must be at most completions, 2", `got "3"`}},
		{"a spread rule names a label that no node has", "id: w\ncount: 2\nspread:\n  - {by: rack, when: must}\ncontainer: {image: a}\n",
			"w.yaml:4:", []string{"spread[0].by: no node has this label", "persysctl node label NODE rack=VALUE", "when: prefer", `got "rack"`}},
		{"an affinity rule names a label that no node has", "id: w\naffinity:\n  - {workload: db, by: rack, when: must}\ncontainer: {image: a}\n",
			"w.yaml:3:", []string{"affinity[0].by: no node has this label", "persysctl node label NODE rack=VALUE", `got "rack"`}},
		{"a workload has an affinity rule about itself", "id: w\naffinity:\n  - {workload: w, when: must}\ncontainer: {image: a}\n",
			"w.yaml:3:", []string{"affinity[0].workload: is the workload itself: a rule is about other workloads", `got "w"`}},
		{"an affinity rule and an anti-affinity rule contradict each other", "id: w\ncount: 2\naffinity:\n  - {group: w, by: host, when: must}\nanti_affinity:\n  - {group: w, by: host, when: must}\ncontainer: {image: a}\n",
			"w.yaml:6:", []string{"anti_affinity[0]", "can never hold together with affinity[0]"}},
		{"a container in the network of the host publishes ports", "id: w\ncontainer:\n  image: a\n  network_mode: host\n  ports: ['80:80']\n",
			"w.yaml:5:", []string{"container.ports: has no effect with network_mode: host: remove one of them"}},
		{"a device has a path that is not absolute", "id: w\ncontainer:\n  image: a\n  devices: [dev/fuse]\n",
			"w.yaml:4:", []string{"container.devices[0]: must begin with an absolute path on the node", `got "dev/fuse:dev/fuse:rwm"`}},
		{"a workload reserves a kind of devices that no node offers", "id: w\ncontainer: {image: a}\nresources:\n  devices: {nvidia.com/gpu: 1}\n",
			"w.yaml:4:", []string{"resources.devices.nvidia.com/gpu: no node offers such devices", "PERSYS_NODE_DEVICES=nvidia.com/gpu=NUMBER", `got "1"`}},
		{"a container asks for GPUs, and no node offers GPUs", "id: w\ncontainer:\n  image: a\n  gpus: all\n",
			"w.yaml:4:", []string{"container.gpus[0]: no node offers GPUs; offered devices are: none", "PERSYS_NODE_DEVICES=nvidia.com/gpu=NUMBER"}},
		{"a container asks for a CDI device that no node offers", "id: w\ncontainer:\n  image: a\n  devices: [nvidia.com/gpu=0]\n",
			"w.yaml:4:", []string{"container.devices[0]: no node offers devices of this kind", `got "nvidia.com/gpu=0"`}},
		{"a service of a stack asks for GPUs, and no node offers GPUs", "id: w\ncompose:\n  inline: |\n    services:\n      web:\n        image: a\n        gpus: all\n",
			"w.yaml:7:", []string{"services.web.gpus[0]: no node offers GPUs"}},
		{"a workload reserves 0 devices", "id: w\ncontainer: {image: a}\nresources:\n  devices: {gpu: 0}\n",
			"w.yaml:4:", []string{"resources.devices.gpu: must be 1 to 4096 devices", `got "0"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said string
			docs, err := spec.Documents("w.yaml", []byte(c.text), spec.Options{})
			if err != nil {
				said = err.Error()
			} else {
				list := []*controlv1.ApplyWorkloadRequest{docs[0].Request}
				r, err := g.control(0).ApplyWorkload(t.Context(), list[0])
				if err != nil || r.GetSuccess() || r.GetFailureReason() != controlv1.FailureReason_INVALID_SPEC {
					t.Fatalf("the apply returned response %v and error %v; want a refusal of the specification", r, err)
				}
				said = docs[0].Locate(r.GetErrorMessage())
				plan, err := g.cluster(0).PlanWorkloads(t.Context(), &clusterv1.PlanWorkloadsRequest{Workloads: list})
				if err != nil || plan.GetWorkloads()[0].GetAction() != "refused" {
					t.Errorf("the plan is %v with error %v; want a refusal", plan, err)
				}
			}
			if !strings.Contains(said, c.line) {
				t.Errorf("the error does not begin with the position %q: %s", c.line, said)
			}
			for _, want := range c.want {
				if !strings.Contains(said, want) {
					t.Errorf("the error does not contain %q: %s", want, said)
				}
			}
		})
	}
	if n := g.puts(); n != before {
		t.Errorf("%d specifications were stored, want none", n-before)
	}
}
