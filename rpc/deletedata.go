package rpc

import (
	"slices"
	"strings"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/fsm"
)

// leaving is a workload that a plan would delete, with the entry about it in the answer (out).
type leaving struct {
	out *clusterv1.PlannedWorkload
	w   *fsm.Workload
	// keep is set if the volumes that have a name are kept, as in DeleteWorkloadRequest.
	keep bool
}

// judgeData adds to each planned deletion of a workload which data would be deleted and which would be kept. A volume
// is kept if its policy says so, if a user created it by hand, or if it is also used by a workload that is not
// deleted. So judgeData must be called when all deletions of the plan are known.
func (p *plan) judgeData() {
	if len(p.leaving) == 0 {
		return
	}
	deleted := map[string]bool{}
	for _, l := range p.leaving {
		deleted[l.w.ID] = true
	}
	stays := func(id string) bool { return !deleted[id] }
	volumes := map[string][]*clusterv1.Volume{} // by the id of a deleted workload that uses or owns the volume
	p.view.Volumes(func(x *fsm.Volume) bool {
		v := volumeView(p.view, x)
		concerned := v.GetWorkloadIds()
		if x.Owner != "" && !slices.Contains(concerned, x.Owner) {
			concerned = append(slices.Clone(concerned), x.Owner)
		}
		for _, id := range concerned {
			if deleted[id] {
				volumes[id] = append(volumes[id], v)
			}
		}
		return true
	})
	for _, l := range p.leaving {
		known := map[string]bool{} // names of local data that has a record of its own
		keep, why := l.keep, ""
		if n, ok := p.view.Node(l.w.Node); ok && keep && n.Facts.Protocol == 0 {
			keep, why = false, " (the legacy v1 agent of "+n.ID+" cannot keep it)"
		}
		for _, v := range volumes[l.w.ID] {
			name := "volume " + v.GetName()
			known[name] = known[name] || v.GetDriver() == fsm.DriverLocal
			if node := v.GetNodeId(); node != "" {
				name += " on " + node
			}
			switch {
			case v.GetByHand():
				l.out.KeptData = append(l.out.KeptData, name+" (created by a user)")
			case v.GetRetainPolicy() == retainVolume:
				l.out.KeptData = append(l.out.KeptData, name+" (retain: Retain)")
			case slices.ContainsFunc(v.GetWorkloadIds(), stays):
				l.out.KeptData = append(l.out.KeptData, name+" (other workloads use it)")
			case keep:
				l.out.KeptData = append(l.out.KeptData, name)
			default:
				l.out.DeletedData = append(l.out.DeletedData, name+why)
			}
		}
		for _, name := range l.out.GetLocalData() {
			switch on := name + " on " + l.w.Node; {
			case known[name]:
			case keep && hasName(name):
				l.out.KeptData = append(l.out.KeptData, on)
			default:
				l.out.DeletedData = append(l.out.DeletedData, on)
			}
		}
	}
}

// hasName reports whether a volume, folder or disk would be kept by a delete of its workload that keeps volumes.
// Everything is kept except disks of virtual machines and volumes without a name. data is a text such as "volume db"
// (spec/data.go).
func hasName(data string) bool {
	return !strings.HasPrefix(data, "disk ") && !strings.HasPrefix(data, "unnamed volume ")
}
