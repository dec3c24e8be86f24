package rpc

import (
	"bytes"
	"strings"
	"testing"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
	stackfiles "github.com/persys/compute/stack/bundle"
)

// TestFilesOfAStack: the files beside a Compose file are stored with the revision of the stack, and a
// rollback restores them. If a file is not sent with the request, the stack is refused, and the error names
// the line of the Compose file.
func TestFilesOfAStack(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	c := g.control(0)
	const text = "services:\n  web:\n    image: a\n    env_file: web.env\n    volumes: [\"./site.conf:/site.conf:ro\"]\n"
	request := func(site string) *controlv1.ApplyWorkloadRequest {
		r := composeRequest("web", text)
		archive, err := stackfiles.Pack([]stackfiles.File{{Path: "site.conf", Data: []byte(site)}, {Path: "web.env", Data: []byte("A=c4nary\n")}})
		ok(t, err)
		r.Files, r.RequestId = archive, requestID(t)
		return r
	}
	bare := composeRequest("web", text)
	resp, err := c.ApplyWorkload(ctxFor(t), bare)
	ok(t, err)
	for _, want := range []string{`line 4: services.web.env_file: "web.env" is not in the stack's folder; apply the Compose file with persysctl from the folder`} {
		if resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), want) {
			t.Errorf("an apply of a stack without the files that its Compose file names returned %v, want a refusal because of the missing files", resp)
		}
	}
	mount := composeRequest("web", "services:\n  web:\n    image: a\n    volumes: [\"./site.conf:/site.conf\"]\n")
	resp, err = c.ApplyWorkload(ctxFor(t), mount)
	ok(t, err)
	if want := `line 4: services.web.volumes.0: "./site.conf" is not in the stack's folder`; resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), want) {
		t.Errorf("an apply with a mount of a file that was not sent returned %v, want a refusal that names the line of the Compose file", resp)
	}
	plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{request("one")}})
	ok(t, err)
	is(t, "planned", plan.GetWorkloads()[0].GetAction(), "create")

	for _, site := range []string{"one", "two"} {
		resp, err := c.ApplyWorkload(ctxFor(t), request(site))
		ok(t, err)
		is(t, "applied", resp.GetSuccess(), true)
	}
	plan, err = g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{request("three")}})
	ok(t, err)
	if got := plan.GetWorkloads()[0].GetChanges(); len(got) == 0 || !strings.Contains(changed(got), "compose.files[site.conf].digest:") || strings.Contains(changed(got), "web.env") {
		t.Errorf("the plan of a stack with another file shows %v, want that only the changed file differs", got)
	}
	is(t, "content of site.conf in the stored revision", siteOf(t, g), "two")
	got, err := c.GetWorkload(ctxFor(t), &controlv1.GetWorkloadRequest{WorkloadId: "web"})
	ok(t, err)
	if text := got.String(); !strings.Contains(text, "site.conf") || strings.Contains(text, "c4nary") {
		t.Errorf("GetWorkload shows %s, want the name of the file without its content", text)
	}
	_, err = g.cluster(0).RollBack(ctxFor(t), &clusterv1.RollBackRequest{WorkloadId: "web", RequestId: requestID(t)})
	ok(t, err)
	is(t, "content of site.conf after a rollback", siteOf(t, g), "one")
	_, err = c.DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: "web", RequestId: requestID(t)})
	ok(t, err)
	g.view().Bundles(func(b *fsm.Bundle) bool {
		t.Errorf("the files of a deleted stack must be dropped, but the state still has the bundle with digest %s", b.Digest)
		return true
	})
}

// siteOf returns the content of the file site.conf of workload web, as its node gets it.
func siteOf(t *testing.T, g *group) string {
	t.Helper()
	w, _ := g.view().Workload("web")
	b, there := g.view().Bundle(w.Bundle)
	if !there {
		t.Fatalf("the state must have the bundle %q, but does not", w.Bundle)
	}
	archive, err := spec.OpenFiles(b, sealer(g.replicas[0].server.cfg.Keys))
	ok(t, err)
	files, err := stackfiles.Unpack(archive)
	ok(t, err)
	for _, f := range files {
		if f.Path == "site.conf" {
			return string(f.Data)
		}
	}
	return ""
}

// TestFilesGoWithTheOrder: an agent gets the files of a stack in the order. A legacy v1 agent would start the
// stack without the files, so it gets no order.
func TestFilesGoWithTheOrder(t *testing.T) {
	for _, protocol := range []uint32{0, 1} {
		g := newGroup(t, 1, withStacks(stack.Options{}))
		f := g.agent(t, protocol)
		f.apply = func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
		}
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: "n", Endpoint: f.addr, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"compose"}, Protocol: protocol,
		}}})
		r := composeRequest("web", "services:\n  web:\n    image: a\n    env_file: web.env\n")
		archive, err := stackfiles.Pack([]stackfiles.File{{Path: "web.env", Data: []byte("A=1\n")}})
		ok(t, err)
		r.Files, r.Spec.GetCompose().MainFile = archive, "stack.yml"
		g.put(t, r, "n")
		w, _ := g.view().Workload("web")
		ack, err := g.replicas[0].server.agents.Deliver(ctxFor(t), epoch, sched.Order{Op: sched.OpApply, Node: "n", Workload: "web", Generation: w.Generation})
		ok(t, err)
		if protocol == 0 {
			if !ack.Refused || !strings.Contains(ack.Message, "legacy v1 agent, which cannot receive the files") || f.applied() != 0 {
				t.Errorf("the order to a legacy v1 agent returned %+v; the agent got %d orders; want a refusal and no order", ack, f.applied())
			}
			continue
		}
		c := f.applies[0].GetSpec().GetCompose()
		if !ack.Accepted || !bytes.Equal(c.GetFiles(), archive) || c.GetMainFile() != "stack.yml" {
			t.Errorf("the order has an archive of %d bytes for Compose file %q, want %d bytes", len(c.GetFiles()), c.GetMainFile(), len(archive))
		}
	}
}
