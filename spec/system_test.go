package spec

import (
	"strings"
	"testing"

	"github.com/persys/compute/fsm"
)

// TestSystemWorkloadsInFiles: a specification with kind: system, or of a job with every_node, must be stored as a
// template from which the scheduler makes one member for each node.
func TestSystemWorkloadsInFiles(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		maxParallel int32
	}{
		{"the members of a system workload are updated one by one", "kind: system\n", 1},
		{"a system workload with an update policy of its own", "kind: System\nupdate: {max_parallel: 3}\n", 3},
		{"a job may run on several nodes at a time", "kind: job\njob: {every_node: true, parallelism: 2}\n", 0},
		{"the members of a job on every node are updated at once", "kind: job\njob: {every_node: true}\n", 0},
	} {
		p, err := Prepare(parseOne(t, "id: log\ncontainer: {image: a}\n"+c.text), nil)
		if err != nil {
			t.Fatalf("%s: Prepare must accept the file, but returned %v", c.name, err)
		}
		put := p.Command.GetPutWorkloads()
		w := put.GetWorkloads()[0]
		if len(put.GetWorkloads()) != 1 || put.GetGroupOf() != "" || w.GetDemand().GetTemplate().GetKind() != fsm.TemplateSystem || put.GetUpdate().GetMaxParallel() != c.maxParallel {
			t.Errorf("%s: the command is %v, want a template with the update policy of the case", c.name, put)
		}
	}
}

// TestSystemFaults: a workload that runs on every node cannot have some settings, such as a count. They must be
// refused, and the error must name the line.
func TestSystemFaults(t *testing.T) {
	const head = "id: log\nkind: system\ncontainer: {image: a}\n"
	for _, c := range []struct{ text, want string }{
		{head + "count: 3\n", "t.yaml:4:8: count: is not for a workload on every node"},
		{head + "exclusive: true\n", "t.yaml:4:12: exclusive: is not for a workload on every node"},
		{head + "group: other\n", "group: must be empty or \"log\""},
		{head + "job: {retries: 1}\n", "job: is only for jobs"},
		{head + "constraints: [node.id=a]\n", "is not for a workload on every node: name a label"},
		{"id: log\nkind: system\nvm: {image: /a.qcow2, disks: [{size: 1Gi}]}\n", "is for containers and Compose stacks"},
		{"id: " + strings.Repeat("l", 113) + "\nkind: system\ncontainer: {image: a}\n", "has 113 characters, at most 112"},
		{"id: log\nkind: job\njob: {every_node: true, completions: 2}\ncontainer: {image: a}\n", "job.completions: is not for a job with every_node"},
		{"id: log\nkind: job\njob: {every_node: true, ttl_after_finished: 1h}\ncontainer: {image: a}\n", "is not for a job with every_node"},
		{"id: log\nkind: job\njob: {every_node: true}\nupdate: {max_parallel: 1}\ncontainer: {image: a}\n", "update: is for services"},
	} {
		if _, err := Parse("t.yaml", []byte(c.text), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse returned %v, want an error that contains %q, for the file\n%s", err, c.want, c.text)
		}
	}
}
