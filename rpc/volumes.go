package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
)

// volumesAtOnce is the number of agents that one call asks for their volumes at the same time.
const volumesAtOnce = 16

// States of volumes in answers.
const (
	volumePending = "Pending" // no node has made its data yet
	volumeInUse   = "InUse"
	volumeUnused  = "Unused"
)

// retainVolume is the value of the field retain of a volume that is kept when its workload is deleted.
const retainVolume = "Retain"

// volumeView converts the record of a volume to the message of the API.
func volumeView(v fsm.View, x *fsm.Volume) *clusterv1.Volume {
	out := &clusterv1.Volume{
		NodeId: x.Node, Id: x.Driver + ":" + x.Name, Driver: x.Driver, SizeGb: x.SizeGB, Pool: x.Pool, RetainPolicy: "Delete", Owner: x.Owner,
		CreatedAt: timestamppb.New(time.Unix(0, x.CreatedAt)), CreatedBy: x.CreatedBy, Name: x.Name, Namespace: x.In(), ByHand: x.ByHand,
		WorkloadIds: v.UsersOfVolume(x), State: volumeInUse,
	}
	if x.Retain {
		out.RetainPolicy = retainVolume
	}
	if x.UnusedSince != 0 {
		out.State, out.UnusedSince = volumeUnused, timestamppb.New(time.Unix(0, x.UnusedSince))
	}
	if !x.Held {
		out.State = volumePending
	}
	if m := fsm.MoveOf(v, x.In(), x.Name, x.Node); m != nil && x.Local() {
		out.Move = volumeMoveView(m)
	}
	return out
}

// ListVolumes implements the call of cluster.v1. If the caller asks for all nodes, the call succeeds even if a node
// does not answer; that node is then listed as a problem.
func (s *Server) ListVolumes(ctx context.Context, req *clusterv1.ListVolumesRequest) (*clusterv1.ListVolumesResponse, error) {
	r, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	in, only := s.scopeOf(ctx), strings.TrimSpace(req.GetNamespace())
	if only != "" {
		if err := s.mayEnter(ctx, only); err != nil {
			return nil, err
		}
	}
	if id := req.GetNodeId(); id != "" {
		if _, _, err := s.asked(id); err != nil {
			return nil, err
		}
	}
	out := &clusterv1.ListVolumesResponse{Index: r.index}
	r.Volumes(func(x *fsm.Volume) bool {
		if in.Has(x.In()) && (only == "" || only == x.In()) && (req.GetNodeId() == "" || req.GetNodeId() == x.Node) && (req.GetName() == "" || req.GetName() == x.Name) {
			view := volumeView(r, x)
			s.addProgress(view.GetMove())
			out.Volumes = append(out.Volumes, view)
		}
		return true
	})
	if req.GetAskNodes() {
		entry, err := s.enterRead(ctx)
		if err != nil {
			return nil, err
		}
		defer entry.Leave()
		return out, s.askForVolumes(ctx, r, req, out)
	}
	return out, nil
}

// askForVolumes asks agents for their volumes and adds the answers to the list. A caller with rights only in some
// namespaces learns nothing else about the nodes.
func (s *Server) askForVolumes(ctx context.Context, v fsm.View, req *clusterv1.ListVolumesRequest, out *clusterv1.ListVolumesResponse) error {
	holders := map[string]bool{}
	shared := false
	for _, x := range out.GetVolumes() {
		holders[x.GetNodeId()] = true
		shared = shared || x.GetNodeId() == "" && x.GetDriver() != fsm.DriverLocal
	}
	var nodes []*fsm.Node
	v.Nodes("", func(n *fsm.Node) bool {
		all := req.GetName() == "" && req.GetNamespace() == "" || shared
		if (req.GetNodeId() == "" || req.GetNodeId() == n.ID) && (all || holders[n.ID]) {
			nodes = append(nodes, n)
		}
		return true
	})
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(volumesAtOnce)
	for _, n := range nodes {
		group.Go(func() error {
			held, problems, err := s.volumesOf(ctx, n)
			if err != nil && req.GetNodeId() != "" {
				return err
			}
			if err != nil {
				problems = []*clusterv1.StorageProblem{{NodeId: n.ID, Reason: err.Error()}}
			}
			mu.Lock()
			defer mu.Unlock()
			for _, x := range out.GetVolumes() {
				if h := heldOn(v, held, x.GetNamespace(), x.GetDriver(), x.GetName()); h != nil && (x.GetNodeId() == n.ID || x.GetDriver() != fsm.DriverLocal) {
					x.Form, x.Phase, x.LastError = h.GetForm(), h.GetPhase(), cmp.Or(h.GetLastError(), x.GetLastError())
					x.ReleasedAt = unix(h.GetReleasedAt())
				}
			}
			if s.scopeOf(ctx).Everywhere() || err != nil && holders[n.ID] {
				out.Problems = append(out.Problems, problems...)
			}
			return nil
		})
	}
	err := group.Wait()
	slices.SortFunc(out.Problems, func(a, b *clusterv1.StorageProblem) int {
		return cmp.Or(strings.Compare(a.GetNodeId(), b.GetNodeId()), strings.Compare(a.GetDriver(), b.GetDriver()))
	})
	return err
}

// heldOn finds a volume in the list of an agent; nil if it is not there. Agents of older versions do not say to which
// namespace a volume belongs. heldOn returns such a volume only if its id has the form of ids in this namespace, and
// no workload of another namespace uses it or was the last to use it.
func heldOn(v fsm.View, list []*agentv1.VolumeInfo, namespace, driver, name string) *agentv1.VolumeInfo {
	id := driver + ":" + name
	if namespace != fsm.DefaultNamespace {
		id = driver + ":" + namespace + "~" + name
	}
	foreign := func(workload string) bool {
		w, ok := v.Workload(workload)
		return ok && w.In() != namespace
	}
	for _, h := range list {
		if h.GetDriver() != driver || h.GetName() != name {
			continue
		}
		if in := h.GetNamespace(); in == namespace || in == "" && h.GetId() == id && !foreign(h.GetOwner()) && !slices.ContainsFunc(h.GetWorkloadIds(), foreign) {
			return h
		}
	}
	return nil
}

// CreateVolume implements the call of cluster.v1: it creates the record of a volume. The data is created on a node
// when a workload uses the volume.
func (s *Server) CreateVolume(ctx context.Context, req *clusterv1.CreateVolumeRequest) (*clusterv1.CreateVolumeResponse, error) {
	driver := cmp.Or(strings.TrimSpace(req.GetDriver()), fsm.DriverLocal)
	if driver == "ceph-rbd" && req.GetSizeGb() == 0 {
		return nil, errorf(KindInvalid, "size_gb must be set: a volume of ceph-rbd is a disk with a size (--size)")
	}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_PutVolume{PutVolume: &commandv1.PutVolume{
		Name: req.GetName(), Namespace: strings.TrimSpace(req.GetNamespace()), Driver: driver, SizeGb: req.GetSizeGb(), Pool: req.GetPool(), Node: req.GetNodeId(),
	}}})
	if err != nil {
		return nil, err
	}
	out := &clusterv1.CreateVolumeResponse{Index: r.Index}
	v := s.store.View()
	v.VolumesNamed(cmp.Or(strings.TrimSpace(req.GetNamespace()), fsm.DefaultNamespace), req.GetName(), func(x *fsm.Volume) bool {
		if x.Driver == driver && x.Node == req.GetNodeId() && x.ByHand {
			out.Volume = volumeView(v, x)
		}
		return true
	})
	return out, nil
}

// DeleteVolume implements the call of cluster.v1. It deletes the record before the data. The state machine refuses to
// delete the record of a volume that a workload uses, so no workload can get the volume while the data is being
// deleted. If the data cannot be deleted, the next report of the node creates the record again.
func (s *Server) DeleteVolume(ctx context.Context, req *clusterv1.DeleteVolumeRequest) (*clusterv1.DeleteVolumeResponse, error) {
	if err := s.refuseFrozen(); err != nil {
		return nil, err
	}
	driver, name, ok := strings.Cut(req.GetId(), ":")
	if !ok || name == "" {
		return nil, errorf(KindInvalid, "id: %q is not DRIVER:NAME; `persysctl volume list` shows the volumes", clip(req.GetId(), 128))
	}
	x := &fsm.Volume{Name: name, Namespace: cmp.Or(strings.TrimSpace(req.GetNamespace()), fsm.DefaultNamespace), Driver: driver, Node: req.GetNodeId()}
	if err := s.mayEnter(ctx, x.In()); err != nil {
		return nil, err
	}
	v := s.store.View()
	found := recordOf(v, x)
	if found != nil {
		if users := v.UsersOfVolume(found); len(users) > 0 {
			return nil, errorf(KindPrecondition, "%s", found.InUse(users))
		}
	}
	var holders []holder
	if found == nil || found.Held {
		var err error
		if holders, err = s.holdersOf(ctx, v, x); err != nil && found != nil {
			return nil, err
		}
	}
	drop := &commandv1.DeleteVolume{Name: name, Namespace: x.Namespace, Driver: driver, Node: x.Node}
	r, err := s.mutate(ctx, req.GetRequestId(), &commandv1.Command{Body: &commandv1.Command_DeleteVolume{DeleteVolume: drop}})
	if err != nil && (edgeKind(err) != KindNotFound || len(holders) == 0) {
		return nil, err
	}
	for _, h := range holders {
		if err := s.deleteAt(ctx, h); err != nil {
			return nil, fmt.Errorf("the record of the volume is deleted, but its data on node %s is not; the next report of the node brings the record back, then try again: %w", h.node, err)
		}
	}
	// A report that the node made while it deleted the data may have brought the record back.
	if again := recordOf(s.store.View(), x); len(holders) > 0 && again != nil && !again.ByHand {
		if last, err := s.mutate(ctx, "", &commandv1.Command{Body: &commandv1.Command_DeleteVolume{DeleteVolume: drop}}); err == nil {
			r = last
		}
	}
	return &clusterv1.DeleteVolumeResponse{Index: r.Index}, nil
}

// recordOf returns the record of a volume; nil if there is none. If a volume has no node yet, it returns the record that
// a user created.
func recordOf(v fsm.View, of *fsm.Volume) (found *fsm.Volume) {
	v.VolumesNamed(of.In(), of.Name, func(x *fsm.Volume) bool {
		if x.Driver == of.Driver && x.Node == of.Node && (found == nil || x.ByHand) {
			found = x
		}
		return true
	})
	return found
}

// holder is an agent that has a volume, and the id of the volume there.
type holder struct{ node, id string }

// holdersOf asks agents for a volume, and returns the agents that have it. For a local volume it asks only the node of
// the volume. The data of a volume of another driver can be deleted by the agent of any node that has used it, so
// holdersOf asks all nodes with that driver. If none of them has the volume and some do not answer, the error names
// these.
func (s *Server) holdersOf(ctx context.Context, v fsm.View, x *fsm.Volume) (holders []holder, err error) {
	var (
		mu     sync.Mutex
		group  errgroup.Group
		silent []string
		why    error
	)
	group.SetLimit(volumesAtOnce)
	v.Nodes("", func(n *fsm.Node) bool {
		if x.Local() && x.Node != n.ID || !x.Local() && !slices.Contains(n.Facts.StorageDrivers, x.Driver) {
			return true
		}
		group.Go(func() error {
			held, _, err := s.volumesOf(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				silent, why = append(silent, n.ID), err
			} else if h := heldOn(v, held, x.In(), x.Driver, x.Name); h != nil {
				holders = append(holders, holder{n.ID, h.GetId()})
			}
			return nil
		})
		return ctx.Err() == nil
	})
	if err := cmp.Or(group.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	slices.Sort(silent)
	switch {
	case len(holders) > 0 || len(silent) == 0:
		return holders, nil
	case x.Local():
		return nil, why
	}
	return nil, errorf(KindPrecondition, "no node that answers has %s volume %q, and these nodes do not answer: %s. Try again when they do: one of them may be needed to delete the data",
		x.Driver, x.Name, fsm.DataText(silent))
}

// deleteAt makes an agent delete the data of a volume.
func (s *Server) deleteAt(ctx context.Context, h holder) error {
	return s.audited(ctx, h.node, "volume "+h.id, func() error {
		return s.atAgent(ctx, h.node, "delete volumes", func(ctx context.Context, c agentv1.AgentServiceClient, n *fsm.Node, epoch *agentv1.Epoch) error {
			_, err := c.DeleteVolume(ctx, &agentv1.DeleteVolumeRequest{Epoch: epoch, NodeId: n.ID, Id: h.id, By: callOf(ctx).who()})
			return err
		})
	})
}

// fillVolumes adds to an order which copy of each local volume is in use. Of volumes that a user created by hand it also
// adds the size, if the specification gives none, and that the volume is kept when the workload is deleted.
func (a *Agents) fillVolumes(req *agentv1.ApplyWorkloadRequest, w *fsm.Workload, n *fsm.Node) {
	v := a.store.View()
	for _, list := range [][]*agentv1.ManagedVolumeSpec{req.GetSpec().GetContainer().GetManagedVolumes(), req.GetSpec().GetCompose().GetManagedVolumes(), req.GetSpec().GetVm().GetManagedVolumes()} {
		for _, m := range list {
			driver, node := m.GetDriver(), ""
			if driver == fsm.DriverLocal {
				node = n.ID
			}
			x, ok := v.Volume(w.In(), m.GetName(), driver, node)
			if ok {
				m.Copy, m.Undone = copyID(x.Copy), copyID(x.Undone)
			}
			if !ok || !x.ByHand {
				continue
			}
			m.RetainPolicy, m.ByHand = "Retain", true
			if m.GetSizeGb() == 0 {
				m.SizeGb = x.SizeGB
			}
			if m.GetPool() == "" {
				m.Pool = x.Pool
			}
		}
	}
}
