package fsm

import (
	"cmp"
	"math"
	"slices"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// This file computes the sizes that the limit of the state (Room) and the policies of namespaces limit. They
// include each part of the state whose size a user chooses: specifications with their demands, former
// revisions, updates, volumes, and the files of stacks. Objects add their own size (objects.go).

const (
	entryBytes  = 48  // one entry of a list in a demand, without its texts
	volumeBytes = 512 // one record of a volume, with names of the largest size
)

// countedBytes returns the sizes in bytes of what the state stores for w: specs for its specifications and their
// demands, files for their files. Both include the former revisions, and both count until w is removed from the state.
// If workloads share files, the size of these files is added to the use of each workload's namespace, but only once to
// the size of the whole state (bundles.go).
func (w *Workload) countedBytes(v bundleView) (specs, files int64) {
	specs, files = w.formerBytes(v)
	return specs + int64(len(w.Spec)) + w.Demand.bytes(), files + filesBytes(v, nil, w.Bundle)
}

// formerBytes returns the part of countedBytes that the former revisions of w take.
func (w *Workload) formerBytes(v bundleView) (specs, files int64) {
	if w.history == nil {
		return 0, 0
	}
	for _, n := range w.history.sizes {
		specs += int64(n)
	}
	return specs, filesOf(v, w.history.kept(), w.Bundle)
}

// bytes returns the size in bytes of the lists of a demand. A short specification can have a long demand: the
// ports 1024-5119 of a stack are thousands of entries.
func (d *Demand) bytes() (n int64) {
	n = entryBytes * int64(len(d.StorageDrivers)+len(d.Ports)+len(d.Labels)+len(d.Constraints)+len(d.Tolerations)+len(d.PortNames)+len(d.Asks)+
		len(d.LocalData)+len(d.MACs)+len(d.Tags)+len(d.Networks)+len(d.Ingress)+len(d.Devices)+len(d.Volumes))
	for i := range d.Asks {
		n += int64(len(d.Asks[i].Rule) + len(d.Asks[i].Value) + len(d.Asks[i].Field))
	}
	for i := range d.Labels {
		n += int64(len(d.Labels[i].Key) + len(d.Labels[i].Value))
	}
	for i := range d.Tags {
		n += int64(len(d.Tags[i].Key) + len(d.Tags[i].Value))
	}
	for i := range d.Constraints {
		n += int64(len(d.Constraints[i].Key)) + textBytes(d.Constraints[i].Values)
	}
	for i := range d.LocalData {
		n += int64(len(d.LocalData[i].Name))
	}
	if p := d.Placement; p != nil {
		n += entryBytes * int64(len(p.Spread)+2*len(p.Affinities))
		for i := range p.Affinities {
			n += textBytes(p.Affinities[i].Node.Values)
		}
	}
	return n
}

func textBytes(list []string) (n int64) {
	for _, s := range list {
		n += entryBytes + int64(len(s))
	}
	return n
}

// putBytes returns the bytes that the workload of the put p takes in the state, without former revisions.
func putBytes(v bundleView, offered []*commandv1.Bundle, p *commandv1.WorkloadPut) (specs, files int64) {
	d := demandValue(p.GetDemand())
	return int64(len(p.GetSpec())) + d.bytes(), filesBytes(v, offered, p.GetBundle())
}

// replacedBytes returns the bytes that a put of this content frees when it replaces record old. Former
// revisions are included if the content changes, because revise drops them first when the state is nearly
// full.
func (w *Workload) replacedBytes(v bundleView, content string) (specs, files int64) {
	specs, files = w.countedBytes(v)
	if w.Content == content {
		formerSpecs, formerFiles := w.formerBytes(v)
		specs, files = specs-formerSpecs, files-formerFiles
	}
	return specs, files
}

// spare returns how many more bytes the former specifications of a namespace may take. Former specifications are kept
// only while the state is at most warnAt percent full and the namespace uses at most warnAt percent of its
// max_spec_bytes, or else of its share of the state, so that present specifications always find room. Specifications
// that the same command stores later count as present ones.
func (t *Tx) spare(namespace string) int64 {
	s, spare := t.state(), int64(math.MaxInt64/2)
	room, p := s.Room(), s.PolicyIn(namespace)
	if room.Memory > 0 {
		spare = room.Bytes/100*warnAt - s.Total().Bytes - t.growth
	}
	switch share := t.shares.Namespace; {
	case p != nil && p.MaxSpecBytes > 0:
		spare = min(spare, p.MaxSpecBytes/100*warnAt-s.UseOf(namespace).Bytes-t.growth)
	case room.Memory > 0 && share > 0:
		spare = min(spare, room.percent(share).Bytes/100*warnAt-s.UseOf(namespace).Bytes-t.growth)
	}
	return spare
}

// grows returns the bytes by which the put p makes the state larger when it replaces old, which may be nil, without former
// revisions.
func (t *Tx) grows(p *commandv1.WorkloadPut, old *Workload) int64 {
	specs, files := putBytes(t.state(), t.offered, p)
	by := specs + files
	if old != nil {
		specs, files = old.countedBytes(t.state())
		formerSpecs, formerFiles := old.formerBytes(t.state())
		by -= specs + files - formerSpecs - formerFiles
	}
	return max(0, by)
}

// countBytes adds by to the use of a namespace and, without the files of stacks, to the size of the whole state.
func (t *Tx) countBytes(namespace string, by, files int64) {
	if by == 0 && files == 0 {
		return
	}
	m := own(t, &t.r.uses, ownUses)
	u := t.state().UseOf(namespace)
	u.Bytes += by + files
	t.r.total.Bytes += by
	if u == (Use{}) {
		m.Delete(namespace)
		return
	}
	m.Set(namespace, &u)
}

// sizes holds, for each namespace, the bytes that an update takes.
type sizes []sizeIn

type sizeIn struct {
	namespace    string
	specs, files int64
	bundles      []string // bundles that files includes
}

// rolloutSizes returns the sizes of the specifications that an update keeps: those that wait for their turn, and the
// former ones. Files that several of them share count once in each namespace.
func rolloutSizes(v bundleView, r *rollout.Rollout) (all sizes) {
	if r == nil {
		return nil
	}
	for i := range r.Members {
		if p := r.Members[i].Put; p != nil {
			all = all.add(v, nil, p.GetNamespace(), p)
		}
	}
	for _, p := range r.Former {
		all = all.add(v, nil, p.GetNamespace(), p)
	}
	return all
}

func (all sizes) add(v bundleView, offered []*commandv1.Bundle, namespace string, p *commandv1.WorkloadPut) sizes {
	namespace = cmp.Or(namespace, DefaultNamespace)
	i := slices.IndexFunc(all, func(s sizeIn) bool { return s.namespace == namespace })
	if i < 0 {
		i, all = len(all), append(all, sizeIn{namespace: namespace})
	}
	s := &all[i]
	s.specs += int64(p.SizeVT())
	if b := p.GetBundle(); b != "" && !slices.Contains(s.bundles, b) {
		s.bundles = append(s.bundles, b)
		s.files += filesBytes(v, offered, b)
	}
	return all
}

// times returns the list with all sizes multiplied by n.
func (all sizes) times(n int64) sizes {
	out := slices.Clone(all)
	for i := range out {
		out[i].specs, out[i].files = n*out[i].specs, n*out[i].files
	}
	return out
}

func (t *Tx) countRollout(r *rollout.Rollout, n int64) {
	for _, s := range rolloutSizes(t.state(), r) {
		t.countBytes(s.namespace, n*s.specs, n*s.files)
	}
}
