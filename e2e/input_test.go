package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestBadInput: bad input over gRPC and persysctl is refused as the legacy contract defines: with a status
// code, or with an error in the body of the answer. The error names the field, and no workload is stored.
func TestBadInput(t *testing.T) {
	c := sharedCluster(t)
	cc := got[*grpc.ClientConn](t)(c.Pinned(follower(t, c))) // connect to a replica that forwards calls to the leader
	control := controlv1.NewAgentControlClient(cc)

	with := func(change func(*controlv1.WorkloadSpec)) *controlv1.WorkloadSpec {
		s := container("persys/any:1")
		change(s)
		return s
	}
	long := strings.Repeat("a", 129)
	for _, c := range []struct {
		name string
		id   string
		spec *controlv1.WorkloadSpec
		want []string // texts that the error message in the answer must contain
	}{
		{"an id with a slash", "a/b", container("x:1"), []string{"a/b"}},
		{"an id with a space", "a b", container("x:1"), []string{"a b"}},
		{"an id that is too long", long, container("x:1"), []string{"workload_id", "127"}},
		{"an id that begins with a dot", ".a", container("x:1"), []string{".a"}},
		{"an empty spec", "bad", &controlv1.WorkloadSpec{}, []string{"spec", "container"}},
		{"an unknown type", "bad", with(func(s *controlv1.WorkloadSpec) { s.Type = "pod" }), []string{"type", "pod"}},
		{"a type without its body", "bad", &controlv1.WorkloadSpec{Type: "vm"}, []string{"vm"}},
		{"no image", "bad", container(""), []string{"image"}},
		{"negative CPU", "bad", with(func(s *controlv1.WorkloadSpec) { s.Resources.CpuMillicores = -1 }), []string{"cpu", "-1"}},
		{"negative memory", "bad", with(func(s *controlv1.WorkloadSpec) { s.Resources.MemoryMb = -5 }), []string{"memory", "-5"}},
		{"negative disk", "bad", with(func(s *controlv1.WorkloadSpec) { s.Resources.DiskGb = -7 }), []string{"disk", "-7"}},
		{"impossible CPU", "bad", with(func(s *controlv1.WorkloadSpec) { s.Resources.CpuMillicores = 1 << 62 }), []string{"cpu"}},
		{"impossible memory", "bad", with(func(s *controlv1.WorkloadSpec) { s.Resources.MemoryMb = 1 << 62 }), []string{"memory"}},
		{"a port twice", "bad", with(func(s *controlv1.WorkloadSpec) {
			s.GetContainer().Ports = []*controlv1.Port{{HostPort: 8080, ContainerPort: 80}, {HostPort: 8080, ContainerPort: 81}}
		}), []string{"port", "8080"}},
		{"an invalid port", "bad", with(func(s *controlv1.WorkloadSpec) {
			s.GetContainer().Ports = []*controlv1.Port{{HostPort: 70000, ContainerPort: 80}}
		}), []string{"port", "70000"}},
		{"an unknown restart policy", "bad", with(func(s *controlv1.WorkloadSpec) { s.GetContainer().RestartPolicy = "maybe" }), []string{"maybe"}},
		{"a negative count", "bad", with(func(s *controlv1.WorkloadSpec) { s.Count = new(int32(-1)) }), []string{"count", "-1"}},
		{"an unknown operator", "bad", with(func(s *controlv1.WorkloadSpec) {
			s.Constraints = []*controlv1.Constraint{{Key: "zone", Operator: "~", Values: []string{"a"}}}
		}), []string{"~"}},
		{"an unknown value of on_lost_lease", "bad", with(func(s *controlv1.WorkloadSpec) { s.Exclusive, s.OnLostLease = true, "explode" }), []string{"on_lost_lease", "explode"}},
		{"a redacted secret", "bad", with(func(s *controlv1.WorkloadSpec) { s.GetContainer().Env = map[string]string{"TOKEN": "***"} }), []string{"TOKEN"}},
		{"a spec over the limit", "bad", pad(600), []string{"spec", "524288"}},
	} {
		t.Run("apply/"+c.name, func(t *testing.T) {
			resp, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: c.id, Spec: c.spec})
			must(t, err)
			if resp.GetSuccess() || resp.GetFailureReason() != controlv1.FailureReason_INVALID_SPEC {
				t.Errorf("success %t, reason %s, want INVALID_SPEC: %s", resp.GetSuccess(), resp.GetFailureReason(), resp.GetErrorMessage())
			}
			for _, w := range c.want {
				if !strings.Contains(strings.ToLower(resp.GetErrorMessage()), strings.ToLower(w)) {
					t.Errorf("the message does not name %q: %.300s", w, resp.GetErrorMessage())
				}
			}
		})
	}

	ctx := t.Context()
	call := func(f func() error) func() error { return f }
	for _, c := range []struct {
		name string
		do   func() error
		code codes.Code
		want string
	}{
		{"apply without id", call(func() error {
			_, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: " ", Spec: container("x:1")})
			return err
		}), codes.InvalidArgument, "workload_id"},
		{"apply with a request id that is not a UUID", call(func() error {
			_, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: "bad", Spec: container("x:1"), RequestId: "42"})
			return err
		}), codes.InvalidArgument, "request_id"},
		{"a body over the limit", call(func() error {
			_, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: "bad", Spec: pad(9 << 10)})
			return err
		}), codes.ResourceExhausted, "8388608"},
		{"a body that is no message", call(func() error {
			var raw rawMessage = []byte{0xff, 0xff, 0xff}
			return cc.Invoke(ctx, controlv1.AgentControl_ApplyWorkload_FullMethodName, &raw, &raw, grpc.ForceCodec(rawCodec{}))
		}), codes.Internal, ""},
		{"delete without id", call(func() error {
			_, err := control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{})
			return err
		}), codes.InvalidArgument, "workload_id"},
		{"retry without id", call(func() error {
			_, err := control.RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{})
			return err
		}), codes.InvalidArgument, "workload_id"},
		{"get without id", call(func() error {
			_, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{})
			return err
		}), codes.InvalidArgument, "workload_id"},
		{"get of an unknown workload", call(func() error {
			_, err := control.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "nothing"})
			return err
		}), codes.NotFound, "nothing"},
		{"get of an unknown node", call(func() error {
			_, err := control.GetNode(ctx, &controlv1.GetNodeRequest{NodeId: "nowhere"})
			return err
		}), codes.NotFound, "nowhere"},
		{"a negative page size", call(func() error {
			_, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{PageSize: -1})
			return err
		}), codes.InvalidArgument, "page_size"},
		{"register without id", call(func() error {
			_, err := control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{GrpcEndpoint: "127.0.0.1:1"})
			return err
		}), codes.InvalidArgument, "node_id"},
		{"a registration with an invalid endpoint", call(func() error {
			_, err := control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{NodeId: "n", GrpcEndpoint: "127.0.0.1:http", Capabilities: capable(1000, 1000)})
			return err
		}), codes.InvalidArgument, "grpc_endpoint"},
		{"register without endpoint", call(func() error {
			_, err := control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{NodeId: "n"})
			return err
		}), codes.InvalidArgument, "grpc_endpoint"},
		{"heartbeat without id", call(func() error {
			_, err := control.Heartbeat(ctx, &controlv1.HeartbeatRequest{})
			return err
		}), codes.InvalidArgument, "node_id"},
		{"heartbeat of an unknown node", call(func() error {
			_, err := control.Heartbeat(ctx, &controlv1.HeartbeatRequest{NodeId: "nowhere"})
			return err
		}), codes.NotFound, "nowhere"},
		{"an automation suggestion without content", call(func() error {
			_, err := control.SubmitAutomationSuggestion(ctx, &controlv1.SubmitAutomationSuggestionRequest{})
			return err
		}), codes.InvalidArgument, "suggestion"},
	} {
		t.Run("code/"+c.name, func(t *testing.T) {
			err := c.do()
			if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) {
				t.Errorf("the call returned %v, want code %s and a message with %q", err, c.code, c.want)
			}
		})
	}

	t.Run("error in the answer/deletion of an unknown workload", func(t *testing.T) {
		resp, err := control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: "nothing"})
		if err != nil || resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), "nothing") {
			t.Errorf("the answer is %v, error %v; want an error in the answer that names the workload", resp, err)
		}
	})
	t.Run("error in the answer/start of an unknown workload", func(t *testing.T) {
		resp, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: "nothing", DesiredState: "Running"})
		if err != nil || resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), "nothing") {
			t.Errorf("the answer is %v, error %v; want an error in the answer that names the workload", resp, err)
		}
	})
	for _, n := range []struct {
		name, id string
		cpu, mem int64
		want     string
	}{
		{"a node with a slash in its id", "a/b", 1000, 1000, "a/b"},
		{"a node with negative CPU", "n", -1, 1000, "cpu"},
		{"a node with absurd CPU", "n", 1 << 62, 1000, "cpu"},
		{"a node with absurd memory", "n", 1000, 1 << 62, "memory"},
	} {
		t.Run("error in the answer/"+n.name, func(t *testing.T) {
			resp, err := control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{NodeId: n.id, GrpcEndpoint: "127.0.0.1:1", Capabilities: capable(n.cpu, n.mem)})
			if err != nil || resp.GetAccepted() || !strings.Contains(resp.GetReason(), n.want) {
				t.Errorf("RegisterNode returned %v, %v, want a refusal that names %s", resp, err, n.want)
			}
		})
	}
	for _, id := range []string{"a/b", "..", strings.Repeat("x", 300), "\x00"} {
		t.Run(fmt.Sprintf("error in the answer/delete and retry of %.10q", id), func(t *testing.T) {
			del, err := control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: id})
			if err != nil || del.GetSuccess() || del.GetErrorMessage() == "" {
				t.Errorf("the delete returned %v, %v, want a refusal", del, err)
			}
			again, err := control.RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: id})
			if err != nil || again.GetAccepted() || again.GetReason() == "" {
				t.Errorf("the retry returned %v, %v, want a refusal", again, err)
			}
		})
	}
	t.Run("error in the answer/a node without memory", func(t *testing.T) {
		resp, err := control.RegisterNode(ctx, &controlv1.RegisterNodeRequest{
			NodeId: "n", GrpcEndpoint: "127.0.0.1:1", Capabilities: &controlv1.NodeCapabilities{CpuTotalMillicores: 1000},
		})
		if err != nil || resp.GetAccepted() || !strings.Contains(resp.GetReason(), "memory") {
			t.Errorf("the answer is %v, error %v; want a refusal that names the memory", resp, err)
		}
	})
	t.Run("in the answer: one bad workload of many does not affect the others", func(t *testing.T) {
		admin := clusterv1.NewClusterClient(cc)
		resp, err := admin.ApplyWorkloads(ctx, &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{
			{WorkloadId: "fine", Spec: contentSpec("fine")}, {WorkloadId: "bad", Spec: container("")},
		}})
		must(t, err)
		if r := resp.GetResults(); len(r) != 2 || !r[0].GetSuccess() || r[1].GetSuccess() {
			t.Errorf("the result of one of the workloads is %v", r)
		}
		del, err := control.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: "fine", Force: true})
		if err != nil || !del.GetSuccess() {
			t.Errorf("the delete returned %v, %v, want success", del, err)
		}
	})

	for _, y := range []struct {
		name, text string
		want       []string
	}{
		{"an unknown field", "id: bad\ncontainer:\n  image: x:1\n  comand: [a]\n", []string{"comand", "command", "4"}},
		{"an invalid quantity", "id: bad\nresources: {cpu: lots}\ncontainer: {image: 'x:1'}\n", []string{"cpu", "lots"}},
		{"text that is not YAML", "id: [\n", []string{"bad.yaml"}},
		{"an id twice", "id: bad\ncontainer: {image: 'x:1'}\n---\nid: bad\ncontainer: {image: 'x:1'}\n", []string{"bad"}},
	} {
		t.Run("persysctl/"+y.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad.yaml")
			must(t, os.WriteFile(file, []byte(y.text), 0o600))
			res, err := c.Ctl(ctx, "apply", "-f", file)
			must(t, err)
			if res.Code == 0 {
				t.Errorf("persysctl accepted the bad file, want a refusal: %s", res.Stdout)
			}
			for _, w := range y.want {
				if !strings.Contains(res.Stderr, w) {
					t.Errorf("the message does not name %q: %s", w, res.Stderr)
				}
			}
		})
	}

	// No workload was stored.
	all, err := control.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{})
	must(t, err)
	for _, w := range all.GetWorkloads() {
		t.Errorf("workload %s was stored", w.GetWorkloadId())
	}
	nodes, err := control.ListNodes(ctx, &controlv1.ListNodesRequest{})
	must(t, err)
	for _, n := range nodes.GetNodes() {
		t.Errorf("node %s was stored", n.GetNodeId())
	}
}

func capable(cpu, memory int64) *controlv1.NodeCapabilities {
	return &controlv1.NodeCapabilities{CpuTotalMillicores: cpu, MemoryTotalMb: memory}
}

// rawMessage and rawCodec let a gRPC client send any bytes as a message, also bytes that are no valid
// protobuf.
type rawMessage []byte

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	if r, ok := v.(*rawMessage); ok {
		return *r, nil
	}
	return proto.Marshal(v.(proto.Message))
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	if r, ok := v.(*rawMessage); ok {
		*r = data
		return nil
	}
	return proto.Unmarshal(data, v.(proto.Message))
}

func (rawCodec) Name() string { return "proto" }
