package spec

import (
	"os/exec"
	"strings"
	"testing"
)

// Clients import package spec, so it must not depend on packages of the server.
func TestImportsNoServer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	const project = "github.com/persys/compute/"
	for _, dep := range strings.Fields(string(out)) {
		for _, not := range []string{project + "agent", project + "cluster", project + "rpc", project + "sched", "github.com/hashicorp/raft"} {
			if dep == not || strings.HasPrefix(dep, not+"/") {
				t.Errorf("package spec must not import the server package %s, but does", dep)
			}
		}
	}
}
