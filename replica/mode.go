package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/mirror"
)

// modes handles changes of the cluster's mode. While this replica leads, it proposes the mode that follows
// from the health of the mirror. On every replica it logs changes of the mode.
type modes struct {
	r     *Replica
	awake chan struct{} // wakes the loop in the method keep; capacity 1

	// Only keep uses the fields below.
	asked   time.Time // when the other replicas were last asked whether they reach etcd
	reached bool      // the result of that question: another replica reaches etcd
	handed  time.Time // when leadership was last transferred because of etcd
}

func newModes(r *Replica) *modes { return &modes{r: r, awake: make(chan struct{}, 1)} }

func (m *modes) wake() {
	select {
	case m.awake <- struct{}{}:
	default:
	}
}

const (
	// modeEvery is the period at which the mode is checked even without a wake-up, because some changes of the
	// replicated state cause no wake-up.
	modeEvery = 250 * time.Millisecond
	// modeLimit is the timeout of one proposal of a mode.
	modeLimit = 5 * time.Second
)

// keep runs on the leader until its term ends. It proposes the mode of the cluster that follows from the health of the
// mirror.
func (m *modes) keep(ctx context.Context, epoch fsm.Epoch) {
	tick := time.NewTicker(modeEvery)
	defer tick.Stop()
	var said mirror.State // state of the mirror that caused the last change of mode by this loop
	for {
		v := m.r.node.Store().View()
		var health *mirror.Health
		if opened := m.r.activeMirror(); opened != nil {
			h := opened.Stats().Health
			health = &h
		}
		facts := mirror.Facts{Required: m.r.cfg.etcdRequired(), Attached: v.Info().MirrorEtcd != 0, Empty: v.WorkloadCount() == 0}
		if health != nil && m.othersReach(ctx, *health, facts, v.Info().AttachedEtcd()) {
			health = nil // keep the mode: other replicas reach etcd, so only this replica's connection to etcd is broken
		}
		if ctx.Err() != nil {
			return
		}
		if set := nextMode(v.Info(), health, facts, said); set != nil {
			limited, cancel := context.WithTimeout(ctx, modeLimit)
			err := m.r.commit(limited, &commandv1.Command{Body: &commandv1.Command_SetMode{SetMode: set}})
			cancel()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				m.r.log.Warn("the mode was not changed", "mode", set.GetMode(), "reason", set.GetReason(), "err", err, "epoch", epoch.String())
			case health != nil:
				said = health.State
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-m.awake:
		case <-tick.C:
		}
	}
}

// handOverEvery is the shortest time between two attempts to transfer leadership to a replica that reaches
// etcd.
const handOverEvery = time.Minute

// othersReach reports whether another replica reaches the etcd that this leader cannot reach. If so, it also
// transfers leadership to that replica. It asks the other replicas once per ETCD_PROBE_INTERVAL.
func (m *modes) othersReach(ctx context.Context, h mirror.Health, facts mirror.Facts, pin uint64) bool {
	mode, _, ok := mirror.ModeFor(h, facts)
	if !ok || mode != fsm.ModeDegraded || h.State != mirror.Unreachable && h.State != mirror.Other {
		m.asked, m.reached = time.Time{}, false
		return false
	}
	if time.Since(m.asked) < m.r.cfg.EtcdProbe {
		return m.reached
	}
	probes := m.r.server.ProbeMirrors(ctx, nil)
	m.asked, m.reached = time.Now(), false
	i := slices.IndexFunc(probes, func(p *clusterv1.MirrorProbe) bool {
		return p.GetReplicaId() != m.r.node.ID() && p.GetEtcdClusterId() != 0 && (pin == 0 || p.GetEtcdClusterId() == pin)
	})
	if i < 0 {
		return false
	}
	m.reached = true
	if time.Since(m.handed) < handOverEvery {
		return true
	}
	m.handed = time.Now()
	limited, cancel := context.WithTimeout(ctx, modeLimit)
	defer cancel()
	err := m.r.node.TransferLeadership(limited, probes[i].GetReplicaId())
	m.r.log.Warn("this replica cannot reach the etcd of the mirror, but another replica can: leadership is transferred to that one", "to", probes[i].GetReplica(), "reason", h.Reason, "err", err)
	return true
}

// nextMode returns the change of mode that is due; nil if the mode stays. health is nil if there is no mirror. said is
// the state of the mirror because of which the present mode was set; "" if that is not known.
func nextMode(info fsm.Info, health *mirror.Health, facts mirror.Facts, said mirror.State) *commandv1.SetMode {
	mode, reason, ok := fsm.ModeNormal, "", true
	if health != nil {
		mode, reason, ok = mirror.ModeFor(*health, facts)
	}
	switch {
	case !ok, info.ClusterID == "":
		return nil
	case info.ModePinned && (mode != fsm.ModeNormal || info.Mode != fsm.ModeNormal):
		return nil // keep a mode that a user has set
	case info.ModePinned:
		// A user has set the mode normal (a pin, which the leader does not change) while the mirror was not healthy.
		// The mirror is healthy now. So remove the pin, so that the next outage of etcd changes the mode again.
		return &commandv1.SetMode{Mode: string(mode), Unpin: true}
	case info.Mode != mode, mode.Frozen() && said != "" && health.State != said:
		return &commandv1.SetMode{Mode: string(mode), Reason: reason}
	}
	return nil
}

// standing is the mode in effect on this replica, with its reason and the time since when it applies. Of the
// replicated mode and the replica's local mode, it is the one that refuses more changes.
type standing struct {
	mode   fsm.Mode
	reason string
	since  time.Time
	local  bool
}

func (r *Replica) standing() standing {
	info := r.node.Store().View().Info()
	s := standing{mode: info.Mode, reason: info.ModeReason, since: time.Unix(0, info.ModeChangedAt)}
	if mode, reason := r.node.LocalMode(); mode.Frozen() && !info.Mode.Frozen() {
		s = standing{mode: mode, reason: reason, since: time.Now().Add(-r.node.Status().LastContact), local: true}
	}
	return s
}

// watch logs every change of the mode in effect on this replica. Changes of the replicated mode come from the change
// feed, so every change is logged with its committed time. Changes of the local mode are logged when they are noticed.
func (m *modes) watch(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { m.watchFeed(ctx) })
	defer wg.Wait()
	tick := time.NewTicker(modeEvery)
	defer tick.Stop()
	local := false
	for {
		if now := m.r.standing(); now.local != local {
			local = now.local
			if local {
				m.log(fsm.ModeNormal, now)
			} else {
				m.r.log.Info("this replica hears from a leader again", "mode", string(now.mode))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *modes) watchFeed(ctx context.Context) {
	st := m.r.node.Store()
	for ctx.Err() == nil {
		last := st.View().Info()
		feed, err := st.Changes(last.Index)
		for err == nil {
			var b store.Batch
			if b, err = feed.Next(ctx); err == nil {
				last = m.logChanges(b.Changes, last)
			}
		}
		if feed != nil {
			feed.Close()
		}
		if !errors.Is(err, store.ErrCompacted) {
			return // ctx has ended or the store was closed
		}
		// The change feed skipped changes, for example because of a snapshot. So compare the last mode
		// with the present mode.
		if now := st.View().Info(); now.Mode != last.Mode && last.Mode != "" {
			m.logInfo(last.Mode, now)
		}
	}
}

func (m *modes) logChanges(changes []fsm.Change, last fsm.Info) fsm.Info {
	for i := range changes {
		c := &changes[i]
		if c.Table != fsm.TableInfo {
			continue
		}
		was, now := c.OldInfo(), c.NewInfo()
		if was.Mode != now.Mode && was.Mode != "" {
			m.logInfo(was.Mode, *now)
		}
		last = *now
	}
	return last
}

func (m *modes) logInfo(from fsm.Mode, now fsm.Info) {
	m.log(from, standing{mode: now.Mode, reason: now.ModeReason, since: time.Unix(0, now.ModeChangedAt)})
}

func (m *modes) log(from fsm.Mode, now standing) {
	log := m.r.log.Info
	if now.mode.Frozen() {
		log = m.r.log.Warn
	}
	m.r.metrics.modeChanges.WithLabelValues(string(now.mode)).Inc()
	log("mode changed", "from", string(from), "mode", string(now.mode), "reason", now.reason,
		"at", now.since.UTC().Format(time.RFC3339Nano), "local", now.local)
}
