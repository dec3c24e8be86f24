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

// Pool is storage for volumes that a node offers. Sizes are in GB.
type Pool struct {
	Name, Type      string
	TotalGB, UsedGB int64
	Path            string // path of the folder, if the pool is local
}

const (
	measureTimeout  = 20 * time.Second // time limit of one measurement, because a server that is unreachable never answers
	measurePatience = 5 * time.Second  // how long Measure waits for all measurements
)

const notLooked = "not checked yet"

// Measure measures the storage pools and checks which volume drivers work. It reports whether the drivers and
// pools that the node registers have changed since the last Measure. If a system call hangs because a file
// server does not answer, Measure returns after measurePatience, and does not start that call a second time. A
// later Measure reports the result.
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

// lack records why the node does not offer the volume driver kind. An empty why means that the node offers the
// driver.
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

// presume makes the node offer a volume driver if its settings are complete, although its server has not been
// contacted yet. Without the offer, the leader would evict the workloads that use the driver.
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

// measureNFS finds out whether the NFS export can be mounted. Until an attempt to mount has ended, the drivers
// that the node registers do not change. The mount gets its full time limit, and not the shorter one of a
// measurement, because a workload may be waiting for the same attempt.
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

// existing returns path if it exists, and otherwise the nearest folder above it that exists.
func existing(path string) string {
	for path != "/" {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		path = filepath.Dir(path)
	}
	return path
}

// offer returns the volume drivers and pools that the node registers with the schedulers. If they change, the
// node registers again. mu must be held.
func (m *Manager) offer() []string {
	out := m.offered()
	for _, p := range m.pools {
		out = append(out, p.Name, strconv.FormatInt(m.figures[p.Name].Total/gib, 10))
	}
	if s, ok := m.figures[NFS]; ok && m.lacks[NFS] == "" {
		out = append(out, NFS, strconv.FormatInt(s.Total/gib, 10)) // the size is part of the facts because it may become known only after the registration
	}
	return out
}

// Drivers returns the volume drivers, other than local, that work on this node and that it registers with the
// schedulers.
func (m *Manager) Drivers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.offered()
}

// offered returns what Drivers returns. mu must be held.
func (m *Manager) offered() (out []string) {
	for _, k := range []string{NFS, Ceph} {
		if m.lacks[k] == "" {
			out = append(out, k)
		}
	}
	return out
}

// Lacks returns, for each volume driver that is not offered, what is missing.
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

// Pools returns the node's storage pools as last measured, the default pool first. Pools that were not
// measured yet are left out.
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
