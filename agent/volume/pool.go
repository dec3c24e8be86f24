package volume

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Pool is storage that a node offers, GB.
type Pool struct {
	Name, Type      string
	TotalGB, UsedGB int64
	Path            string // of a local one
}

const (
	measureTimeout  = 20 * time.Second // of one question: a server that is gone answers nothing
	measurePatience = 5 * time.Second  // after which nobody waits for it
)

const notLooked = "not looked at yet"

// Measure looks at pools and drivers. It reports whether what a node registers is another than it was when
// it last reported. A look that hangs, on a file server that is gone, is waited for only so long, and not
// begun again until it ends; what it finds is reported by the Measure after that.
func (m *Manager) Measure(ctx context.Context) (changed bool) {
	var looks sync.WaitGroup
	for what, look := range map[string]func(context.Context){Local: m.measureLocal, NFS: m.measureNFS, Ceph: m.measureCeph} {
		m.mu.Lock()
		busy := m.measuring[what]
		m.measuring[what] = true
		m.mu.Unlock()
		if busy {
			continue
		}
		looks.Go(func() {
			defer func() {
				m.mu.Lock()
				m.measuring[what] = false
				m.mu.Unlock()
			}()
			look(ctx)
		})
	}
	done := make(chan struct{})
	go func() {
		looks.Wait()
		close(done)
	}()
	timer := time.NewTimer(measurePatience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		m.log.Warn("storage does not answer", "after", measurePatience)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.offer()
	changed = !slices.Equal(m.reported, now)
	m.reported = now
	return changed
}

// lack notes why a driver is not offered; with "" it is.
func (m *Manager) lack(kind, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lacks[kind] = why
}

func (m *Manager) figure(pool string, space Space) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.figures[pool] = space
}

func (m *Manager) measureLocal(context.Context) {
	for _, p := range m.pools {
		if space, err := m.sys.Space(existing(p.Path)); err == nil {
			m.figure(p.Name, space)
		}
	}
}

// presume has a driver that is set up offered at first, until a server has answered or failed: a node that
// offers a driver no more loses what uses it.
func (m *Manager) presume(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lacks[kind] == notLooked {
		m.lacks[kind] = ""
	}
}

func (m *Manager) measureCeph(ctx context.Context) {
	err := m.ceph.isSetUp()
	if err == nil {
		m.presume(Ceph)
		limited, cancel := context.WithTimeout(ctx, measureTimeout)
		defer cancel()
		err = m.ceph.answers(limited)
	}
	if err != nil {
		m.lack(Ceph, err.Error())
		return
	}
	m.lack(Ceph, "")
}

// measureNFS leaves what is offered as it was while no attempt to mount has ended. One that it begins has as
// long as any other: it may be who mounts the export.
func (m *Manager) measureNFS(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	if err := m.nfs.able(ctx); err != nil {
		m.lack(NFS, err.Error())
		return
	}
	m.presume(NFS)
	a, err := m.nfs.ask(ctx)
	if err == nil {
		select {
		case <-a.done:
		case <-ctx.Done():
		}
		if !a.ended() || errors.Is(a.err, context.Canceled) {
			return
		}
		err = a.err
	}
	var space Space
	if err == nil {
		space, err = m.nfs.space()
	}
	if err != nil {
		m.lack(NFS, "driver nfs: "+err.Error())
		return
	}
	m.figure(NFS, space)
	m.lack(NFS, "")
}

// existing is the nearest folder above path that is there.
func existing(path string) string {
	for path != "/" {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		path = filepath.Dir(path)
	}
	return path
}

// offer is what decides whether a node registers anew. It is called with mu held.
func (m *Manager) offer() []string {
	out := m.offered()
	for _, p := range m.pools {
		out = append(out, p.Name, strconv.FormatInt(m.figures[p.Name].Total/gib, 10))
	}
	if s, ok := m.figures[NFS]; ok && m.lacks[NFS] == "" {
		out = append(out, NFS, strconv.FormatInt(s.Total/gib, 10)) // which may be known only after the node registered
	}
	return out
}

// Drivers that this node offers beside local.
func (m *Manager) Drivers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.offered()
}

// offered is Drivers, with mu held.
func (m *Manager) offered() (out []string) {
	for _, k := range []string{NFS, Ceph} {
		if m.lacks[k] == "" {
			out = append(out, k)
		}
	}
	return out
}

// Lacks says for each driver that is not offered what is missing.
func (m *Manager) Lacks() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]string{}
	for k, why := range m.lacks {
		if why != "" {
			out[k] = why
		}
	}
	return out
}

// Pools of this node as they were last measured, the default first. A pool that was not is left out.
func (m *Manager) Pools() []Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Pool
	for _, p := range m.pools {
		if s, ok := m.figures[p.Name]; ok {
			out = append(out, Pool{Name: p.Name, Type: Local, TotalGB: s.Total / gib, UsedGB: s.Used / gib, Path: p.Path})
		}
	}
	if s, ok := m.figures[NFS]; ok && m.lacks[NFS] == "" {
		out = append(out, Pool{Name: NFS, Type: NFS, TotalGB: s.Total / gib, UsedGB: s.Used / gib})
	}
	return out
}

// OwnDisk reports whether the default pool is on another file system than the machine's root.
func (m *Manager) OwnDisk() bool {
	root, err := m.sys.Space("/")
	if err != nil {
		return false
	}
	pool, err := m.sys.Space(existing(m.pools[0].Path))
	return err == nil && pool.Device != root.Device
}
