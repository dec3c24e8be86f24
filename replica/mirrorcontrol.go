package replica

import (
	"context"
	"errors"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/replica/mirrorspec"
	"github.com/persys/compute/rpc"
	"github.com/persys/compute/spec"
)

// errMirrorStarts is returned after an etcd was attached and before the mirror has started.
var errMirrorStarts = errors.New("the mirror has not started yet; try again in a second")

// probeLimit is the timeout of a probe (test call) of etcd that this replica makes because another replica has asked
// for it.
const probeLimit = 4 * time.Second

// namedKeys is the maximum number of keys, and of problems, that an answer lists.
const namedKeys = 500

// mirrorControl implements rpc.Mirror: the calls about the etcd mirror.
type mirrorControl struct{ r *Replica }

func (m mirrorControl) Health() (state, reason string, index uint64) {
	h := m.r.mirrorHealth()
	return h.State, h.Reason, h.Index
}

func (m mirrorControl) Endpoints() (endpoints []string, settings bool) { return m.r.mirrorEndpoints() }

func (m mirrorControl) Check(endpoints []string) error { return m.r.cfg.checkEtcd(endpoints) }

func (m mirrorControl) Probe(ctx context.Context, endpoints []string) (uint64, error) {
	client, err := m.r.cfg.dialEtcd(endpoints)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	limit := min(m.r.cfg.EtcdTimeout, probeLimit)
	return mirror.Probe(ctx, client, m.r.cfg.EtcdPrefix, m.r.node.Store().View().Info().ClusterID, limit)
}

func (m mirrorControl) Read(ctx context.Context, endpoints []string, prefix string, present fsm.Info) (*clusterv1.MirrorContent, fsm.State, error) {
	if prefix == "" {
		prefix = m.r.cfg.EtcdPrefix
	}
	client, err := m.r.cfg.dialEtcd(endpoints)
	if err != nil {
		return nil, fsm.State{}, err
	}
	defer client.Close()
	found, err := mirror.Read(ctx, client, prefix)
	if err != nil {
		return nil, fsm.State{}, err
	}
	state, more, err := found.State(present, m.translate)
	if err != nil {
		return nil, fsm.State{}, err
	}
	out := &clusterv1.MirrorContent{
		ClusterId: found.Cluster, Incarnation: found.Incarnation, Index: found.Index, Complete: found.Complete,
		Nodes: int32(len(found.Nodes)), Workloads: int32(len(found.Workloads)), Events: int32(found.Events), Drifts: int32(found.Drifts),
		ProblemCount: int32(len(found.Problems) + len(more)),
	}
	for _, p := range append(found.Problems, more...) {
		if len(out.Problems) < namedKeys {
			out.Problems = append(out.Problems, &clusterv1.MirrorProblem{Key: p.Key, Reason: p.Reason})
		}
	}
	return out, state, nil
}

// translate turns a record in etcd of a legacy v1 scheduler into the command that an apply of the same
// workload would give, with sealed secrets.
func (m mirrorControl) translate(w *mirror.Workload) (*commandv1.WorkloadPut, error) {
	req, err := mirrorspec.Specification(w)
	if err != nil {
		return nil, err
	}
	var sealer spec.Sealer
	if key, err := m.r.keys.Key(); err == nil {
		sealer = key
	}
	p, err := spec.Prepare(req, sealer)
	if err != nil {
		return nil, err
	}
	return p.Command.GetPutWorkloads().GetWorkloads()[0], nil
}

func (m mirrorControl) Preview(ctx context.Context) (*clusterv1.RestoreMirrorResponse, error) {
	opened := m.r.activeMirror()
	if opened == nil {
		return nil, errMirrorStarts
	}
	p, err := opened.Preview(ctx)
	if err != nil {
		return nil, err
	}
	out := &clusterv1.RestoreMirrorResponse{Equal: int32(p.Equal), Created: int32(p.Create), Changed: int32(p.Change), Removed: int32(p.Remove)}
	for _, d := range p.Differences {
		if len(out.Differences) < namedKeys {
			out.Differences = append(out.Differences, &clusterv1.KeyDifference{Kind: d.Kind, Key: d.Key})
		}
	}
	return out, nil
}

const (
	// mirrorStart is the longest wait for the mirror to start after a restore of the state, which begins a
	// new leadership term.
	mirrorStart = 15 * time.Second
	mirrorLook  = 50 * time.Millisecond
)

func (m mirrorControl) Restore(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, mirrorStart)
	defer cancel()
	look := time.NewTicker(mirrorLook)
	defer look.Stop()
	opened := m.r.activeMirror()
	for ; opened == nil || !opened.Running(); opened = m.r.activeMirror() {
		select {
		case <-look.C:
		case <-wait.Done():
			return errors.New("this replica does not write the mirror; `persysctl status` shows who leads, then: persysctl recovery restore")
		}
	}
	return opened.Restore(ctx)
}

// control returns the calls about the etcd mirror, or nil if the settings forbid a mirror.
func (r *Replica) control() rpc.Mirror {
	if !r.cfg.mirrorAllowed() {
		return nil
	}
	return mirrorControl{r}
}
