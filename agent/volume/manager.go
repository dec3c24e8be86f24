package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/order"
)

// DefaultPool is the name of a node's first pool.
const DefaultPool = "root"

// PoolConfig is a storage pool for local volumes: a folder, and the file system that holds it.
type PoolConfig struct{ Name, Path string }

// Config of a machine's storage.
type Config struct {
	// Pools are the pools for local volumes. The first is the default. At least one is required.
	Pools []PoolConfig
	NFS   NFSConfig
	Ceph  CephConfig
	// Node is the id of this node. On storage that several nodes share, the manager writes it into the mark
	// files that say who uses a volume.
	Node string
	// Timeout is the time limit of one program such as mount; default 2 min.
	Timeout time.Duration
	System  System // default: Machine
	Logger  *slog.Logger
}

// Manager manages the volumes of a machine. It is safe for concurrent use.
type Manager struct {
	sys     System
	node    string
	timeout time.Duration
	log     *slog.Logger
	store   Store
	kinds   map[string]provider
	pools   []PoolConfig
	nfs     *nfs
	ceph    *ceph

	mu          sync.Mutex
	volumes     map[string]Volume
	attachments map[string]Attachment
	locks       map[string]*sync.Mutex    // locks by volume id: changes of one volume are made one after another
	figures     map[string]Space          // space of each pool as last measured
	lacks       map[string]string         // volume drivers that the node does not offer, each with the reason
	moves       map[order.Generation]bool // moves that have not ended, as the schedulers last said
	measuring   map[string]bool           // volume drivers of which a measurement is in progress
	reported    []string                  // the facts that the last Measure reported, as the method offer returns them
}

// New makes a manager from the records of the store.
func New(cfg Config, store Store, have Records) (*Manager, error) {
	if len(cfg.Pools) == 0 {
		return nil, errors.New("storage: at least one pool for local volumes is needed")
	}
	seen := map[string]bool{"nfs": true}
	for _, p := range cfg.Pools {
		if !namePattern.MatchString(p.Name) || seen[p.Name] {
			return nil, fmt.Errorf("PERSYS_STORAGE_POOLS: name %q is taken, or does not match %s", p.Name, namePattern)
		}
		if !strings.HasPrefix(p.Path, "/") || p.Path == "/" {
			return nil, fmt.Errorf("PERSYS_STORAGE_POOLS: %s: %q must be an absolute path of a folder", p.Name, p.Path)
		}
		seen[p.Name] = true
	}
	m := &Manager{
		sys: cfg.System, node: cfg.Node, timeout: cmp.Or(cfg.Timeout, 2*time.Minute), log: cfg.Logger, store: store, pools: cfg.Pools,
		volumes: map[string]Volume{}, attachments: map[string]Attachment{}, locks: map[string]*sync.Mutex{},
		figures: map[string]Space{}, lacks: map[string]string{}, measuring: map[string]bool{},
	}
	if m.sys == nil {
		m.sys = Machine{}
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	m.nfs, m.ceph = &nfs{m: m, cfg: cfg.NFS}, &ceph{m, cfg.Ceph}
	m.kinds = map[string]provider{Local: &local{m, cfg.Pools}, NFS: m.nfs, Ceph: m.ceph}
	for _, v := range have.Volumes {
		if v.Form == "" {
			v.Form = Folder
		}
		v.Driver = driverOf(v.Driver)
		m.volumes[v.ID] = v
	}
	for _, a := range have.Attachments {
		m.attachments[a.ID] = a
		// The volume records of legacy v1 agents do not name the volume's owner, so use the workload that
		// uses the volume.
		if v, ok := m.volumes[a.VolumeID]; ok && v.Owner == "" {
			v.Owner, v.Phase, v.Retain = a.WorkloadID, Attached, true // the volume is retained until a specification says what its policy is
			m.volumes[v.ID] = v
		}
	}
	for _, k := range []string{NFS, Ceph} {
		m.lacks[k] = notLooked
	}
	return m, nil
}

// lock locks a volume for a change.
func (m *Manager) lock(id string) (unlock func()) {
	m.mu.Lock()
	l := m.locks[id]
	if l == nil {
		l = &sync.Mutex{}
		m.locks[id] = l
	}
	m.mu.Unlock()
	l.Lock()
	return l.Unlock
}

// take locks a volume and returns its provider (the code for its kind of storage). Before it takes the lock,
// it connects to the server that all volumes of the provider share. So waiting for that server does not
// block other users of the volume.
func (m *Manager) take(ctx context.Context, id, kind string) (p provider, unlock func()) {
	if p = m.kinds[kind]; p != nil {
		if err := p.connect(ctx); err != nil {
			p = unconnected{p, err}
		}
	}
	return p, m.lock(id)
}

// takeKnown locks a volume as take does, but only if the volume has a record; ok is false if it has none. p is
// nil if the volume's driver is unknown.
func (m *Manager) takeKnown(ctx context.Context, id string) (v Volume, ok bool, p provider, unlock func()) {
	v, _ = m.get(id)
	kind := v.Driver
	if v.StagePath == "" {
		kind = "" // local storage has no server to connect to
	}
	p, unlock = m.take(ctx, id, kind)
	if v, ok = m.get(id); p == nil {
		p = m.kinds[v.Driver]
	}
	return v, ok, p, unlock
}

func (m *Manager) get(id string) (Volume, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.volumes[id]
	return v, ok
}

// put stores the record of a volume on disk, and then in the manager's memory, where other calls see it.
func (m *Manager) put(v *Volume) error {
	v.UpdatedAt = time.Now().UTC()
	if err := m.store.PutVolume(*v); err != nil {
		return fmt.Errorf("the record of volume %q: %w", v.ID, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volumes[v.ID] = *v
	return nil
}

func (m *Manager) drop(id string) error {
	if err := m.store.DropVolume(id); err != nil {
		return fmt.Errorf("the record of volume %q: %w", id, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.volumes, id)
	return nil
}

func (m *Manager) attach(a Attachment) error {
	if err := m.store.PutAttachment(a); err != nil {
		return fmt.Errorf("the record of attachment %q: %w", a.ID, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attachments[a.ID] = a
	return nil
}

func (m *Manager) detach(id string) error {
	if err := m.store.DropAttachment(id); err != nil {
		return fmt.Errorf("the record of attachment %q: %w", id, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attachments, id)
	return nil
}

// users returns the attachments of a volume (one for each workload of this node that uses it), sorted by
// workload.
func (m *Manager) users(id string) []Attachment {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Attachment
	for _, a := range m.attachments {
		if a.VolumeID == id {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b Attachment) int { return strings.Compare(a.WorkloadID, b.WorkloadID) })
	return out
}

// promised returns the sum of the sizes of a pool's local volumes in GB, without the volume whose id is except.
func (m *Manager) promised(pool, except string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out int64
	for _, v := range m.volumes {
		if v.Phase == Provisioning && v.Error != "" && v.StagePath == "" {
			continue // not counted: storage for this volume was never made
		}
		if v.Driver == Local && v.ID != except && cmp.Or(v.Pool, m.pools[0].Name) == cmp.Or(pool, m.pools[0].Name) {
			out += v.SizeGB
		}
	}
	return out
}

// classed adds a failure class to an error that has none, and the id of the volume to its text.
func classed(class driver.Class, id string, err error) error {
	if err == nil {
		return nil
	}
	var typed *driver.Error
	if errors.As(err, &typed) {
		return err
	}
	if c := driver.Generic(err); c == driver.StorageFull {
		class = c
	}
	return &driver.Error{Class: class, Op: "volume " + id, Err: err}
}

// Attach makes the volumes of a workload ready: they exist, are mounted or mapped, and are recorded as used
// by the workload. It is called before every Ensure of a driver, and does only the steps that are missing.
// The result is in the order of the specification. namespace is that of the workload, "" for the default one;
// a volume of another namespace is never attached.
func (m *Manager) Attach(ctx context.Context, workload, namespace string, kind driver.Kind, specs []*agentv1.ManagedVolumeSpec) ([]driver.Volume, error) {
	namespace = cmp.Or(namespace, defaultNamespace)
	var out []driver.Volume
	for i, s := range specs {
		r, err := understand(kind, namespace, i, s)
		if err != nil {
			return nil, err
		}
		r.id = m.knownAs(workload, namespace, r.driver, r.name)
		one, err := m.attachOne(ctx, workload, r)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// knownAs returns the id of the volume that a workload calls by this name. It is the result of idOf, except for
// a volume that was made before ids contained the namespace: workloads that already use such a volume keep it.
func (m *Manager) knownAs(workload, namespace, driver, name string) string {
	id, former := idOf(namespace, driver, name), plainID(driver, name)
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.volumes[former]
	if _, made := m.volumes[id]; ok && !made && (v.Namespace == namespace || m.keeps(v, workload)) {
		return former
	}
	return id
}

// keeps reports whether a workload may use a volume because it already used it before volumes had a
// namespace. The caller holds the lock.
func (m *Manager) keeps(v Volume, workload string) bool {
	_, used := m.attachments[v.ID+":"+workload]
	return used || v.Namespace == "" && v.Owner == workload
}

// admits reports whether a workload of a namespace may use a volume.
func (m *Manager) admits(v Volume, workload, namespace string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return v.Namespace == namespace || v.Namespace == "" && namespace == defaultNamespace || m.keeps(v, workload)
}

func (m *Manager) attachOne(ctx context.Context, workload string, r request) (driver.Volume, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	p, unlock := m.take(ctx, r.id, r.driver)
	defer unlock()
	none := driver.Volume{}
	v, known := m.get(r.id)
	if !known {
		if err := m.distinct(r); err != nil {
			return none, err
		}
		v = Volume{
			ID: r.id, Name: r.name, Namespace: r.namespace, Driver: r.driver, SizeGB: r.sizeGB, Form: r.form, Pool: r.pool, FSType: r.fs,
			Phase: Provisioning, Owner: workload, CreatedAt: time.Now().UTC(),
		}
	}
	if err := m.useCopy(&v, r, known); err != nil {
		return none, err
	}
	if err := m.fits(&v, r, workload); err != nil {
		return none, err
	}
	before := v
	v.Owner, v.Namespace, v.Retain, v.ReleasedAt = workload, cmp.Or(v.Namespace, r.namespace), r.retain, time.Time{}
	v.ByHand = v.ByHand || r.byHand
	if v.Phase == Provisioning || v.Phase == Broken && v.StagePath == "" {
		if !v.Copy.IsZero() {
			return none, broken("volume %q was moved to this node, and its record has no folder: an empty volume is not made in its place", v.Name)
		}
		if err := m.put(&v); err != nil {
			return none, err
		}
		if err := p.provision(ctx, &v); err != nil {
			if driver.ClassOf(err) == driver.InvalidSpecification {
				v.StagePath, v.Device = "", "" // the path belongs to another volume and must not be deleted with this workload
			}
			return none, m.failed(&v, classed(driver.StorageProvisionFailed, v.ID, err))
		}
		v.Phase = Provisioned
		if err := m.put(&v); err != nil {
			return none, err
		}
	}
	a := Attachment{ID: r.id + ":" + workload, VolumeID: r.id, WorkloadID: workload, MountPath: r.mountPath, ReadOnly: r.readOnly, CreatedAt: time.Now().UTC()}
	m.mu.Lock()
	old, again := m.attachments[a.ID]
	m.mu.Unlock()
	if again {
		a.CreatedAt, a.StagePath, a.UpdatedAt = old.CreatedAt, old.StagePath, old.UpdatedAt
	}
	if !again || old.MountPath != a.MountPath || old.ReadOnly != a.ReadOnly {
		// Record the use before mounting, so that a used volume never looks unused.
		if err := m.attach(a); err != nil {
			return none, err
		}
	}
	if has := v.SizeGB; r.sizeGB > has {
		v.SizeGB = r.sizeGB
		if err := p.grow(ctx, &v); err != nil {
			v.SizeGB = has
			return none, m.failed(&v, classed(driver.StorageProvisionFailed, v.ID, err))
		}
	}
	path, disk, err := p.attach(ctx, &v, workload)
	if err != nil {
		return none, m.failed(&v, classed(driver.StorageAttachFailed, v.ID, err))
	}
	v.Phase, v.Error = Attached, ""
	if known := before; known.Phase != v.Phase || known.Error != "" || known.Owner != v.Owner || known.Namespace != v.Namespace || known.Retain != v.Retain || known.ByHand != v.ByHand ||
		known.SizeGB != v.SizeGB || known.Device != v.Device || known.StagePath != v.StagePath || !known.ReleasedAt.IsZero() {
		if err := m.put(&v); err != nil {
			return none, err
		}
	}
	if stage := path + disk; a.StagePath != stage {
		a.StagePath, a.UpdatedAt = stage, v.UpdatedAt
		if err := m.attach(a); err != nil {
			return none, err
		}
	}
	return driver.Volume{Name: r.name, Path: path, Disk: disk, MountPath: r.mountPath, ReadOnly: r.readOnly}, nil
}

// distinct returns an error if the new volume that r requests would be stored in the folder of an existing
// volume.
func (m *Manager) distinct(r request) error {
	wanted := Volume{ID: r.id, Name: r.name, Namespace: r.namespace, Driver: r.driver}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		if v.Driver == r.driver && v.ID != r.id && v.stored() == wanted.stored() {
			return invalid("volume %q would be stored as %q, where volume %q is stored already: choose another name", r.name, wanted.stored(), v.Name)
		}
	}
	return nil
}

// fits returns an error if the existing volume v, which has the requested name, cannot satisfy the
// request r.
func (m *Manager) fits(v *Volume, r request, workload string) error {
	was := map[Form]string{Folder: "a folder without size limit", Image: "a file system of fixed size", Disk: "a disk of a virtual machine"}
	switch {
	case !m.admits(*v, workload, r.namespace):
		return invalid("volume %q of this node belongs to namespace %q: choose another name", v.Name, v.Namespace)
	case v.Phase == Deleting:
		return broken("volume %q is being deleted", v.Name)
	case v.Form == Folder && r.form == Image:
		// The existing volume has no size limit, because a legacy v1 agent made it or its first order
		// named no size. It stays without a limit.
	case v.Form != r.form:
		return invalid("volume %q is %s and cannot become %s: choose another name", v.Name, was[v.Form], was[r.form])
	case r.pool != "" && v.Pool != "" && r.pool != v.Pool:
		return invalid("volume %q is in pool %q and cannot move to pool %q: choose another name", v.Name, v.Pool, r.pool)
	case v.Form != Folder && r.sizeGB < v.SizeGB:
		return invalid("volume %q has %d GB and cannot shrink to %d GB", v.Name, v.SizeGB, r.sizeGB)
	}
	if v.Form == Disk && !r.readOnly {
		for _, a := range m.users(v.ID) {
			if a.WorkloadID != workload && !a.ReadOnly {
				return classed(driver.StorageAttachFailed, v.ID, &inUse{volume: v.ID, by: "workload " + a.WorkloadID})
			}
		}
	}
	return nil
}

// failed stores the error in the record of a volume that could not be made ready, and returns it.
func (m *Manager) failed(v *Volume, err error) error {
	v.Error = clip(err.Error(), 400)
	if v.StagePath == "" || v.Phase == Provisioning {
		v.Phase = Provisioning // the next attempt provisions the volume from the start
	} else {
		v.Phase = Broken
	}
	return errors.Join(err, m.put(v))
}

// Trim is called once a workload runs as ordered. Volumes that its specification no longer names are released
// but not deleted. These volumes are deleted together with the workload, unless their policy is to retain them.
func (m *Manager) Trim(ctx context.Context, workload, namespace string, specs []*agentv1.ManagedVolumeSpec) error {
	namespace = cmp.Or(namespace, defaultNamespace)
	if err := m.disown(workload, namespace); err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, s := range specs {
		kind, name := driverOf(s.GetDriver()), strings.TrimSpace(s.GetName())
		keep[m.knownAs(workload, namespace, kind, name)] = true
	}
	for _, a := range m.of(workload) {
		if keep[a.VolumeID] {
			continue
		}
		if err := m.release(ctx, a.VolumeID, workload, Retention{Keep: true}); err != nil {
			return err
		}
	}
	return nil
}

// disown clears the owner of volumes that an earlier workload with the same id, but in another namespace,
// left on this node. So the delete of the present workload does not remove them.
func (m *Manager) disown(workload, namespace string) error {
	var left []Volume
	m.mu.Lock()
	for _, v := range m.volumes {
		if v.Owner == workload && v.Namespace != namespace && v.Namespace != "" && !m.keeps(v, workload) {
			left = append(left, v)
		}
	}
	m.mu.Unlock()
	for _, v := range left {
		unlock := m.lock(v.ID)
		v.Owner, v.Phase = "", Retained
		err := m.put(&v)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// of returns the attachments of one workload: one for each volume that it uses.
func (m *Manager) of(workload string) []Attachment {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Attachment
	for _, a := range m.attachments {
		if a.WorkloadID == workload {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b Attachment) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Retention says which volumes of a workload are deleted when the workload is removed from this node.
type Retention struct {
	// Keep: the workload runs on another node, so nothing is deleted.
	Keep bool
	// KeepShared: storage that other nodes can reach is not deleted, because it is unknown whether the
	// workload runs on another node.
	KeepShared bool
	// Purge: volumes with the policy retain are deleted too.
	Purge bool
	// Retain: a person deleted the workload without its volumes. They are kept until a person deletes them.
	Retain bool
}

// SetPolicies is called before Release. It sets the retain policies of the workload's volumes as its
// specification says. A volume that a legacy v1 agent made and this agent has never attached may lack the
// policy in its record. Volumes that no specification names are kept.
func (m *Manager) SetPolicies(workload, namespace string, kind driver.Kind, specs []*agentv1.ManagedVolumeSpec) error {
	namespace = cmp.Or(namespace, defaultNamespace)
	for i, s := range specs {
		r, err := understand(kind, namespace, i, s)
		if err != nil {
			continue // this volume was never attached
		}
		id := m.knownAs(workload, namespace, r.driver, r.name)
		unlock := m.lock(id)
		if v, ok := m.get(id); ok && v.Owner == workload && (v.Retain != r.retain || r.byHand && !v.ByHand) {
			v.Retain, v.ByHand = r.retain, v.ByHand || r.byHand
			err = m.put(&v)
		}
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// Release is called after a workload was removed. It ends the workload's use of all its volumes. It deletes
// those that no other workload uses, unless their policy or retention says that they are kept.
func (m *Manager) Release(ctx context.Context, workload string, retention Retention) error {
	ids := map[string]bool{}
	for _, a := range m.of(workload) {
		ids[a.VolumeID] = true
	}
	m.mu.Lock()
	for _, v := range m.volumes {
		if v.Owner == workload {
			ids[v.ID] = true
		}
	}
	m.mu.Unlock()
	var err error
	for id := range ids {
		err = errors.Join(err, m.release(ctx, id, workload, retention))
	}
	return err
}

func (m *Manager) release(ctx context.Context, id, workload string, retention Retention) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	v, ok, p, unlock := m.takeKnown(ctx, id)
	defer unlock()
	if !ok {
		return m.detach(id + ":" + workload) // a legacy v1 agent wrote this attachment, and the record has no volume
	}
	if p == nil {
		return broken("volume %q: driver %q is not known", id, v.Driver)
	}
	others := slices.DeleteFunc(m.users(id), func(a Attachment) bool { return a.WorkloadID == workload })
	if v.Phase != Provisioning && v.StagePath != "" {
		if err := p.release(ctx, &v, workload, len(others) == 0); err != nil {
			return classed(driver.StorageAttachFailed, id, err)
		}
	}
	if err := m.detach(id + ":" + workload); err != nil {
		return err
	}
	if len(others) > 0 {
		if v.Owner == workload {
			v.Owner = others[0].WorkloadID // when the next user of the volume is deleted, its policy decides whether the volume is kept
			return m.put(&v)
		}
		return nil
	}
	switch {
	case v.Phase == Moving && (retention.Keep || retention.Retain || v.Kept() && !retention.Purge):
		return nil // a complete copy that was never used stays until the schedulers say what happens to it
	case retention.Keep, retention.KeepShared && v.Driver != Local:
		v.Phase = Released
	case retention.Retain, v.Kept() && !retention.Purge:
		v.Phase, v.Owner, v.Retain = Retained, "", v.Retain || retention.Retain
	default:
		return m.destroy(ctx, p, &v)
	}
	v.ReleasedAt = time.Now().UTC()
	return m.put(&v)
}

// destroy deletes the storage and the record of a volume that no workload of this node uses.
func (m *Manager) destroy(ctx context.Context, p provider, v *Volume) error {
	if v.StagePath != "" {
		v.Phase = Deleting
		if err := m.put(v); err != nil {
			return err
		}
		err := p.remove(ctx, v)
		var used *inUse
		switch {
		case errors.As(err, &used) && used.itself:
			// Keep the volume in this node's list, because the node that still uses it may be lost, and
			// then nobody else deletes it.
			v.Phase, v.Owner, v.Error, v.ReleasedAt = Retained, "", clip(err.Error(), 400), time.Now().UTC()
			return m.put(v)
		case errors.As(err, &used):
			// Another node uses the volume now. That node deletes or keeps the volume when its workload is
			// deleted.
			m.log.Info("a shared volume stays for its other users", "volume", v.ID, "used_by", used.by)
		case err != nil:
			v.Error = clip(err.Error(), 400)
			return errors.Join(classed(driver.StorageAttachFailed, v.ID, err), m.put(v))
		}
	}
	return m.drop(v.ID)
}

// Delete deletes a volume that no workload uses, even if its policy is to retain it.
func (m *Manager) Delete(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	free := func(known bool) error {
		if !known {
			return ErrNoVolume
		}
		if users := m.users(id); len(users) > 0 {
			return &inUse{volume: id, by: "workload " + users[0].WorkloadID}
		}
		return nil
	}
	v, known := m.get(id)
	if err := free(known); err != nil {
		return err // a volume that this node does not have is an error before any server is called
	}
	if m.needed(&v) {
		return broken("volume %q: its move to another node has not ended, and this copy may be needed", v.Name)
	}
	var (
		p      provider
		unlock func()
	)
	v, known, p, unlock = m.takeKnown(ctx, id)
	defer unlock()
	if err := free(known); err != nil {
		return err
	}
	if p == nil {
		return broken("volume %q: driver %q is not known", id, v.Driver)
	}
	if v.StagePath != "" {
		if err := p.release(ctx, &v, "", true); err != nil {
			return err
		}
	}
	v.Phase = Deleting
	if err := m.put(&v); err != nil {
		return err
	}
	if v.StagePath != "" {
		if err := p.remove(ctx, &v); err != nil {
			v.Phase, v.Error = Retained, clip(err.Error(), 400)
			return errors.Join(err, m.put(&v))
		}
	}
	return m.drop(id)
}

// ErrNoVolume is returned by Delete if this node has no volume with the id.
var ErrNoVolume = errors.New("no such volume on this node")

// Mount mounts all volumes in use again after a reboot, so that their engines find them. It also completes
// deletes that were interrupted. Mount waits for each file server that does not answer. It logs failures and
// does not return them, because Attach tries again before every use and returns the error.
func (m *Manager) Mount(ctx context.Context) {
	m.mu.Lock()
	var all []Volume
	for _, v := range m.volumes {
		all = append(all, v)
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b Volume) int { return strings.Compare(a.ID, b.ID) })
	for _, v := range all {
		if err := m.mountOne(ctx, v.ID); err != nil && ctx.Err() == nil {
			m.log.Warn("a volume is not ready", "volume", v.ID, "err", err)
		}
	}
}

func (m *Manager) mountOne(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	if v, _ := m.get(id); v.Phase != Deleting && v.Aside.IsZero() && len(m.users(id)) == 0 {
		return nil
	}
	v, ok, p, unlock := m.takeKnown(ctx, id)
	defer unlock()
	if !ok || p == nil || v.StagePath == "" || v.Phase == Moving {
		return nil
	}
	if !v.Aside.IsZero() && v.Phase != Deleting {
		return putAside(&v)
	}
	users := m.users(id)
	if v.Phase == Deleting && len(users) == 0 {
		return m.destroy(ctx, p, &v)
	}
	for _, a := range users {
		if _, _, err := p.attach(ctx, &v, a.WorkloadID); err != nil {
			return err
		}
	}
	return nil
}

// View is a volume together with the workloads that use it.
type View struct {
	Volume
	Users []Attachment
}

// List returns every volume of this machine, sorted by id.
func (m *Manager) List() []View {
	m.mu.Lock()
	var out []View
	for _, v := range m.volumes {
		out = append(out, View{Volume: v})
	}
	m.mu.Unlock()
	slices.SortFunc(out, func(a, b View) int { return strings.Compare(a.ID, b.ID) })
	for i := range out {
		out[i].Users = m.users(out[i].ID)
	}
	return out
}
