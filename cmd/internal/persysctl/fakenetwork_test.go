package persysctl

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

func networkOf(name string) *clusterv1.Network {
	return &clusterv1.Network{
		Id: 1, Name: name, Namespace: "default", Cidr: "10.216.0.0/20", Mtu: 1450, CreatedBy: "user/ada", CreatedAt: timestamppb.New(epoch.Add(-time.Hour)),
		Workloads: 3, Capacity: 64, Nodes: 2,
	}
}

func (f *fake) ListNetworks(context.Context, *clusterv1.ListNetworksRequest) (*clusterv1.ListNetworksResponse, error) {
	return &clusterv1.ListNetworksResponse{Index: 7, Networks: []*clusterv1.Network{networkOf("back")}}, nil
}

func (f *fake) GetNetwork(_ context.Context, req *clusterv1.GetNetworkRequest) (*clusterv1.GetNetworkResponse, error) {
	if req.GetName() != "back" {
		return nil, status.Errorf(codes.NotFound, "network %q not found in namespace default; `persysctl network list` shows them", req.GetName())
	}
	n := networkOf("back")
	n.Slices = []*clusterv1.NetworkSlice{
		{NodeId: "node-a", Cidr: "10.216.0.0/26", Workloads: 3}, {NodeId: "node-b", Cidr: "10.216.0.64/26", EmptySince: timestamppb.New(epoch.Add(-time.Hour))},
		{Cidr: "10.216.0.128/26"}, {Cidr: "10.216.15.192/26", Services: true},
	}
	n.Members = []*agentv1.NetworkMember{
		{Network: 1, Namespace: "default", Name: "api-0", Group: "api", Address: "10.216.0.2", Ports: []*agentv1.MemberPort{{Name: "8080", Protocol: "tcp", Port: 8080}, {Name: "http", Protocol: "tcp", Port: 8080}}},
		{Network: 1, Namespace: "default", Name: "web"},
	}
	n.Services = []*agentv1.NetworkService{{Network: 1, Namespace: "default", Name: "api", Address: "10.216.15.193"}, {Network: 1, Namespace: "default", Name: "web", Address: "10.216.15.194"}}
	n.Slices[0].Answers, n.Slices[1].Answers, n.Slices[1].HeldPorts = true, true, "22/tcp, 80/tcp"
	n.Ingress = []*agentv1.NetworkIngress{{Network: 1, Port: 80, Protocol: "tcp", Namespace: "default", Service: "web"},
		{Network: 1, Port: 8080, Protocol: "tcp", Namespace: "default", Service: "api", Endpoints: []string{"10.216.0.2:80"}}}
	return &clusterv1.GetNetworkResponse{Index: 7, Network: n}, nil
}

func (f *fake) CheckNetwork(_ context.Context, req *clusterv1.CheckNetworkRequest) (*clusterv1.CheckNetworkResponse, error) {
	out := &clusterv1.CheckNetworkResponse{Mtu: 1450, Paths: []*clusterv1.NetworkPath{
		{From: "node-a", To: "node-b", Reached: true, LatencyMicroseconds: 74, Mtu: 1450}, {From: "node-b", To: "node-a", Reached: true, LatencyMicroseconds: 81, Mtu: 1450},
	}}
	for _, p := range out.Paths {
		p.Network = req.GetName()
	}
	if req.GetName() == "shut" {
		out.Paths[1] = &clusterv1.NetworkPath{Network: "shut", From: "node-b", To: "node-a", Problem: "10.0.0.1 answers, but no packet of the network comes back: open UDP port 4790 between 10.0.0.2 and 10.0.0.1 in both directions"}
	}
	return out, nil
}

func (f *fake) Trace(_ context.Context, req *clusterv1.TraceRequest) (*clusterv1.TraceResponse, error) {
	out := &clusterv1.TraceResponse{Hops: []*clusterv1.TraceHop{
		{Step: "start", Subject: "node-a", Text: "node"}, {Step: "name", Subject: req.GetHost(), Text: "10.216.15.193"},
		{Step: "address", Subject: "10.216.15.193", Text: "service api.default, network back, 1 ready", LatencyMicroseconds: 310},
		{Step: "instance", Subject: "api-0", Text: "10.216.0.2:8080", LatencyMicroseconds: 280}, {Step: "node", Subject: "node-a", Text: "Ready"},
		{Step: "container", Subject: "api-0", Text: "Running, healthy"}, {Step: "instance", Subject: "api-1", Text: "Pending", Problem: "it does not run", Idle: true},
	}}
	if req.GetFrom() != "" {
		out.Hops[0] = &clusterv1.TraceHop{Step: "start", Subject: req.GetFrom(), Text: "container on node node-a"}
	}
	if req.GetHost() == "shut" {
		out.LeftOut = 3
		for _, i := range []int{2, 3} {
			out.Hops[i].Problem, out.Hops[i].LatencyMicroseconds = "refused: nothing listens at port 8080, or a firewall rejects it", 0
		}
	}
	return out, nil
}

func (f *fake) CreateNetwork(_ context.Context, req *clusterv1.CreateNetworkRequest) (*clusterv1.CreateNetworkResponse, error) {
	n := networkOf(req.GetName())
	n.Cidr = req.GetSubnet()
	return &clusterv1.CreateNetworkResponse{Index: 8, Network: n}, nil
}

func (f *fake) DeleteNetwork(_ context.Context, req *clusterv1.DeleteNetworkRequest) (*clusterv1.DeleteNetworkResponse, error) {
	if req.GetName() == "back" {
		return nil, status.Error(codes.FailedPrecondition, `network "back" is used by 3 workloads, such as api web: delete them first, or remove the network from their specifications`)
	}
	return &clusterv1.DeleteNetworkResponse{Index: 9}, nil
}
