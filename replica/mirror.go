package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/replica/mirrorspec"
)

// openMirror makes the mirror. It runs only while this replica leads.
func (r *Replica) openMirror() error {
	cfg := &r.cfg
	r.modes, r.coredns = newModes(r), newCoreDNSWatch(r)
	if !cfg.mirrored() {
		return nil
	}
	extra, err := cfg.published()
	if err != nil {
		return err
	}
	if r.etcd, err = cfg.dialEtcd(cfg.etcdAddresses()); err != nil {
		return err
	}
	r.mirror, err = mirror.New(
		mirror.Options{
			Prefix: cfg.EtcdPrefix, Layout: mirror.Layout(cfg.MirrorLayout), Domain: cfg.Domain, MaxAge: cfg.MirrorEvents,
			ProbeEvery: cfg.EtcdProbe, CallLimit: cfg.EtcdTimeout, WriteBound: 6 * cfg.EtcdTimeout,
		},
		mirror.Deps{
			Store: r.node.Store(), Etcd: r.etcd, Log: r.log, Describe: mirrorspec.Fields, Extra: extra,
			Attachment: attachment{r},
			Confirm: func(ctx context.Context) error {
				_, err := r.node.Confirm(ctx)
				return err
			},
			OnHealth: func(context.Context, mirror.Health) { r.modes.wake() },
		})
	return err
}

// published returns the DNS records that CoreDNS reads; none with SCHEDULER_SHADOW.
func (c *Config) published() (mirror.Extra, error) {
	if c.Shadow {
		return nil, nil
	}
	sky, err := dnsserver.NewSkyDNS(c.zones(), "", 0)
	if err != nil {
		return nil, err
	}
	return skydns{sky}, nil
}

// lead does the work of one leadership term: the leader's loop, the mirror, the mode and the watch of
// CoreDNS. It returns when all of them have ended.
func (r *Replica) lead(ctx context.Context, epoch fsm.Epoch) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if r.mirror != nil {
		wg.Go(func() { r.runMirror(ctx, epoch) })
	}
	wg.Go(func() { r.modes.keep(ctx, epoch) })
	if r.coredns != nil {
		wg.Go(func() { r.coredns.Run(ctx) })
	}
	return r.loop.Run(ctx, epoch)
}

// afterMirror is the pause before a mirror that ended starts again.
const afterMirror = time.Second

// runMirror runs the mirror until the leadership term ends. The mirror ends earlier if etcd shows a later
// leader: either this term is over, or the mirror starts again.
func (r *Replica) runMirror(ctx context.Context, epoch fsm.Epoch) {
	for {
		err := r.mirror.Run(ctx, epoch)
		if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
			return
		}
		r.log.Warn("the mirror stopped", "err", err, "epoch", epoch.String())
		select {
		case <-ctx.Done():
			return
		case <-time.After(afterMirror):
		}
	}
}

// attachment implements mirror's record, in the state, that an etcd has held the whole mirror.
type attachment struct{ r *Replica }

func (a attachment) Attached() (uint64, bool) {
	id := a.r.node.Store().View().Info().MirrorEtcd
	return id, id != 0
}

func (a attachment) MarkAttached(ctx context.Context, etcd uint64) error {
	return a.r.commit(ctx, &commandv1.Command{Body: &commandv1.Command_MirrorAttached{MirrorAttached: &commandv1.MirrorAttached{EtcdClusterId: etcd}}})
}

// commit proposes a command of the leader that does not come from the planner.
func (r *Replica) commit(ctx context.Context, c fsm.Command) error {
	c.Head = &commandv1.Head{At: time.Now().UnixNano(), By: "leader"}
	results, err := r.node.Propose(ctx, c)
	if err != nil {
		return err
	}
	if err := results[0].Err(); err != nil {
		return fmt.Errorf("%s: %w", fsm.ArmName(c), err)
	}
	return nil
}

// skydns gives the mirror the DNS records that CoreDNS reads.
type skydns struct{ *dnsserver.SkyDNS }

func (s skydns) Records(v fsm.View) []mirror.KV { return keyValues(s.SkyDNS.Records(v)) }

func (s skydns) Change(v fsm.View, c *fsm.Change) []mirror.KV {
	return keyValues(s.SkyDNS.Change(v, c))
}

func keyValues(list []dnsserver.SkyRecord) []mirror.KV {
	if len(list) == 0 {
		return nil
	}
	out := make([]mirror.KV, len(list))
	for i, x := range list {
		out[i] = mirror.KV{Key: x.Key, Value: x.Value}
	}
	return out
}
