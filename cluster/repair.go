package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"

	"github.com/persys/compute/pki"
)

const (
	// RepairEvery is the shortest time between two repairs of one replica. If the data is damaged again
	// sooner, the disk is probably bad.
	RepairEvery = time.Hour
	// maxAside is the maximum number of folders with damaged data that a data directory may hold. An
	// operator has to remove them.
	maxAside = 3
	damaged  = "raft.damaged-"
	// asideTime is the layout of the UTC time in the name of a folder with damaged data.
	asideTime = "20060102T150405Z"
	// repairPauses times Timing.Reconcile is the longest pause between two attempts to repair.
	repairPauses = 60
)

// ErrNoRepair: this replica must not or cannot repair itself, and waiting does not change that.
var ErrNoRepair = errors.New("this replica does not repair itself")

// Repair prepares a replica whose data is damaged to join its cluster anew. damage is the error of Open, an
// ErrCorrupt. Repair moves the Raft directory aside once that loses no acknowledged write. No write can be lost when
// the leader has proven its leadership without this replica's vote, and a majority of all voters is healthy and
// reachable. Until then Repair waits, and calls waiting with the reason after each attempt. Repair returns nil when
// Open can be called again: it has moved the damaged data aside, or somebody has changed the data meanwhile.
//
// At the next start the replica gets a new Raft id, joins as a non-voter, catches up and becomes a voter.
// Only the Raft directory is moved: keys and certificates stay.
func Repair(ctx context.Context, cfg Config, damage error, waiting func(why error)) error {
	return repair(ctx, cfg, damage, waiting, hooks{})
}

func repair(ctx context.Context, cfg Config, damage error, waiting func(error), hooks hooks) (err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	n := newNode(cfg)
	defer func() { err = errors.Join(err, n.Close()) }()
	if n.lock, err = lockDir(cfg.DataDir); err != nil {
		return err
	}
	r, err := newRepairer(n, damage, hooks)
	if err != nil {
		return err
	}
	n.id = r.note.Replica
	n.learned.Store(&r.note.Cluster)
	n.port = newPort(n, hooks)
	said := ""
	for pause := cfg.Timing.Reconcile; ; pause = min(2*pause, repairPauses*cfg.Timing.Reconcile) {
		err := r.attempt(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w; the repair had not begun: %w", damage, ctx.Err())
		case errors.Is(err, ErrNoRepair):
			return err
		}
		if waiting(err); err.Error() != said {
			said = err.Error()
			n.log.Warn("the data of this replica is damaged; the repair waits", "damage", damage, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// repairer carries out one repair.
type repairer struct {
	n      *Node
	note   *note
	damage error
	dir    string // the Raft directory
	print  uint64 // fingerprint of dir when the repair began
	rename func(from, to string) error
	free   func(dir string) (bytes uint64, err error)
}

// newRepairer returns ErrNoRepair if this replica must not try to repair itself.
func newRepairer(n *Node, damage error, hooks hooks) (*repairer, error) {
	no := func(format string, args ...any) error {
		return fmt.Errorf("%w; %w: %w", damage, ErrNoRepair, fmt.Errorf(format, args...))
	}
	dir := n.cfg.DataDir
	r := &repairer{n: n, damage: damage, note: loadNote(dir), dir: filepath.Join(dir, RaftDir), rename: os.Rename, free: freeSpace}
	if hooks.rename != nil {
		r.rename = hooks.rename
	}
	if hooks.free != nil {
		r.free = hooks.free
	}
	t := r.note
	switch {
	case t == nil || t.Cluster == "" || t.Replica == "":
		return nil, no("%s, which names its cluster and the other replicas, is missing or damaged", filepath.Join(dir, peersFile))
	case n.cfg.ClusterID != "" && n.cfg.ClusterID != t.Cluster:
		return nil, no("%w: %s names cluster %q, SCHEDULER_CLUSTER_ID is %q", ErrWrongCluster, filepath.Join(dir, peersFile), t.Cluster, n.cfg.ClusterID)
	case len(t.others(t.Replica)) == 0:
		return nil, no("it was the only replica of its cluster, so no other replica has the data")
	}
	kept, err := asideFolders(dir)
	if err != nil {
		return nil, no("%w", err)
	}
	for _, name := range kept {
		at, err := time.Parse(asideTime, strings.TrimPrefix(name, damaged))
		if age := time.Since(at); err == nil && age.Abs() < RepairEvery {
			return nil, no("it moved damaged data aside %s ago (%s), and does so at most once in %s: check the disk", age.Round(time.Second), name, RepairEvery)
		}
	}
	if len(kept) >= maxAside {
		return nil, no("%s already holds %d folders with damaged data, the limit: check the disk, and remove %s*", dir, len(kept), damaged)
	}
	r.print, err = fingerprint(r.dir)
	if err != nil {
		return nil, no("%w", err)
	}
	return r, nil
}

// asideFolders lists the folders with damaged data in a data directory.
func asideFolders(dataDir string) ([]string, error) {
	found, err := os.ReadDir(dataDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range found {
		if strings.HasPrefix(f.Name(), damaged) {
			names = append(names, f.Name())
		}
	}
	return names, nil
}

// fingerprint returns a hash over the names, sizes and times of the files in the Raft directory. It shows
// whether somebody has changed, removed or replaced a file.
func fingerprint(dir string) (uint64, error) {
	var d xxhash.Digest
	d.Reset()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&d, path, st.Size(), st.ModTime().UnixNano())
		return nil
	})
	return d.Sum64(), err
}

// attempt tries to repair. Its error is the reason to wait and try again, or ErrNoRepair.
func (r *repairer) attempt(ctx context.Context) error {
	if now, err := fingerprint(r.dir); errors.Is(err, os.ErrNotExist) || err == nil && now != r.print {
		r.n.log.Info("the Raft directory was changed meanwhile; it is opened again", "dir", r.dir)
		return nil
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*r.n.cfg.Timing.RPC)
	defer cancel()
	q, err := r.ask(ctx)
	if err != nil {
		return err
	}
	if err := q.lacks(r.reached(ctx, q)); err != nil {
		return err
	}
	if err := r.room(); err != nil {
		return err
	}
	return r.moveAside(q)
}

// quorum is a leader's description of its cluster for a replica whose data is damaged.
type quorum struct {
	// Leads: after the damaged replica asked, the leader has committed a barrier without it. So a majority of voters,
	// with the leader, has every acknowledged write.
	Leads  bool     `json:"leads"`
	Term   uint64   `json:"term"`
	Voters int      `json:"voters"` // number of voters in the configuration, including the damaged replica
	Others []member `json:"others"` // the other servers of the Raft configuration
	// Refusal is the reason why the damaged replica must not repair itself, now or later; "" if there is
	// none.
	Refusal string `json:"refusal,omitempty"`
}

type member struct {
	knownServer
	Voter   bool `json:"voter"`
	Healthy bool `json:"healthy"`
}

// lacks returns an error if too few voters are both healthy, as the leader reports, and reachable from this replica.
// reached maps each voter to the result of dialling it: nil, or the error.
func (q *quorum) lacks(reached map[string]error) error {
	need, have := q.Voters/2+1, 0
	var why []string
	for _, m := range q.Others {
		err, asked := reached[m.ID]
		switch {
		case !m.Voter:
		case !m.Healthy:
			why = append(why, m.called()+" does not answer the leader")
		case err != nil:
			why = append(why, m.called()+": "+err.Error())
		case asked:
			have++
		}
	}
	switch {
	case have >= need:
		return nil
	case need > q.Voters-1:
		return fmt.Errorf("of %d voters %d must be healthy, so the cluster cannot work without this replica", q.Voters, need)
	}
	return fmt.Errorf("%d of %d voters must be healthy without this replica, and %d are (%s)", need, q.Voters, have, strings.Join(why, "; "))
}

func (s *knownServer) called() string {
	if s.Name != "" {
		return s.Name
	}
	return s.ID
}

// answerRepair answers opRepair, the question of a replica whose data is damaged.
func (n *Node) answerRepair(h *Hello, res *response) error {
	if h == nil || h.ID == "" {
		return errors.New("repair: who?")
	}
	self := n.hello()
	res.Hello = &self
	if l, ok := n.Leader(); ok {
		res.Leader = l.RaftAddr
	}
	if !n.IsLeader() {
		return nil
	}
	if n.Restoring() {
		return errors.New("the whole state is being replaced")
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timing.RPC*9/10)
	defer cancel()
	// Read the configuration before Confirm. If Confirm succeeds, this replica led when it read the
	// configuration.
	q := &quorum{Term: n.raft.CurrentTerm()}
	member := false
	for _, s := range n.servers() {
		votes := s.Suffrage == raft.Voter
		if votes {
			q.Voters++
		}
		if string(s.ID) == h.ID {
			member = true
			continue
		}
		q.Others = append(q.Others, n.memberOf(s, votes))
	}
	switch {
	case !member:
		q.Refusal = fmt.Sprintf("cluster %s has no replica %s any more: it was removed, or the data directory is an old copy", self.ClusterID, h.ID)
	case n.healthy(raft.ServerID(h.ID)):
		return fmt.Errorf("replica %s (%s) answers heartbeats: another process uses a copy of its data", h.ID, h.Name)
	}
	if _, err := n.Confirm(ctx); err != nil {
		return fmt.Errorf("the leader cannot prove that it leads: %w", err)
	}
	q.Leads = true
	res.Cluster = q
	return nil
}

func (n *Node) memberOf(s raft.Server, votes bool) member {
	m := member{knownServer: knownServer{ID: string(s.ID), Raft: string(s.Address)}, Voter: votes, Healthy: n.healthy(s.ID)}
	if p, ok := n.Store().View().Replica(m.ID); ok {
		m.Name, m.Gossip = p.Name, p.GossipAddr
	}
	return m
}

// ask asks the other replicas which of them leads, and then asks the leader for the members of the cluster.
func (r *repairer) ask(ctx context.Context) (*quorum, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var best *quorum
	leaders := map[string]bool{}
	var silent []string
	one := func(name, addr string) {
		defer wg.Done()
		res, err := r.call(ctx, addr)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			silent = append(silent, fmt.Sprintf("%s: %v", name, err))
		case res.Cluster != nil:
			if best == nil || res.Cluster.Term > best.Term {
				best = res.Cluster
			}
		case res.Leader != "":
			leaders[res.Leader] = true
		default:
			silent = append(silent, name+" knows no leader")
		}
	}
	asked := map[string]bool{}
	for _, s := range r.note.others(r.note.Replica) {
		asked[s.Raft] = true
		wg.Add(1)
		go one(s.called(), s.Raft)
	}
	wg.Wait()
	if best == nil { // the leader's address in peers.json may be out of date, or it may have joined later
		for addr := range leaders {
			if !asked[addr] {
				wg.Add(1)
				go one("the leader", addr)
			}
		}
		wg.Wait()
	}
	switch {
	case best == nil:
		slices.Sort(silent)
		return nil, fmt.Errorf("no leader answers for cluster %s (%s)", r.note.Cluster, strings.Join(silent, "; "))
	case best.Refusal != "":
		return nil, fmt.Errorf("%w; %w: %s; to join as a new replica, delete the content of %s", r.damage, ErrNoRepair, best.Refusal, r.n.cfg.DataDir)
	case !best.Leads:
		return nil, errors.New("the leader has not proven that it leads")
	}
	return best, nil
}

func (r *repairer) call(ctx context.Context, addr string) (*response, error) {
	self := &Hello{ID: r.note.Replica, Name: r.n.cfg.Name, ClusterID: r.note.Cluster}
	res, err := r.n.peers.call(ctx, "", addr, &request{Op: opRepair, Hello: self})
	if err != nil {
		return nil, err
	}
	if res.Hello == nil || res.Hello.ClusterID != r.note.Cluster {
		return nil, fmt.Errorf("%w: %s does not belong to cluster %s", ErrWrongCluster, addr, r.note.Cluster)
	}
	return res, nil
}

// reached asks each healthy voter who it is. The result maps a voter to nil, or to the error if it did not
// prove its identity.
func (r *repairer) reached(ctx context.Context, q *quorum) map[string]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]error{}
	for _, m := range q.Others {
		if !m.Voter || !m.Healthy {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			h, err := r.n.greetPeer(ctx, m.Raft)
			if err == nil && (h.ID != m.ID || h.ClusterID != r.note.Cluster) {
				err = fmt.Errorf("%s is replica %s of cluster %q", m.Raft, h.ID, h.ClusterID)
			}
			mu.Lock()
			defer mu.Unlock()
			out[m.ID] = err
		}()
	}
	wg.Wait()
	return out
}

// room returns an error if the disk has too little space for the data that the replica will
// receive, because the damaged data is kept.
func (r *repairer) room() error {
	var used uint64
	err := filepath.WalkDir(r.dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		if is, ok := st.Sys().(*syscall.Stat_t); ok {
			used += uint64(is.Blocks) * 512
		}
		return nil
	})
	if err != nil {
		return err
	}
	free, err := r.free(r.n.cfg.DataDir)
	if err != nil {
		return fmt.Errorf("free space of %s: %w", r.n.cfg.DataDir, err)
	}
	if free < used {
		return fmt.Errorf("the disk of %s has %d MiB free, and the new data may need as much space as the damaged data, which is kept: %d MiB", r.n.cfg.DataDir, free>>20, used>>20)
	}
	return nil
}

func freeSpace(dir string) (uint64, error) {
	var disk syscall.Statfs_t
	err := syscall.Statfs(dir, &disk)
	return disk.Bavail * uint64(disk.Bsize), err
}

// moveAside records the repair in peers.json and then moves the Raft directory. If the process ends between
// the two steps, the next start finds the damaged data and repairs again. If it ends after both, the next
// start joins the cluster.
func (r *repairer) moveAside(q *quorum) error {
	now := time.Now().UTC().Truncate(time.Second)
	t := *r.note
	t.Repair = &Repaired{Of: t.Replica, Damage: r.damage.Error(), Aside: damaged + now.Format(asideTime), At: now}
	t.Servers = []knownServer{{ID: t.Replica, Name: r.n.cfg.Name}}
	for _, m := range q.Others[:min(len(q.Others), maxKnownServers-1)] {
		t.Servers = append(t.Servers, m.knownServer)
	}
	dir := r.n.cfg.DataDir
	if err := t.store(dir); err != nil {
		return err
	}
	if err := r.rename(r.dir, filepath.Join(dir, t.Repair.Aside)); err != nil {
		return err
	}
	if err := pki.SyncDir(dir); err != nil {
		return err
	}
	r.n.log.Warn("the damaged data was moved aside; this replica joins its cluster anew", "damage", r.damage,
		"kept_in", filepath.Join(dir, t.Repair.Aside), "previous", t.Replica, "cluster", t.Cluster)
	return nil
}
