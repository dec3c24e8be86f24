package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/dnsserver"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/mirror"
	"github.com/persys/compute/replica/mirrorspec"
	"github.com/persys/compute/rpc"
)

// openedMirror is a mirror (the copy of the state in etcd) with the connection to one set of etcd endpoints.
type openedMirror struct {
	*mirror.Mirror
	client    *mirror.Client
	endpoints string // etcd endpoints, separated by commas
}

// openMirror checks the settings of the etcd mirror. If endpoints are known, it also opens the mirror, which
// runs only while this replica leads.
func (r *Replica) openMirror() error {
	r.modes, r.coredns = newModes(r), newCoreDNSWatch(r)
	_, err := r.useMirror()
	return err
}

// mirrorEndpoints returns the etcd endpoints of the mirror: from ETCD_ENDPOINTS (settings is then true), or else the
// endpoints that a user has attached. It returns no endpoints if there is no mirror.
func (r *Replica) mirrorEndpoints() (endpoints []string, settings bool) {
	switch {
	case r.cfg.etcdRequired():
		return r.cfg.EtcdEndpoints, true
	case !r.cfg.mirrorAllowed():
		return nil, false
	}
	if e := r.node.Store().View().Info().MirrorEndpoints; e != "" {
		return strings.Split(e, ","), false
	}
	return nil, false
}

// useMirror returns the mirror for the present endpoints, or nil if there are no endpoints. If the endpoints have
// changed, it closes the mirror that was opened for the old endpoints; the Run method of that mirror must have
// returned.
func (r *Replica) useMirror() (*openedMirror, error) {
	endpoints, _ := r.mirrorEndpoints()
	text := strings.Join(endpoints, ",")
	former := r.mirror.Load()
	if former != nil && former.endpoints == text {
		return former, nil
	}
	if former != nil {
		r.mirror.Store(nil)
		if err := former.client.Close(); err != nil {
			r.log.Debug("could not close the client of the former etcd", "err", err)
		}
	}
	if text == "" {
		return nil, nil
	}
	cfg := &r.cfg
	if err := cfg.checkEtcd(endpoints); err != nil {
		return nil, fmt.Errorf("the endpoints of the mirror: %w", err)
	}
	extra, err := cfg.published()
	if err != nil {
		return nil, err
	}
	client, err := cfg.dialEtcd(endpoints)
	if err != nil {
		return nil, err
	}
	m, err := mirror.New(
		mirror.Options{
			Prefix: cfg.EtcdPrefix, Layout: mirror.Layout(cfg.MirrorLayout), Domain: cfg.Domain, MaxAge: cfg.MirrorEvents,
			ProbeEvery: cfg.EtcdProbe, CallLimit: cfg.EtcdTimeout, WriteBound: 6 * cfg.EtcdTimeout,
		},
		mirror.Deps{
			Store: r.node.Store(), Etcd: client, Log: r.log, Describe: mirrorspec.Fields, Extra: extra,
			Attachment: attachment{r},
			Confirm: func(ctx context.Context) error {
				_, err := r.node.Confirm(ctx)
				return err
			},
			OnHealth: func(context.Context, mirror.Health) { r.modes.wake() },
		})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	opened := &openedMirror{Mirror: m, client: client, endpoints: text}
	r.mirror.Store(opened)
	return opened, nil
}

// activeMirror returns the opened mirror, or nil if the endpoints have changed since it was opened.
func (r *Replica) activeMirror() *openedMirror {
	endpoints, _ := r.mirrorEndpoints()
	if m := r.mirror.Load(); m != nil && m.endpoints == strings.Join(endpoints, ",") {
		return m
	}
	return nil
}

// published returns the DNS records that the mirror writes to etcd for CoreDNS; none with SCHEDULER_SHADOW.
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

// lead does the work of one leadership term. It runs the leader's loop, the mirror, the changes of the cluster's mode,
// and the probes of the CoreDNS servers. It returns when all of them have ended.
func (r *Replica) lead(ctx context.Context, epoch fsm.Epoch) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.runMirror(ctx, epoch) })
	wg.Go(func() { r.modes.keep(ctx, epoch) })
	if r.coredns != nil {
		wg.Go(func() { r.coredns.Run(ctx) })
	}
	return r.loop.Run(ctx, epoch)
}

// afterMirror is the pause between the end of a mirror and its next start.
const afterMirror = time.Second

// runMirror runs the mirror until the leadership term ends, always with the endpoints that are attached. The mirror
// stops by itself if a later leader has written to etcd, which it sees from a higher epoch (number of the leader) in
// the mirror's cursor key. If this replica still leads then, runMirror starts the mirror again.
func (r *Replica) runMirror(ctx context.Context, epoch fsm.Epoch) {
	pause, logged := afterMirror, ""
	for {
		m, err := r.useMirror()
		switch {
		case err == nil && m == nil:
			pause, logged = mirrorLook, ""
		case err == nil:
			pause = afterMirror
			run, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			wg.Go(func() {
				r.awaitOtherEndpoints(run, m)
				cancel()
			})
			err = m.Run(run, epoch)
			cancel()
			wg.Wait()
			if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
				return
			}
			if r.activeMirror() != m {
				r.log.Info("the mirror was detached", "endpoints", m.endpoints, "epoch", epoch.String())
				continue
			}
		}
		if err != nil && err.Error() != logged {
			logged = err.Error()
			r.log.Warn("the mirror stopped", "err", err, "epoch", epoch.String())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// awaitOtherEndpoints returns when ctx ends or when the endpoints of the attached etcd differ from those
// of mirror m.
func (r *Replica) awaitOtherEndpoints(ctx context.Context, m *openedMirror) {
	tick := time.NewTicker(modeEvery)
	defer tick.Stop()
	for r.activeMirror() == m {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// attachment implements mirror.Attachment: it records in the replicated state which etcd is attached.
type attachment struct{ r *Replica }

func (a attachment) Attached() (uint64, bool) {
	info := a.r.node.Store().View().Info()
	return info.AttachedEtcd(), info.MirrorEtcd != 0
}

// MarkAttached records that the etcd of ETCD_ENDPOINTS is attached. It does so only if every scheduler can
// reach that etcd; otherwise a change of leader alone could degrade the mode and refuse writes. An etcd that a user
// attaches needs no check here, because every scheduler probed it when it was attached.
func (a attachment) MarkAttached(ctx context.Context, etcd uint64) error {
	if pin, _ := a.Attached(); pin == 0 {
		id, err := rpc.SameEtcd(a.r.server.ProbeMirrors(ctx, nil), false)
		if err != nil {
			return err
		}
		if id != etcd {
			return fmt.Errorf("etcd cluster %x is the attached mirror, but etcd cluster %x answers now", etcd, id)
		}
	}
	return a.r.commit(ctx, &commandv1.Command{Body: &commandv1.Command_MirrorAttached{MirrorAttached: &commandv1.MirrorAttached{EtcdClusterId: etcd}}})
}

// commit proposes a command of the leader that does not come from the planner.
func (r *Replica) commit(ctx context.Context, c fsm.Command) error {
	return r.propose(ctx, "leader", c)
}

// propose commits one command. by is the author that the history shows.
func (r *Replica) propose(ctx context.Context, by string, c fsm.Command) error {
	c.Head = &commandv1.Head{At: time.Now().UnixNano(), By: by}
	results, err := r.node.Propose(ctx, c)
	if err != nil {
		return err
	}
	if err := results[0].Err(); err != nil {
		return fmt.Errorf("%s: %w", fsm.ArmName(c), err)
	}
	return nil
}

// skydns supplies to the mirror the DNS records that CoreDNS reads.
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
