package replica

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/replica/keyring"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/rpc/dial"
)

const (
	keysEvery = 250 * time.Millisecond
	keyCall   = 2 * time.Second // longest wait for the answer of another scheduler
	// resealBytes is the maximum size in bytes of the values in a Reseal command. A larger value is alone in its command.
	resealBytes = 256 << 10
)

// keyHolder is a replica with its report about the keys that it holds; err is set if it did not answer.
type keyHolder struct {
	replica *fsm.Replica
	report  *clusterv1.ClusterKeyResponse
	err     error
}

// followKeys carries out a rotation of the cluster key until ctx ends: on every replica it keeps the keys on disk as the
// state demands, and on the leader it also makes the next step. Everything that it needs is in the state and on the
// disks, so a new leader goes on where the former one ended.
func (r *Replica) followKeys(ctx context.Context) {
	t := time.NewTicker(keysEvery)
	defer t.Stop()
	said := ""
	for {
		if err := r.stepKeys(ctx); err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			r.log.Warn("the rotation of the cluster key waits; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (r *Replica) stepKeys(ctx context.Context) error {
	err := r.keys.Follow(ctx, r.fetchKey)
	info := r.node.Store().View().Info()
	if info.CleanIndex > 0 {
		err = errors.Join(err, r.node.DropBefore(info.CleanIndex))
	}
	if info.Rotating() && r.node.IsLeader() {
		err = errors.Join(err, r.advanceKeys(ctx, keyring.IsNotHeld(err)))
	}
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	r.keyFault.Store(&fault)
	return err
}

// fetchKey gets a key from another scheduler.
func (r *Replica) fetchKey(ctx context.Context, id string) (*pki.Key, error) {
	for _, h := range r.keyHolders(ctx, &clusterv1.ClusterKeyRequest{KeyId: id}) {
		if text := h.report.GetExported(); text != "" {
			return pki.ParseKey(text)
		}
	}
	return nil, keyring.NotHeld(id)
}

// shareKey stores a key on the disks of the other replicas, in parallel. It returns an error that names the replicas
// without the key if fewer than a majority of the replicas, this one included, have it.
func (r *Replica) shareKey(ctx context.Context, key *pki.Key) error {
	others := r.keyHolders(ctx, &clusterv1.ClusterKeyRequest{KeyId: key.ID(), Keep: key.Export()})
	var errs []error
	for _, h := range others {
		if h.err == nil && !slices.Contains(h.report.GetHeldKeyIds(), key.ID()) {
			h.err = errors.New("it runs a version that does not store keys for others")
		}
		if h.err != nil {
			errs = append(errs, fmt.Errorf("scheduler %s: %w", h.replica.Name, h.err))
		}
	}
	if total := len(others) + 1; total-len(errs) <= total/2 {
		return fmt.Errorf("a majority of the %d schedulers must have it on disk, and %d have it: %w", total, total-len(errs), errors.Join(errs...))
	}
	return nil
}

// keyHolders sends a request to all other replicas in parallel, for their reports and for a key.
func (r *Replica) keyHolders(ctx context.Context, req *clusterv1.ClusterKeyRequest) []keyHolder {
	var out []keyHolder
	v := r.node.Store().View()
	v.Replicas(func(p *fsm.Replica) bool {
		if p.ID != r.node.ID() && !rpc.SchedulerRevoked(v, p.Name) {
			out = append(out, keyHolder{replica: p})
		}
		return true
	})
	ctx, cancel := context.WithTimeout(ctx, keyCall)
	defer cancel()
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i].report, out[i].err = r.askHolder(ctx, out[i].replica.GRPCAddr, req) })
	}
	wg.Wait()
	return out
}

func (r *Replica) askHolder(ctx context.Context, addr string, req *clusterv1.ClusterKeyRequest) (*clusterv1.ClusterKeyResponse, error) {
	cc, err := dial.To(r.tls, addr, pki.Peer{Role: pki.RoleScheduler})
	if err != nil {
		return nil, err
	}
	defer cc.Close()
	return clusterv1.NewClusterClient(cc).ClusterKey(ctx, req)
}

// keyReport describes what this replica has on its disk, for the leader.
func (r *Replica) keyReport() *clusterv1.ClusterKeyResponse {
	own := r.keys.Report()
	out := &clusterv1.ClusterKeyResponse{HeldKeyIds: own.Held, SealsWith: own.Seals, Fault: own.Fault}
	files := []string{r.cfg.gossipRing()}
	if r.trust != nil {
		files = append(files, r.trust.rememberedPath())
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			out.Fault = cmp.Or(out.Fault, err.Error())
		}
		out.FileKeyIds = append(out.FileKeyIds, fsm.KeysNamed(b)...)
	}
	var err error
	if out.OldestIndex, err = r.node.Oldest(); err != nil {
		out.Fault = cmp.Or(out.Fault, err.Error())
	}
	return out
}

// allHolders returns the reports of all replicas, this one first.
func (r *Replica) allHolders(ctx context.Context, id string) []keyHolder {
	own := keyHolder{replica: &fsm.Replica{ID: r.node.ID(), Name: r.cfg.Name}, report: r.keyReport()}
	return append([]keyHolder{own}, r.keyHolders(ctx, &clusterv1.ClusterKeyRequest{KeyId: id})...)
}

// awaits says why the present step of a rotation waits for a replica, or that the replica does not answer; "" otherwise.
func (h *keyHolder) awaits(info *fsm.Info) string {
	if h.err != nil {
		return "does not answer"
	}
	if !info.Rotating() {
		for _, id := range info.RetiredKeyIDs {
			if slices.Contains(h.report.GetHeldKeyIds(), id) {
				return "has the file of retired key " + id
			}
		}
		return ""
	}
	lack := func(text string) string {
		if h.report.GetFault() != "" {
			return text + ": " + h.report.GetFault()
		}
		return text
	}
	for _, id := range []string{info.NextKeyID, info.ClusterKeyID, info.FormerKeyID} {
		if id != "" && !slices.Contains(h.report.GetHeldKeyIds(), id) {
			return lack("does not hold key " + id)
		}
	}
	switch {
	case info.NextKeyID != "":
		return ""
	case h.report.GetSealsWith() != info.ClusterKeyID:
		return lack("does not seal with key " + info.ClusterKeyID)
	case slices.Contains(h.report.GetFileKeyIds(), info.FormerKeyID):
		return lack("has files that are sealed under key " + info.FormerKeyID)
	case info.CleanIndex > 0 && h.report.GetOldestIndex() < info.CleanIndex:
		return lack("has log entries or snapshots from before the rotation")
	}
	return ""
}

// advanceKeys makes the next step of a rotation, on the leader. lost is set if this replica needs a key that no reachable
// scheduler holds.
func (r *Replica) advanceKeys(ctx context.Context, lost bool) error {
	v := r.node.Store().View()
	info := v.Info()
	if info.NextKeyID != "" && lost && r.keys.Held(info.NextKeyID) == nil {
		// The leader that made the key died before another replica had it. Nothing is sealed under it, so begin again.
		id, err := r.keys.Prepare()
		if err != nil {
			return err
		}
		return r.commitKeyStep(ctx, &commandv1.RotateClusterKey{Step: fsm.KeyBegin, KeyId: id, Replaces: info.NextKeyID})
	}
	if info.FormerKeyID != "" && info.CleanIndex == 0 {
		if left, err := r.resealSome(ctx, v, &info); left || err != nil {
			return err
		}
	}
	for _, h := range r.allHolders(ctx, cmp.Or(info.NextKeyID, info.ClusterKeyID)) {
		if why := h.awaits(&info); why != "" {
			return fmt.Errorf("scheduler %s %s", h.replica.Name, why)
		}
	}
	switch {
	case info.NextKeyID != "":
		return r.switchKey(ctx, v, &info)
	case info.CleanIndex == 0:
		return r.commitKeyStep(ctx, &commandv1.RotateClusterKey{Step: fsm.KeyResealed, KeyId: info.FormerKeyID})
	}
	return r.commitKeyStep(ctx, &commandv1.RotateClusterKey{Step: fsm.KeyFinish, KeyId: info.FormerKeyID})
}

// switchKey makes the new key the cluster key. The initial gossip key is derived from the cluster key, so gossip must
// first have a key of its own.
func (r *Replica) switchKey(ctx context.Context, v fsm.View, info *fsm.Info) error {
	key, err := r.keys.Key()
	if err != nil {
		return err
	}
	if !r.cfg.Insecure {
		ring, err := pki.OpenGossipRing(key, info.GossipRing)
		if err != nil {
			return err
		}
		if !ring.Settled() {
			return fmt.Errorf("the rotation to gossip key %s is in progress", ring.Newest())
		}
		if ring.Newest() == pki.FirstGossipKey {
			next, err := ring.Add(rpc.GossipAgainst(v))
			if err != nil {
				return err
			}
			return r.setGossip(ctx, key, next, info.GossipVersion, "opens "+next.Newest()+": the cluster key is replaced")
		}
	}
	next := r.keys.Held(info.NextKeyID)
	if next == nil {
		return keyring.NotHeld(info.NextKeyID)
	}
	content, err := key.SealContentKey(next)
	if err != nil {
		return err
	}
	return r.commitKeyStep(ctx, &commandv1.RotateClusterKey{Step: fsm.KeySwitch, KeyId: next.ID(), ContentKey: content})
}

func (r *Replica) commitKeyStep(ctx context.Context, step *commandv1.RotateClusterKey) error {
	ctx, cancel := context.WithTimeout(ctx, trustCall)
	defer cancel()
	return r.propose(ctx, "leader", &commandv1.Command{Body: &commandv1.Command_RotateClusterKey{RotateClusterKey: step}})
}

// resealSome seals values again that are sealed under the former key, as many as fit into one command. It reports
// whether there were any.
func (r *Replica) resealSome(ctx context.Context, v fsm.View, info *fsm.Info) (bool, error) {
	key, err := r.keys.Key()
	if err != nil {
		return true, err
	}
	if key.ID() != info.ClusterKeyID {
		return true, nil // the state has changed; try again
	}
	batch, size := &commandv1.Reseal{}, 0
	var broken error
	r.node.Store().State().Sealed(func(s fsm.SealedValue) bool {
		if !fsm.SealedUnder(s.Value, info.FormerKeyID) {
			return true
		}
		value, err := rpc.Reseal(s, key)
		if err == nil && fsm.SealedUnder(value, info.FormerKeyID) {
			err = errors.New("it has text that looks like a sealed value")
		}
		if err != nil {
			broken = fmt.Errorf("%s cannot be sealed again: %w: delete it, or apply it again", s, err)
			return true
		}
		sum := sha256.Sum256(s.Value)
		if n := len(batch.Values); n > 0 && batch.Values[n-1].Kind == s.Kind && batch.Values[n-1].Key == s.Key && bytes.Equal(batch.Values[n-1].OldSha256, sum[:]) {
			return true // skip this version: the previous version of the object has the same sealed value
		}
		if len(batch.Values) > 0 && size+len(value) > resealBytes {
			return false
		}
		batch.Values = append(batch.Values, &commandv1.ResealedValue{Kind: s.Kind, Key: s.Key, OldSha256: sum[:], Value: value})
		size += len(value)
		return len(batch.Values) < fsm.MaxResealed
	})
	if len(batch.Values) == 0 {
		return broken != nil, broken
	}
	ctx, cancel := context.WithTimeout(ctx, trustCall)
	defer cancel()
	return true, r.propose(ctx, "leader", &commandv1.Command{Body: &commandv1.Command_Reseal{Reseal: batch}})
}

// keyStatus describes the cluster key and its rotation. It is called on the leader.
func (r *Replica) keyStatus(ctx context.Context) *clusterv1.ClusterKeyStatusResponse {
	info := r.node.Store().View().Info()
	out := &clusterv1.ClusterKeyStatusResponse{
		KeyId: info.ClusterKeyID, NextKeyId: info.NextKeyID, FormerKeyId: info.FormerKeyID, RetiredKeyIds: info.RetiredKeyIDs, Step: keyStep(&info),
	}
	if info.KeyChangedAt > 0 {
		out.ChangedAt = timestamppb.New(time.Unix(0, info.KeyChangedAt))
	}
	r.node.Store().State().Sealed(func(s fsm.SealedValue) bool {
		out.Values++
		if fsm.SealedUnder(s.Value, info.FormerKeyID) {
			out.Left++
		}
		return true
	})
	var waits []string
	for _, h := range r.allHolders(ctx, info.ClusterKeyID) {
		row := &clusterv1.ClusterKeyReplica{Name: h.replica.Name, SealsWith: h.report.GetSealsWith(), HeldKeyIds: h.report.GetHeldKeyIds(), WaitsFor: h.awaits(&info)}
		out.Replicas = append(out.Replicas, row)
		if row.WaitsFor != "" && (info.Rotating() || h.err == nil) {
			waits = append(waits, "scheduler "+row.Name+" "+row.WaitsFor)
		}
	}
	slices.SortFunc(out.Replicas, func(a, b *clusterv1.ClusterKeyReplica) int { return cmp.Compare(a.Name, b.Name) })
	if fault := r.keyFault.Load(); len(waits) == 0 && fault != nil && *fault != "" && info.Rotating() {
		waits = append(waits, *fault) // for instance a value that cannot be opened
	}
	out.WaitsFor = strings.Join(waits, "; ")
	return out
}

func keyStep(info *fsm.Info) string {
	switch {
	case info.NextKeyID != "":
		return "distributing"
	case info.FormerKeyID == "":
		return "settled"
	case info.CleanIndex == 0:
		return "resealing"
	}
	return "cleaning"
}
