package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/policy"
)

// namesWait is how long WatchNetworkNames waits for a change of the names. It is shorter than the time after which
// clients try another replica (dial.Options.ReadPatience), and shorter than the time after which a call is logged as
// slow (limits.Unary).
const namesWait = 4 * time.Second

// networkNames are the members of all networks in one state.
type networkNames struct {
	namespaces []string                            // DNS labels of the namespaces that have networks, sorted
	members    map[uint32][]*agentv1.NetworkMember // by network
	services   map[uint32][]*agentv1.NetworkService
	lost       map[uint32][]string // slices of lost nodes
	ingress    map[uint32][]*agentv1.NetworkIngress
}

// namesOf returns the names of the members of all networks. The result depends only on the state. A member is listed
// without an address if it does not run, is about to stop or fails its health check, or if its address is outside of
// its node's slice (the part of the network's addresses that the node holds).
func namesOf(v fsm.View) *networkNames {
	out := &networkNames{members: map[uint32][]*agentv1.NetworkMember{}, services: map[uint32][]*agentv1.NetworkService{}, lost: map[uint32][]string{}, ingress: map[uint32][]*agentv1.NetworkIngress{}}
	networks := map[networkID]*fsm.Network{}
	v.Networks(func(n *fsm.Network) bool {
		networks[networkID{n.In(), n.Name}] = n
		out.namespaces = append(out.namespaces, bounds.DNSLabel(n.In()))
		out.services[n.ID] = servicesOf(n)
		for _, s := range n.Slices {
			if node, ok := v.Node(s.Node); ok && !node.Up {
				out.lost[n.ID] = append(out.lost[n.ID], n.Prefix(s).String())
			}
		}
		return true
	})
	slices.Sort(out.namespaces)
	out.namespaces = slices.Compact(out.namespaces)
	if len(networks) == 0 {
		return out
	}
	ports := ingressPorts{}
	v.Workloads("", func(w *fsm.Workload) bool {
		if w.IsTemplate() {
			return true // it has no instance
		}
		if n := networks[networkID{w.In(), w.IngressNetwork()}]; n != nil {
			ports.add(w, n)
		}
		for i, name := range w.Demand.Networks {
			n := networks[networkID{w.In(), name}]
			if n == nil || slices.Contains(w.Demand.Networks[:i], name) {
				continue
			}
			out.members[n.ID] = append(out.members[n.ID], memberOf(w, n))
		}
		return true
	})
	ports.list(out.ingress)
	for _, list := range out.members {
		slices.SortFunc(list, func(a, b *agentv1.NetworkMember) int { return strings.Compare(a.GetName(), b.GetName()) })
	}
	return out
}

// servicesOf returns those services of a network that have a service address (one address for all instances).
func servicesOf(n *fsm.Network) (out []*agentv1.NetworkService) {
	for _, s := range n.Services {
		if s.FreeAt == 0 {
			out = append(out, &agentv1.NetworkService{Network: n.ID, Namespace: bounds.DNSLabel(n.In()), Name: bounds.DNSLabel(s.Name), Address: n.At(s).String()})
		}
	}
	return out
}

// memberOf returns what the DNS of network n needs to know about workload w, which joins n: its names and addresses.
func memberOf(w *fsm.Workload, n *fsm.Network) *agentv1.NetworkMember {
	m := &agentv1.NetworkMember{Network: n.ID, Namespace: bounds.DNSLabel(w.In()), Name: bounds.DNSLabel(w.ID)}
	if w.Demand.Group != "" {
		m.Group = bounds.DNSLabel(w.Demand.Group)
	}
	slice, placed := n.SliceOf(w.Node)
	usable := placed && w.Desired == fsm.DesiredRunning && w.Status == fsm.StatusRunning && (w.Actual.Health == "" || w.Actual.Health == fsm.Healthy)
	for _, text := range w.Actual.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && usable && n.Prefix(slice).Contains(a) {
			m.Address = a.String()
		}
	}
	add := func(name, protocol string, port uint16) {
		p := &agentv1.MemberPort{Name: name, Protocol: cmp.Or(strings.ToLower(protocol), "tcp"), Port: uint32(port)}
		if !slices.ContainsFunc(m.Ports, func(o *agentv1.MemberPort) bool { return proto.Equal(o, p) }) {
			m.Ports = append(m.Ports, p)
		}
	}
	for _, p := range w.Actual.Ports {
		add(strconv.Itoa(int(p.ContainerPort)), p.Protocol, p.ContainerPort)
	}
	for _, p := range w.Demand.PortNames {
		add(strings.ToLower(p.Name), p.Protocol, p.ContainerPort)
	}
	slices.SortFunc(m.Ports, func(a, b *agentv1.MemberPort) int {
		return cmp.Or(strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetProtocol(), b.GetProtocol()))
	})
	return m
}

// forNode returns the names that the resolver of a node answers: those of every network in which the node holds a part
// of the addresses (a slice). forNode does not set the message's epoch (number of the leader) and index.
func (all *networkNames) forNode(v fsm.View, node string) *agentv1.NetworkNames {
	out := &agentv1.NetworkNames{Namespaces: all.namespaces}
	var ids []uint32
	v.Networks(func(n *fsm.Network) bool {
		if _, has := n.SliceOf(node); has {
			ids = append(ids, n.ID)
		}
		return true
	})
	slices.Sort(ids)
	var policies []*policy.Policy
	if on, ok := v.Node(node); ok {
		policies = v.NodePolicies(on)
	}
	for _, id := range ids {
		out.Members = append(out.Members, all.members[id]...)
		out.Services = append(out.Services, all.services[id]...)
		out.Lost = append(out.Lost, all.lost[id]...)
		for _, p := range all.ingress[id] {
			if forbidsPort(policies, p.GetPort(), p.GetProtocol()) == "" {
				out.Ingress = append(out.Ingress, p)
			}
		}
	}
	slices.SortFunc(out.Ingress, ingressOrder)
	h := fnv.New64a()
	for _, n := range out.Namespaces {
		_, _ = io.WriteString(h, n+"\x00") // writing to a hash never fails
	}
	for _, m := range out.Members {
		_, _ = fmt.Fprintf(h, "%d %s %s %s %s\n", m.GetNetwork(), m.GetNamespace(), m.GetName(), m.GetGroup(), m.GetAddress())
		for _, p := range m.GetPorts() {
			_, _ = fmt.Fprintf(h, " %s %s %d\n", p.GetName(), p.GetProtocol(), p.GetPort())
		}
	}
	for _, s := range out.Services {
		_, _ = fmt.Fprintf(h, "service %d %s %s %s\n", s.GetNetwork(), s.GetNamespace(), s.GetName(), s.GetAddress())
	}
	for _, p := range out.Lost {
		_, _ = fmt.Fprintf(h, "lost %s\n", p)
	}
	for _, p := range out.Ingress {
		_, _ = fmt.Fprintf(h, "ingress %d %d %s %s %s %s\n", p.GetNetwork(), p.GetPort(), p.GetProtocol(), p.GetNamespace(), p.GetService(), p.GetEndpoints())
	}
	out.Digest = h.Sum64()
	return out
}

// nameCache holds the names of the newest state for which they were computed, so that many waiting agents cost one scan.
type nameCache struct {
	mu    sync.Mutex
	index uint64
	names *networkNames
}

func (c *nameCache) at(v fsm.View) *networkNames {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index := v.Info().Index; c.names == nil || c.index != index {
		c.names, c.index = namesOf(v), index
	}
	return c.names
}

// namesMayDiffer reports whether a change of the state can change names.
func namesMayDiffer(c *fsm.Change) bool {
	joins := func(w *fsm.Workload) bool { return w != nil && len(w.Demand.Networks) > 0 }
	switch c.Table {
	case fsm.TableNetwork:
		return true
	case fsm.TableWorkload:
		return joins(c.OldWorkload()) || joins(c.NewWorkload())
	case fsm.TableNode:
		old, now := c.OldNode(), c.NewNode()
		return old != nil && now != nil && (old.Up != now.Up || !slices.Equal(old.Labels(), now.Labels())) // policies are bound to labels
	case fsm.TablePolicy:
		return true
	}
	return false
}

// errNamesDiffer is returned by the callback of the change feed to end the wait of an agent: a change was found that
// can change names.
var errNamesDiffer = errors.New("names may differ")

// WatchNetworkNames implements the call of control.v1: it returns to an agent the DNS names in the networks of its
// node. If the agent has the present names already, it waits up to namesWait for a change.
func (s *Server) WatchNetworkNames(ctx context.Context, req *controlv1.WatchNetworkNamesRequest) (*controlv1.WatchNetworkNamesResponse, error) {
	id := strings.TrimSpace(req.GetNodeId())
	if id == "" {
		return nil, errorf(KindInvalid, "node_id must not be blank")
	}
	if err := s.speaksFor(ctx, id); err != nil {
		return nil, err
	}
	if wrong := foreign(id, req.GetClusterId(), s.store.View().Info().ClusterID); wrong != "" {
		return nil, errorf(KindPrecondition, "%s", wrong)
	}
	ctx, cancel := context.WithTimeout(ctx, namesWait)
	defer cancel()
	for {
		if _, known := s.replica.Leader(); !known {
			return nil, errorf(KindNotLeader, "this replica knows no leader, so its names may be old")
		}
		v := s.store.View()
		if _, ok := v.Node(id); !ok {
			return nil, errorf(KindNotFound, "node %q is not registered", id)
		}
		info := v.Info()
		if behind := req.GetIncarnation() == info.Incarnation && info.Index < req.GetIndex(); !behind {
			out := s.names.at(v).forNode(v, id)
			if req.GetIndex() == 0 || req.GetIncarnation() != info.Incarnation || req.GetDigest() != out.Digest {
				out.Epoch = &agentv1.Epoch{ClusterId: info.ClusterID, Shard: info.Shard, Incarnation: info.Incarnation}
				out.Index = info.Index
				return &controlv1.WatchNetworkNamesResponse{Names: out}, nil
			}
		}
		err := s.follow(ctx, v, func(_ fsm.View, changes []fsm.Change) error {
			for i := range changes {
				if namesMayDiffer(&changes[i]) {
					return errNamesDiffer
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, errNamesDiffer), errors.Is(err, store.ErrCompacted):
		case ctx.Err() != nil:
			if _, known := s.replica.Leader(); !known {
				return nil, errorf(KindNotLeader, "this replica knows no leader, so its names may be old")
			}
			return &controlv1.WatchNetworkNamesResponse{}, nil
		default:
			return nil, err
		}
	}
}
