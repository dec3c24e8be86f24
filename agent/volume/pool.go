package volume

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Pool is storage that a node offers, GB.
type Pool struct {
	Name, Type      string
	TotalGB, UsedGB int64
	Path            string // of a local one
}

// measureTimeout bounds one look at all pools: a server that is gone answers nothing.
const measureTimeout = 20 * time.Second

// Measure looks at pools and drivers. It reports whether what a node registers changed. A look that
// hangs, on a file server that is gone, is waited for only so long, and not begun again until it ends.
func (m *Manager) Measure(ctx context.Context) (changed bool) {
	m.mu.Lock()
	if m.measuring {
		m.mu.Unlock()
		return false
	}
	m.measuring = true
	before := m.offer()
	m.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer func() {
			m.mu.Lock()
			m.measuring = false
			m.mu.Unlock()
			close(done)
		}()
		m.measure(ctx)
	}()
	timer := time.NewTimer(measureTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		m.log.Warn("storage does not answer", "after", measureTimeout)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.Equal(before, m.offer())
}

func (m *Manager) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	for _, kind := range []string{NFS, Ceph} {
		lack := ""
		if err := m.kinds[kind].able(ctx); err != nil {
			lack = err.Error()
		}
		m.mu.Lock()
		m.lacks[kind] = lack
		m.mu.Unlock()
	}
	for _, p := range m.pools {
		if space, err := m.sys.Space(existing(p.Path)); err == nil {
			m.mu.Lock()
			m.figures[p.Name] = space
			m.mu.Unlock()
		}
	}
	m.mu.Lock()
	offered := m.lacks[NFS] == ""
	m.mu.Unlock()
	if !offered {
		return
	}
	at, err := m.nfs.export(ctx)
	var space Space
	if err == nil {
		space, err = m.sys.Space(at)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.lacks[NFS] = "driver nfs: " + err.Error()
		return
	}
	m.figures[NFS] = space
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
	var out []string
	for _, k := range []string{NFS, Ceph} {
		if m.lacks[k] == "" {
			out = append(out, k)
		}
	}
	for _, p := range m.pools {
		out = append(out, p.Name, strconv.FormatInt(m.figures[p.Name].Total/gib, 10))
	}
	return out
}

// Drivers that this node offers beside local.
func (m *Manager) Drivers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
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
