package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/store"
	"github.com/persys/compute/mirror"
)

// modes proposes, while this replica leads, the mode that follows from the health of the mirror. On every
// replica it logs changes of the mode.
type modes struct {
	r     *Replica
	awake chan struct{} // capacity 1
}

func newModes(r *Replica) *modes { return &modes{r: r, awake: make(chan struct{}, 1)} }

func (m *modes) wake() {
	select {
	case m.awake <- struct{}{}:
	default:
	}
}

const (
	// modeEvery is the period of the check without a wake-up: some of the replicated facts change without
	// one.
	modeEvery = 250 * time.Millisecond
	// modeLimit bounds one proposal of a mode.
	modeLimit = 5 * time.Second
)

// keep proposes modes for one leadership term.
func (m *modes) keep(ctx context.Context, epoch fsm.Epoch) {
	tick := time.NewTicker(modeEvery)
	defer tick.Stop()
	var said mirror.State // the mirror state that led to the last mode set here
	for {
		v := m.r.node.Store().View()
		var health *mirror.Health
		if m.r.mirror != nil {
			h := m.r.mirror.Stats().Health
			health = &h
		}
		facts := mirror.Facts{Required: m.r.cfg.etcdRequired(), Attached: v.Info().MirrorEtcd != 0, Empty: v.WorkloadCount() == 0}
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

// nextMode returns the change of mode that is due; nil for none. health is nil without a mirror. said is
// the mirror state that led to the present mode, "" if it is not known.
func nextMode(info fsm.Info, health *mirror.Health, facts mirror.Facts, said mirror.State) *commandv1.SetMode {
	mode, reason, ok := fsm.ModeNormal, "", true
	if health != nil {
		mode, reason, ok = mirror.ModeFor(*health, facts)
	}
	switch {
	case !ok, info.ClusterID == "":
		return nil
	case info.ModePinned && (mode != fsm.ModeNormal || info.Mode != fsm.ModeNormal):
		return nil // a mode that a person set stays
	case info.ModePinned:
		// A person set normal while the mirror was not healthy. It is healthy now, so the next outage
		// counts again.
		return &commandv1.SetMode{Mode: string(mode), Unpin: true}
	case info.Mode != mode, mode.Frozen() && said != "" && health.State != said:
		return &commandv1.SetMode{Mode: string(mode), Reason: reason}
	}
	return nil
}

// standing is the mode of this replica: the worse of the replicated and the local one, with its reason and
// start.
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

// watch logs every change of this replica's mode. Replicated changes come from the change feed, so that
// none is missed, with the time that was committed; local changes are logged as they are noticed.
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
			return // the context or the store has ended
		}
		// The feed skipped changes, for example because of a snapshot: compare with the present mode.
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
