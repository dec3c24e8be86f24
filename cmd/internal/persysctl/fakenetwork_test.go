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
		{Cidr: "10.216.0.128/26"},
	}
	n.Members = []*agentv1.NetworkMember{
		{Network: 1, Namespace: "default", Name: "api-0", Group: "api", Address: "10.216.0.2", Ports: []*agentv1.MemberPort{{Name: "8080", Protocol: "tcp", Port: 8080}, {Name: "http", Protocol: "tcp", Port: 8080}}},
		{Network: 1, Namespace: "default", Name: "web"},
	}
	return &clusterv1.GetNetworkResponse{Index: 7, Network: n}, nil
}

func (f *fake) CreateNetwork(_ context.Context, req *clusterv1.CreateNetworkRequest) (*clusterv1.CreateNetworkResponse, error) {
	n := networkOf(req.GetName())
	n.Cidr = req.GetSubnet()
	return &clusterv1.CreateNetworkResponse{Index: 8, Network: n}, nil
}

func (f *fake) DeleteNetwork(_ context.Context, req *clusterv1.DeleteNetworkRequest) (*clusterv1.DeleteNetworkResponse, error) {
	if req.GetName() == "back" {
		return nil, status.Error(codes.FailedPrecondition, `network "back" is used by 3 workloads, such as api web: delete them first, or take it out of their specifications`)
	}
	return &clusterv1.DeleteNetworkResponse{Index: 9}, nil
}
