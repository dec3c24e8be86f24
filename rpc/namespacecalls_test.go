package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// attempts lists the calls that a user with rights only in some namespaces may make. Each function makes one call
// about workload "theirs" in namespace b. It returns true if the caller saw or changed the workload, or an error.
var attempts = []struct {
	full string
	do   func(ctx context.Context, c controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error)
}{
	{controlv1.AgentControl_ListWorkloads_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		r, err := c.ListWorkloads(ctx, &controlv1.ListWorkloadsRequest{})
		return len(r.GetWorkloads()) > 0, err
	}},
	{controlv1.AgentControl_GetWorkload_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		return done(c.GetWorkload(ctx, &controlv1.GetWorkloadRequest{WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_Events_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		s, err := k.Events(ctx, &clusterv1.EventsRequest{})
		for seen := false; err == nil; {
			var e *clusterv1.Event
			if e, err = s.Recv(); errors.Is(err, io.EOF) {
				return seen, nil
			}
			seen = seen || e.GetWorkloadId() == "theirs"
		}
		return false, err
	}},
	{clusterv1.Cluster_WatchWorkloads_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		s, err := k.WatchWorkloads(ctx, &clusterv1.WatchWorkloadsRequest{})
		for seen := false; err == nil; {
			var m *clusterv1.WorkloadChange
			if m, err = s.Recv(); m.GetSynced() {
				return seen, nil
			}
			seen = seen || m.GetWorkload().GetWorkloadId() == "theirs"
		}
		return false, err
	}},
	{clusterv1.Cluster_Why_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.Why(ctx, &clusterv1.WhyRequest{WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_Logs_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		s, err := k.Logs(ctx, &clusterv1.LogsRequest{WorkloadId: "theirs"})
		if err != nil {
			return false, err
		}
		return done(s.Recv())
	}},
	{clusterv1.Cluster_Exec_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		s, err := k.Exec(ctx)
		if err == nil {
			err = s.Send(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: &clusterv1.ExecOpen{WorkloadId: "theirs", Command: []string{"sh"}}}})
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		return done(s.Recv())
	}},
	{clusterv1.Cluster_ListActions_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.ListActions(ctx, &clusterv1.ListActionsRequest{WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_ListRevisions_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.ListRevisions(ctx, &clusterv1.ListRevisionsRequest{WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_GetRollout_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.GetRollout(ctx, &clusterv1.GetRolloutRequest{Group: "rolls"}))
	}},
	{clusterv1.Cluster_StartRun_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.StartRun(ctx, &clusterv1.StartRunRequest{WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_SetRollout_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.SetRollout(ctx, &clusterv1.SetRolloutRequest{Group: "rolls", Action: "pause"}))
	}},
	{clusterv1.Cluster_ListObjects_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ListObjects(ctx, &clusterv1.ListObjectsRequest{Kind: "secret"})
		return len(r.GetObjects()) > 0, err
	}},
	{clusterv1.Cluster_ShowSecret_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.ShowSecret(ctx, &clusterv1.GetObjectValueRequest{Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_GetConfig_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.GetConfig(ctx, &clusterv1.GetObjectValueRequest{Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_PutObject_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.PutObject(ctx, &clusterv1.PutObjectRequest{Kind: "secret", Name: "theirs", Namespace: "b", Data: []byte("x")}))
	}},
	{clusterv1.Cluster_RollBackObject_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.RollBackObject(ctx, &clusterv1.RollBackObjectRequest{Kind: "secret", Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_DeleteObject_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.DeleteObject(ctx, &clusterv1.DeleteObjectRequest{Kind: "secret", Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_ScaleGroup_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.ScaleGroup(ctx, &clusterv1.ScaleGroupRequest{Group: "rolls", Count: 1}))
	}},
	{clusterv1.Cluster_Audit_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		s, err := k.Audit(ctx, &clusterv1.AuditRequest{})
		if err != nil {
			return false, err
		}
		for {
			r, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			if r.GetWorkloadId() == "theirs" || r.GetNamespace() == "b" {
				return true, nil
			}
		}
	}},
	{clusterv1.Cluster_ListDrifts_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ListDrifts(ctx, &clusterv1.ListDriftsRequest{})
		return len(r.GetDrifts()) > 0, err
	}},
	{clusterv1.Cluster_ListNamespaces_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ListNamespaces(ctx, &clusterv1.ListNamespacesRequest{})
		seen := false
		for _, n := range r.GetNamespaces() {
			seen = seen || n.GetName() == "b"
		}
		return seen, err
	}},
	{clusterv1.Cluster_ListNetworks_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ListNetworks(ctx, &clusterv1.ListNetworksRequest{})
		return len(r.GetNetworks()) > 0, err
	}},
	{clusterv1.Cluster_GetNetwork_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.GetNetwork(ctx, &clusterv1.GetNetworkRequest{Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_CreateNetwork_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.CreateNetwork(ctx, &clusterv1.CreateNetworkRequest{Name: "more", Namespace: "b"}))
	}},
	{clusterv1.Cluster_DeleteNetwork_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.DeleteNetwork(ctx, &clusterv1.DeleteNetworkRequest{Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_ListVolumes_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ListVolumes(ctx, &clusterv1.ListVolumesRequest{})
		return len(r.GetVolumes()) > 0, err
	}},
	{clusterv1.Cluster_CreateVolume_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.CreateVolume(ctx, &clusterv1.CreateVolumeRequest{Name: "more", Namespace: "b"}))
	}},
	{clusterv1.Cluster_DeleteVolume_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.DeleteVolume(ctx, &clusterv1.DeleteVolumeRequest{Id: "local:theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_MoveVolume_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.MoveVolume(ctx, &clusterv1.MoveVolumeRequest{Id: "local:theirs", Namespace: "b", To: "n1"}))
	}},
	{clusterv1.Cluster_ListUsage_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.ListUsage(ctx, &clusterv1.ListUsageRequest{WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_CheckNetwork_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.CheckNetwork(ctx, &clusterv1.CheckNetworkRequest{Name: "theirs", Namespace: "b"}))
	}},
	{clusterv1.Cluster_Trace_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.Trace(ctx, &clusterv1.TraceRequest{Host: "theirs", Port: 80, From: "theirs"}))
	}},
	{clusterv1.Cluster_ListScrapeTargets_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.ListScrapeTargets(ctx, &clusterv1.ListScrapeTargetsRequest{Namespace: "b"}))
	}},
	{clusterv1.Cluster_ListPolicies_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ListPolicies(ctx, &clusterv1.ListPoliciesRequest{})
		seen := false
		for _, p := range r.GetPolicies() {
			seen = seen || slices.Contains(p.GetNamespaces(), "b")
		}
		return seen, err
	}},
	{clusterv1.Cluster_PlanWorkloads_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.PlanWorkloads(ctx, &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{web("theirs")}}))
	}},
	{controlv1.AgentControl_ApplyWorkload_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		return done(0, inBand(c.ApplyWorkload(ctx, newer("1"))))
	}},
	{clusterv1.Cluster_ApplyWorkloads_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		r, err := k.ApplyWorkloads(ctx, &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{newer("2")}})
		if err != nil {
			return false, err
		}
		return done(0, inBand(r.GetResults()[0], nil))
	}},
	{clusterv1.Cluster_ApplyStream_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		s, err := k.ApplyStream(ctx)
		if err == nil {
			err = s.Send(&clusterv1.ApplyStreamRequest{Apply: newer("3")})
		}
		if err != nil {
			return false, err
		}
		m, err := s.Recv()
		if err == nil && m.GetErrorCode() != 0 {
			err = status.Error(codes.Code(m.GetErrorCode()), m.GetErrorMessage())
		}
		if err != nil {
			return false, err
		}
		return done(0, inBand(m.GetResult(), nil))
	}},
	{controlv1.AgentControl_ControlStream_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		s, err := c.ControlStream(ctx)
		if err == nil {
			err = s.Send(&controlv1.ControlMessage{Message: &controlv1.ControlMessage_Apply{Apply: newer("4")}})
		}
		if err != nil {
			return false, err
		}
		m, err := s.Recv()
		if e := m.GetError(); err == nil && e != nil {
			err = status.Error(codes.Code(e.GetCode()), e.GetMessage())
		}
		if err != nil {
			return false, err
		}
		return done(0, inBand(m.GetApplyResult(), nil))
	}},
	{clusterv1.Cluster_RollBack_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.RollBack(ctx, &clusterv1.RollBackRequest{WorkloadId: "theirs"}))
	}},
	{controlv1.AgentControl_RetryWorkload_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		return done(c.RetryWorkload(ctx, &controlv1.RetryWorkloadRequest{WorkloadId: "theirs"}))
	}},
	{controlv1.AgentControl_SubmitAutomationSuggestion_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		r, err := c.SubmitAutomationSuggestion(ctx, &controlv1.SubmitAutomationSuggestionRequest{Suggestion: &controlv1.AutomationSuggestion{
			TargetWorkload: "theirs", ActionType: controlv1.AutomationActionType_AUTOMATION_ACTION_RETRY_WORKLOAD,
		}})
		if err == nil && !r.GetAccepted() {
			err = errors.New(r.GetReason())
		}
		return done(0, err)
	}},
	{clusterv1.Cluster_AdoptDrift_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.AdoptDrift(ctx, &clusterv1.AdoptDriftRequest{NodeId: "a", WorkloadId: "theirs"}))
	}},
	{clusterv1.Cluster_DeleteDrift_FullMethodName, func(ctx context.Context, _ controlv1.AgentControlClient, k clusterv1.ClusterClient) (bool, error) {
		return done(k.DeleteDrift(ctx, &clusterv1.DeleteDriftRequest{NodeId: "a", WorkloadId: "theirs"}))
	}},
	{controlv1.AgentControl_DeleteWorkload_FullMethodName, func(ctx context.Context, c controlv1.AgentControlClient, _ clusterv1.ClusterClient) (bool, error) {
		return done(c.DeleteWorkload(ctx, &controlv1.DeleteWorkloadRequest{WorkloadId: "theirs"}))
	}},
}

func done[T any](_ T, err error) (bool, error) { return err == nil, err }

// newer returns a request that applies the workload "theirs" with another image.
func newer(tag string) *controlv1.ApplyWorkloadRequest {
	r := web("theirs")
	r.GetSpec().GetContainer().Image = "nginx:" + tag
	return r
}

// TestEveryCallIsJudgedByNamespace: every served method has a namespace rule. Each method with the rule namespaced
// must hide the workloads of other namespaces from users with rights only in some namespaces, and must work for users
// of the workload's namespace.
func TestEveryCallIsJudgedByNamespace(t *testing.T) {
	g, as := spaces(t)
	ok(t, second(clusterv1.NewClusterClient(as(0, "user/admin")).BindPolicy(ctxFor(t), &clusterv1.BindPolicyRequest{Policy: "privileged", Namespace: "b"})))
	r, err := controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), webIn("theirs", "b"))
	ok(t, inBand(r, err))
	ok(t, second(clusterv1.NewClusterClient(as(0, "user/admin")).CreateNetwork(ctxFor(t), &clusterv1.CreateNetworkRequest{Name: "theirs", Namespace: "b"})))
	ok(t, second(clusterv1.NewClusterClient(as(0, "user/admin")).CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "theirs", Namespace: "b"})))
	for _, image := range []string{"nginx:1", "nginx:2"} {
		rolls := webIn("rolls", "b") // a group whose members are updated one after another
		rolls.Spec.Count, rolls.Spec.Group, rolls.Spec.Update = new(int32(2)), "", &controlv1.UpdateStrategy{}
		rolls.Spec.GetContainer().Image, rolls.Spec.GetContainer().Ports = image, nil
		ok(t, inBand(controlv1.NewAgentControlClient(as(0, "user/admin")).ApplyWorkload(ctxFor(t), rolls)))
	}
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	for _, kind := range []string{"secret", "config"} {
		ok(t, second(admin.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: kind, Name: "theirs", Namespace: "b", Data: []byte("v")})))
	}
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "values", Permissions: []string{"secrets", "volumes"}})))
	for user, namespace := range map[string]string{"ada": "a", "bob": "b"} {
		ok(t, second(admin.BindRole(ctxFor(t), &clusterv1.BindRoleRequest{Role: "values", Kind: "user", Name: user, Namespaces: []string{namespace}})))
	}
	info := g.view().Info()
	g.do(&commandv1.Command{
		Head: &commandv1.Head{At: info.Clock, By: "leader", Epoch: &commandv1.Epoch{Incarnation: info.Incarnation, Term: info.Term}},
		Body: &commandv1.Command_SetDrifts{SetDrifts: &commandv1.SetDrifts{Open: []*commandv1.Drift{
			{Node: "a", Workload: "theirs", Type: fsm.DriftOrphan, AgentStatus: "Running", Action: fsm.ActionInvestigate},
		}}},
	})
	tried := map[string]bool{}
	for _, a := range attempts {
		tried[a.full] = true
	}
	for service, info := range g.replicas[0].server.GRPC().GetServiceInfo() {
		for _, m := range info.Methods {
			full := "/" + service + "/" + m.Name
			switch {
			case methods[full].namespaces == unclassified:
				t.Errorf("%s: the row in the table of methods must have a namespace rule, but has none", full)
			case (methods[full].namespaces == namespaced) != tried[full]:
				t.Errorf("%s: methods with the rule namespaced, and only these, must be tried in this test", full)
			}
		}
	}
	before, _ := g.view().Workload("theirs")
	for _, who := range []string{"ada", "bob"} {
		cc := map[string]*grpc.ClientConn{"ada": as(1, "user/ada"), "bob": as(1, "user/bob")}[who]
		for _, a := range attempts {
			seen, err := a.do(ctxFor(t), controlv1.NewAgentControlClient(cc), clusterv1.NewClusterClient(cc))
			denied := err != nil && (strings.Contains(err.Error(), "acts only in") || strings.Contains(err.Error(), "has rights only in"))
			switch {
			case who == "ada" && (seen || err != nil && !denied):
				t.Errorf("%s: ada of namespace a must not reach the workload; it was seen: %v, error %v", a.full, seen, err)
			case who == "bob" && (denied || err == nil && !seen):
				t.Errorf("%s: bob of namespace b must reach the workload; it was seen: %v, error %v", a.full, seen, err)
			}
		}
		if now, _ := g.view().Workload("theirs"); who == "ada" && now != before {
			t.Error("ada must not change a workload of namespace b, but did")
		}
	}
}
