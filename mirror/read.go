package mirror

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/persys/compute/fsm"
)

// Imported is the content of an etcd that was written by this mirror or by legacy v1
// peers. Lists are sorted by id.
type Imported struct {
	Cluster     string // id of the cluster that owns the mirror; "" if written by legacy v1 peers
	Incarnation uint64 // incarnation of the cluster; 0 if written by legacy v1 peers
	Index       uint64 // index of the state; 0 if written by legacy v1 peers
	Complete    bool   // etcd holds the whole state: the cursor is complete and has no "upto"
	Nodes       []Node
	Namespaces  []Namespace
	Bundles     map[string][]byte // sealed files of Compose stacks by their digest
	Workloads   []Workload        // workloads with their assignment and retry records
	Assignments []Assignment      // assignments of workloads that have a record
	Events      int
	Drifts      int
	Problems    []Problem
}

// Problem is a key that was not imported, and the reason.
type Problem struct {
	Key    string
	Reason string
}

// Read reads the content of an etcd under a prefix. A workload may have a whole record, under /workloads/,
// and split records, under /workloads-spec/ and /workloads-status/. In an etcd that this mirror wrote, Read
// uses the whole record. In an etcd of legacy v1 peers it uses the split records, because later versions of
// these peers do not update the whole record. If only one form exists, Read uses it. For each unreadable
// record Read returns a Problem. Read fails if the prefix is invalid or etcd cannot be read.
func Read(ctx context.Context, kv Etcd, prefix string) (Imported, error) {
	keys, err := newKeyspace(prefix)
	if err != nil {
		return Imported{}, err
	}
	r := reader{
		server: server{kv: kv, limit: callLimit, bound: 2 * callLimit, pause: callLimit / 10}, keys: keys,
		nodes: map[string]Node{}, whole: map[string]Workload{}, specs: map[string]Workload{}, statuses: map[string]WorkloadStatus{},
		assignments: map[string]Assignment{}, retries: map[string]Retry{}, namespaces: map[string]Namespace{},
		volumes: map[string]Volume{}, attachments: map[string]VolumeUse{},
	}
	r.out.Bundles = map[string][]byte{}
	if err := r.identity(ctx); err != nil {
		return Imported{}, err
	}
	for _, d := range [...]struct {
		dir  string
		take func(id string, value []byte) error
	}{
		{dirNodes, r.node},
		{dirWorkloads, func(id string, v []byte) error { return decodeInto(r.whole, id, v) }},
		{dirSpecs, func(id string, v []byte) error { return decodeInto(r.specs, id, v) }},
		{dirStatuses, func(id string, v []byte) error { return decodeInto(r.statuses, id, v) }},
		{dirAssignments, func(id string, v []byte) error { return decodeInto(r.assignments, id, v) }},
		{dirRetries, func(id string, v []byte) error { return decodeInto(r.retries, id, v) }},
		{dirNamespaces, func(name string, v []byte) error { return decodeInto(r.namespaces, name, v) }},
		{dirBundles, func(digest string, v []byte) error { r.out.Bundles[digest] = v; return nil }},
		{dirVolumes, func(id string, v []byte) error { return decodeInto(r.volumes, id, v) }},
		{dirAttachments, func(id string, v []byte) error { return decodeInto(r.attachments, id, v) }},
		{dirEvents, func(string, []byte) error { r.out.Events++; return nil }},
		{dirDrifts, func(string, []byte) error { r.out.Drifts++; return nil }},
	} {
		if err := r.scan(ctx, d.dir, d.take); err != nil {
			return Imported{}, err
		}
	}
	return r.finish(), nil
}

type reader struct {
	server      server
	keys        keyspace
	out         Imported
	nodes       map[string]Node
	whole       map[string]Workload
	specs       map[string]Workload // the split spec record has a subset of the fields of Workload
	statuses    map[string]WorkloadStatus
	assignments map[string]Assignment
	retries     map[string]Retry
	namespaces  map[string]Namespace
	volumes     map[string]Volume
	attachments map[string]VolumeUse
}

// identity reads the owner key and the cursor key, if they exist.
func (r *reader) identity(ctx context.Context) error {
	g, err := r.server.get(ctx, r.keys.owner())
	if err != nil || len(g.Kvs) == 0 {
		return err
	}
	o, err := parseOwner(string(g.Kvs[0].Value))
	if err != nil {
		r.problem(r.keys.owner(), err)
		return nil
	}
	r.out.Cluster = o.ClusterID
	key := r.keys.cursor(o.ClusterID)
	if g, err = r.server.get(ctx, key); err != nil || len(g.Kvs) == 0 {
		return err
	}
	c, err := parseCursor(string(g.Kvs[0].Value))
	if err != nil {
		r.problem(key, err)
		return nil
	}
	r.out.Incarnation, r.out.Index, r.out.Complete = c.Incarnation, c.Index, c.Complete && c.Upto == 0
	return nil
}

func (r *reader) problem(key string, err error) {
	r.out.Problems = append(r.out.Problems, Problem{key, err.Error()})
}

func (r *reader) scan(ctx context.Context, dir string, take func(id string, value []byte) error) error {
	prefix := string(r.keys) + dir
	pages := r.server.pages(prefix, prefixEnd(prefix))
	for {
		kv, err := pages.peek(ctx)
		if err != nil || kv == nil {
			return err
		}
		pages.advance()
		if err := take(strings.TrimPrefix(string(kv.Key), prefix), kv.Value); err != nil {
			r.problem(string(kv.Key), err)
		}
	}
}

// node decodes a node record and skips the plain-text keys below the key of the node.
func (r *reader) node(id string, value []byte) error {
	if strings.HasSuffix(id, nodeStatusEnd) || strings.HasSuffix(id, nodeLeaseEnd) {
		return nil
	}
	return decodeInto(r.nodes, id, value)
}

func decodeInto[T any](m map[string]T, id string, value []byte) error {
	var v T
	if err := json.Unmarshal(value, &v); err != nil {
		return fmt.Errorf("the value is not the documented JSON: %w", err)
	}
	m[id] = v
	return nil
}

// finish merges the records that belong to one workload or node, and sorts the lists.
func (r *reader) finish() Imported {
	for id, n := range r.nodes {
		n.NodeID = orElse(n.NodeID, id)
		if n.Status == "Active" {
			n.Status = string(fsm.NodeReady) // legacy v1 peers call the state Ready "Active"
		}
		r.out.Nodes = append(r.out.Nodes, n)
	}
	for name, n := range r.namespaces {
		n.Name = orElse(n.Name, name)
		r.out.Namespaces = append(r.out.Namespaces, n)
	}
	for id, w := range r.whole {
		if spec, ok := r.specs[id]; ok && r.out.Cluster == "" {
			w = r.split(id, spec, w)
		}
		r.workload(id, w)
	}
	for id, spec := range r.specs {
		if _, ok := r.whole[id]; !ok {
			r.workload(id, r.split(id, spec, Workload{}))
		}
	}
	for id, s := range r.statuses {
		_, whole := r.whole[id]
		if _, spec := r.specs[id]; !whole && !spec {
			r.out.Problems = append(r.out.Problems, Problem{
				r.keys.key(dirStatuses, id), fmt.Sprintf("there is a status record (%s), but no specification", s.Status),
			})
		}
	}
	slices.SortFunc(r.out.Nodes, func(a, b Node) int { return strings.Compare(a.NodeID, b.NodeID) })
	slices.SortFunc(r.out.Namespaces, func(a, b Namespace) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(r.out.Workloads, func(a, b Workload) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(r.out.Assignments, func(a, b Assignment) int { return strings.Compare(a.WorkloadID, b.WorkloadID) })
	slices.SortFunc(r.out.Problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return r.out
}

// split merges the spec record and the status record of a workload. Fields that neither of them has (the
// contract calls them "lost") come from the whole record, if it exists.
func (r *reader) split(id string, w, whole Workload) Workload {
	s := r.statuses[id]
	w.AssignedNode, w.NodeID, w.Status, w.Logs = s.AssignedNode, s.NodeID, s.Status, s.Logs
	w.Metadata, w.Retry, w.StatusInfo = s.Metadata, s.Retry, s.StatusInfo
	w.ManagedVolumes, w.Extension = whole.ManagedVolumes, whole.Extension
	if w.CreatedAt.IsZero() {
		w.CreatedAt = whole.CreatedAt
	}
	if w.CreatedAt.IsZero() {
		if text, ok := w.Metadata["created_at"].(string); ok {
			if t, err := time.Parse(time.RFC3339, text); err == nil {
				w.CreatedAt = Time{t.UTC()}
			}
		}
	}
	return w
}

func (r *reader) workload(id string, w Workload) {
	w.ID = orElse(w.ID, id)
	if a, ok := r.assignments[id]; ok {
		a.WorkloadID = orElse(a.WorkloadID, id)
		r.out.Assignments = append(r.out.Assignments, a)
		w.AssignedNode, w.NodeID = a.NodeID, a.NodeID
	}
	if retry, ok := r.retries[id]; ok {
		w.Retry = retry
	}
	w.Logs = "" // logs may be of any size, and the state has none
	if w.Extension == nil && len(w.ManagedVolumes) == 0 && (w.VM == nil || len(w.VM.ManagedVolumes) == 0) {
		w.ManagedVolumes = r.attached(id)
	}
	r.out.Workloads = append(r.out.Workloads, w)
}

// attached returns the managed volumes of a workload, sorted by name. It finds them in the records of volumes
// and attachments. The split records of a workload do not contain them.
func (r *reader) attached(id string) (out []ManagedVolume) {
	for _, a := range r.attachments {
		v, ok := r.volumes[a.VolumeID]
		if a.WorkloadID != id || !ok || v.Name == "" || a.Phase == "Detached" {
			continue
		}
		out = append(out, ManagedVolume{
			Name: v.Name, Driver: v.Driver, SizeGB: v.SizeGB, AccessMode: v.AccessMode, FSType: v.FSType,
			MountPath: a.MountPath, ReadOnly: a.ReadOnly, RetainPolicy: v.RetainPolicy,
		})
	}
	slices.SortFunc(out, func(a, b ManagedVolume) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(out, func(a, b ManagedVolume) bool { return a.Name == b.Name })
}
