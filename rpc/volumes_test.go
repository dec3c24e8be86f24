package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// storing returns a request for a container that uses a local volume.
func storing(id, volume string, size int64) *controlv1.ApplyWorkloadRequest {
	r := web(id)
	c := r.GetSpec().GetContainer()
	c.Ports = nil
	c.ManagedVolumes = []*controlv1.ManagedVolumeSpec{{Name: volume, MountPath: "/data", SizeGb: size}}
	return r
}

// TestVolumeCalls: a user creates, lists and deletes volumes. The error of each invalid call must say what is wrong.
func TestVolumeCalls(t *testing.T) {
	g := newGroup(t, 2)
	g.networkNode("n1", "10.0.0.1")
	c := g.cluster(1)
	list := func(req *clusterv1.ListVolumesRequest) string {
		t.Helper()
		r, err := c.ListVolumes(ctxFor(t), req)
		ok(t, err)
		var out []string
		for _, v := range r.GetVolumes() {
			out = append(out, v.GetId()+"@"+v.GetNodeId()+" "+v.GetState()+" "+v.GetRetainPolicy()+" "+strings.Join(v.GetWorkloadIds(), "+"))
		}
		return strings.Join(out, ", ")
	}
	made, err := c.CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "data", NodeId: "n1", SizeGb: 3, RequestId: requestID(t)})
	ok(t, err)
	is(t, "id", made.GetVolume().GetId(), "local:data")
	is(t, "list", list(&clusterv1.ListVolumesRequest{}), "local:data@n1 Pending Retain ")
	is(t, "list of another node", list(&clusterv1.ListVolumesRequest{Name: "none"}), "")
	_, err = c.CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "data", NodeId: "n1"})
	says(t, err, codes.FailedPrecondition, "exists already")
	_, err = c.CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "disk", Driver: "ceph-rbd"})
	says(t, err, codes.InvalidArgument, "size_gb must be set")
	_, err = c.ListVolumes(ctxFor(t), &clusterv1.ListVolumesRequest{NodeId: "none"})
	says(t, err, codes.NotFound, "persysctl nodes")

	g.put(t, storing("db", "data", 0), "n1")
	is(t, "list after workload db began to use the volume", list(&clusterv1.ListVolumesRequest{NodeId: "n1"}), "local:data@n1 Pending Retain db")
	_, err = c.DeleteVolume(ctxFor(t), &clusterv1.DeleteVolumeRequest{NodeId: "n1", Id: "local:data"})
	says(t, err, codes.FailedPrecondition, `local volume "data" of node n1 is used by db`)
	_, err = c.DeleteVolume(ctxFor(t), &clusterv1.DeleteVolumeRequest{NodeId: "n1", Id: "data"})
	says(t, err, codes.InvalidArgument, "DRIVER:NAME")
	_, err = c.DeleteVolume(ctxFor(t), &clusterv1.DeleteVolumeRequest{NodeId: "n1", Id: "local:none"})
	says(t, err, codes.NotFound, "persysctl volume list")

	ok(t, second(c.CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "unused"})))
	ok(t, second(c.DeleteVolume(ctxFor(t), &clusterv1.DeleteVolumeRequest{Id: "local:unused", RequestId: requestID(t)})))
	is(t, "list after the delete", list(&clusterv1.ListVolumesRequest{Namespace: "default"}), "local:data@n1 Pending Retain db")
}

// TestOrdersCarryCreatedVolumes: an order contains the size of a volume that a user created by hand, and
// the policy to keep the volume.
func TestOrdersCarryCreatedVolumes(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	ok(t, second(g.cluster(0).CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "data", SizeGb: 3})))
	g.put(t, storing("db", "data", 0), "n1")
	v := g.view()
	w, _ := v.Workload("db")
	n, _ := v.Node("n1")
	x, found := v.Volume("", "data", fsm.DriverLocal, "n1")
	if !found || !x.ByHand {
		t.Fatalf("the volume must be bound to node n1, but its record is %+v", x)
	}
	order := &agentv1.ApplyWorkloadRequest{Spec: &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{
		ManagedVolumes: []*agentv1.ManagedVolumeSpec{{Name: "data", Driver: fsm.DriverLocal, RetainPolicy: "Delete"}},
	}}}}
	(&Agents{store: g.replicas[0].store}).fillVolumes(order, w, n)
	m := order.GetSpec().GetContainer().GetManagedVolumes()[0]
	is(t, "size", m.GetSizeGb(), 3)
	is(t, "policy", m.GetRetainPolicy(), "Retain")
	is(t, "whether the order marks the volume as created by a user", m.GetByHand(), true)
}

// TestHeldOn: an agent lists its volumes. A volume must belong to the namespace that the agent names. If the agent
// names none, the namespace must follow from the id of the volume and the workloads that use it.
func TestHeldOn(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "shop"}}})
	in := storing("db", "data", 0)
	in.GetSpec().Namespace = "shop"
	g.put(t, in, "n1")
	for _, c := range []struct {
		fact      string
		namespace string
		info      *agentv1.VolumeInfo
		want      bool
	}{
		{"the agent names the namespace", "shop", &agentv1.VolumeInfo{Id: "local:data", Namespace: "shop"}, true},
		{"another namespace", "default", &agentv1.VolumeInfo{Id: "local:data", Namespace: "shop"}, false},
		{"the agent names no namespace, and the id is of namespace default", "default", &agentv1.VolumeInfo{Id: "local:data"}, true},
		{"the agent names no namespace, and the id is of another namespace", "default", &agentv1.VolumeInfo{Id: "local:shop~data"}, false},
		{"the agent names no namespace, and the id is of this namespace", "shop", &agentv1.VolumeInfo{Id: "local:shop~data"}, true},
		{"the agent names no namespace, and the id contains none", "shop", &agentv1.VolumeInfo{Id: "local:data"}, false},
		{"the agent names no namespace, and a workload of another namespace used the volume last", "default", &agentv1.VolumeInfo{Id: "local:data", Owner: "db"}, false},
		{"the agent names no namespace, and a workload of another namespace uses the volume", "default", &agentv1.VolumeInfo{Id: "local:data", WorkloadIds: []string{"db"}}, false},
	} {
		c.info.Name, c.info.Driver = "data", fsm.DriverLocal
		if got := heldOn(g.view(), []*agentv1.VolumeInfo{c.info}, c.namespace, fsm.DriverLocal, "data") != nil; got != c.want {
			t.Errorf("if %s, whether the volume belongs to namespace %s: %v, want %v", c.fact, c.namespace, got, c.want)
		}
	}
}

// TestDeleteVolumeRemovesItsRecordFirst: while an agent deletes the data, no workload can get the volume, and a report
// that arrives meanwhile leaves no record of the volume. If the agent cannot delete the data, the error must say so,
// and a second delete must succeed.
func TestDeleteVolumeRemovesItsRecordFirst(t *testing.T) {
	g := newGroup(t, 1)
	f := g.agent(t, 1)
	f.held = []*agentv1.VolumeInfo{{Id: "local:data", Name: "data", Driver: fsm.DriverLocal, Namespace: fsm.DefaultNamespace}}
	report := &commandv1.Command{Body: &commandv1.Command_ReportVolumes{ReportVolumes: &commandv1.ReportVolumes{
		Node: "n", Complete: true, Volumes: []*commandv1.HeldVolume{{Name: "data", Driver: fsm.DriverLocal, ByHand: true}},
	}}}
	record := func() bool {
		_, known := g.view().Volume("", "data", fsm.DriverLocal, "n")
		return known
	}
	g.do(report)
	deleteIt := func() error {
		return second(g.cluster(0).DeleteVolume(ctxFor(t), &clusterv1.DeleteVolumeRequest{NodeId: "n", Id: "local:data", RequestId: requestID(t)}))
	}
	f.volumes = func(*agentv1.DeleteVolumeRequest) (*agentv1.DeleteVolumeResponse, error) {
		return nil, status.Error(codes.FailedPrecondition, "the disk answers with an error")
	}
	says(t, deleteIt(), codes.FailedPrecondition, "its data on node n is not; the next report of the node brings the record back, then try again: agent of node n: the disk answers with an error")
	is(t, "whether the volume has a record after the failed delete", record(), false)

	deleted := false
	f.volumes = func(r *agentv1.DeleteVolumeRequest) (*agentv1.DeleteVolumeResponse, error) {
		is(t, "deleted volume", r.GetId(), "local:data")
		is(t, "whether the volume has a record while the agent deletes the data", record(), false)
		deleted = true
		late := proto.CloneOf(report)
		late.GetReportVolumes().Volumes[0].ByHand = false
		g.do(late)
		return &agentv1.DeleteVolumeResponse{}, nil
	}
	ok(t, deleteIt())
	is(t, "the agent deleted the data", deleted, true)
	is(t, "whether the volume has a record after the delete", record(), false)
}

// TestDeleteOfASharedVolumeNeedsANodeThatHasIt: a delete is refused if no node that answers knows the volume and another
// node does not answer, because only a node that has used the volume can delete its data.
func TestDeleteOfASharedVolumeNeedsANodeThatHasIt(t *testing.T) {
	g := newGroup(t, 1)
	f := g.agent(t, 1)
	register := func(id, endpoint string) {
		g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
			Id: id, Endpoint: endpoint, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1, StorageDrivers: []string{"nfs"},
		}}})
	}
	register("n", f.addr)
	register("silent", "127.0.0.1:1")
	r := storing("db", "shared", 0)
	r.GetSpec().GetContainer().GetManagedVolumes()[0].Driver = "nfs"
	r.GetSpec().GetContainer().GetManagedVolumes()[0].RetainPolicy = "Retain"
	g.put(t, r, "n")
	x, known := g.view().Volume("", "shared", "nfs", "")
	if !known {
		t.Fatal("volume shared has no record, want one")
	}
	s := g.replicas[0].server
	says(t, second(s.holdersOf(ctxFor(t), g.view(), x)), codes.FailedPrecondition, `no node that answers has nfs volume "shared", and these nodes do not answer: silent`)
	f.held = []*agentv1.VolumeInfo{{Id: "nfs:shared", Name: "shared", Driver: "nfs", Namespace: fsm.DefaultNamespace}}
	holders, err := s.holdersOf(ctxFor(t), g.view(), x)
	ok(t, err)
	is(t, "holders", fmt.Sprint(holders), "[{n nfs:shared}]")
}

// TestPlannedDeletesNameTheData: a plan of a delete must say which data the delete will remove and which data it will
// keep.
func TestPlannedDeletesNameTheData(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	retained := storing("db", "data", 0)
	c := retained.GetSpec().GetContainer()
	c.ManagedVolumes = append(c.ManagedVolumes,
		&controlv1.ManagedVolumeSpec{Name: "logs", MountPath: "/logs", RetainPolicy: "Retain"}, &controlv1.ManagedVolumeSpec{Name: "mine", MountPath: "/mine"},
		&controlv1.ManagedVolumeSpec{Name: "both", MountPath: "/both"})
	_, err := g.cluster(0).CreateVolume(ctxFor(t), &clusterv1.CreateVolumeRequest{Name: "mine", NodeId: "n1", RequestId: requestID(t)})
	ok(t, err)
	g.put(t, retained, "n1")
	g.put(t, storing("web", "both", 0), "n1")
	g.reports("db", "n1", "")
	g.reports("web", "n1", "")
	always := "volume logs on n1 (retain: Retain), volume mine on n1 (created by a user)"
	for _, tt := range []struct {
		fact       string
		ids        []string
		keep       bool
		goes, kept string // data of workload db that the plan deletes and keeps
	}{
		{"a delete of db by the retain policies of its volumes", []string{"db"}, false, "volume data on n1", "volume both on n1 (other workloads use it), " + always},
		{"a delete of db and web, which share volume both", []string{"db", "web"}, false, "volume both on n1, volume data on n1", always},
		{"a delete of db and web that keeps the volumes", []string{"db", "web"}, true, "", "volume both on n1, volume data on n1, " + always},
	} {
		req := &clusterv1.PlanWorkloadsRequest{KeepVolumes: tt.keep}
		for _, id := range tt.ids {
			req.Workloads = append(req.Workloads, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "deleted"})
		}
		r, err := g.cluster(0).PlanWorkloads(ctxFor(t), req)
		ok(t, err)
		db := r.GetWorkloads()[0]
		is(t, tt.fact+": data of db that is deleted", strings.Join(db.GetDeletedData(), ", "), tt.goes)
		is(t, tt.fact+": data of db that is kept", strings.Join(db.GetKeptData(), ", "), tt.kept)
	}
	r, err := g.control(0).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: "db", KeepVolumes: true})
	ok(t, err)
	is(t, "whether the delete keeps the volumes", r.GetVolumesKept(), true)
	left, found := g.now().Residual("n1", "db")
	is(t, "whether the order to the node keeps the volumes", found && left.KeepVolumes, true)
	r, err = g.control(0).DeleteWorkload(ctxFor(t), &controlv1.DeleteWorkloadRequest{WorkloadId: "db"})
	ok(t, err)
	is(t, "whether a second delete still keeps the volumes, as the first one asked", r.GetVolumesKept(), true)
}

// TestPlannedDeleteOfASystemWorkload: the plan of its deletion must name the data of its members, which are deleted with it.
func TestPlannedDeleteOfASystemWorkload(t *testing.T) {
	g := newGroup(t, 1)
	g.networkNode("n1", "10.0.0.1")
	logs := storing("logs", "data", 0)
	logs.Spec.Kind = "system"
	r, err := g.control(0).ApplyWorkload(ctxFor(t), logs)
	ok(t, err)
	is(t, "error text of the apply", r.GetErrorMessage(), "")
	of, _ := g.now().Workload("logs")
	info := g.now().Info()
	g.do(&commandv1.Command{
		Head: &commandv1.Head{At: info.Clock, By: "leader", Epoch: &commandv1.Epoch{Incarnation: info.Incarnation, Term: info.Term}},
		Body: &commandv1.Command_PlaceMembers{PlaceMembers: &commandv1.PlaceMembers{Changes: []*commandv1.MemberChange{
			{Template: "logs", IfGeneration: fsm.GenerationPB(of.Generation), Node: "n1"},
		}}},
	})
	g.assign("logs-n1", "n1")
	g.reports("logs-n1", "n1", "")
	plan, err := g.cluster(0).PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{{WorkloadId: "logs", DesiredState: "deleted"}}})
	ok(t, err)
	var got []string
	for _, w := range plan.GetWorkloads() {
		got = append(got, w.GetAction()+" "+w.GetWorkloadId()+": "+strings.Join(w.GetDeletedData(), ", "))
	}
	is(t, "planned deletes with the data that they remove", strings.Join(got, "; "), "delete logs: ; delete logs-n1: volume data on n1")
}

// TestHasName: a delete that keeps volumes must still remove disks of virtual machines and volumes without a name.
func TestHasName(t *testing.T) {
	for data, want := range map[string]bool{
		"volume db": true, "folder ./data": true, "volumes of the stack, which only its Git repository lists": true, "3 more volumes": true,
		"disk vda": false, "unnamed volume at /cache": false,
	} {
		is(t, "whether a delete that keeps volumes keeps "+data, hasName(data), want)
	}
}
