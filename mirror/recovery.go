package mirror

import (
	"bytes"
	"context"

	"github.com/persys/compute/fsm"
)

// restore is a request to the running session to overwrite etcd; the method Restore sends it.
type restore struct {
	done chan error // Run sends the result of the restore once
}

// Restore overwrites etcd with the state, whatever etcd holds. Use it in recovery mode after a Preview, if
// the state of this cluster is the right one. It returns nil when etcd is equal to the state. It returns an
// error if the session fails, if ctx ends, or if Run is not running on this replica.
func (m *Mirror) Restore(ctx context.Context) error {
	ended := m.running.Load()
	if ended == nil {
		return errNotRunning
	}
	req := &restore{done: make(chan error, 1)}
	select {
	case m.restores <- req:
	case <-*ended:
		return errNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-req.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Values of Difference.Kind: the kind of change that a restore or an import would make.
const (
	Create = "create"
	Change = "change"
	Remove = "remove"
)

// maxListed is the maximum number of differences that a Preview lists. Differences beyond it are only counted.
const maxListed = 1000

// Difference is one change that a restore or an import would make: of a key in etcd, or of a record in the
// state.
type Difference struct {
	Kind string // kind of the change: Create, Change or Remove
	Key  string
	Old  []byte // JSON or text before the change; nil if the key does not exist
	New  []byte // JSON or text after the change; nil if the key will be removed
}

// Preview is the effect that a restore or an import would have.
type Preview struct {
	Equal, Create, Change, Remove int
	Differences                   []Difference // the first 1,000 differences
}

// Listed reports whether every difference is in Differences.
func (p *Preview) Listed() bool { return len(p.Differences) == p.Create+p.Change+p.Remove }

func (p *Preview) note(key string, before, after []byte) {
	d := Difference{Key: key, Old: before, New: after}
	switch {
	case bytes.Equal(before, after):
		p.Equal++
		return
	case before == nil:
		d.Kind = Create
		p.Create++
	case after == nil:
		d.Kind = Remove
		p.Remove++
	default:
		d.Kind = Change
		p.Change++
	}
	if len(p.Differences) < maxListed {
		p.Differences = append(p.Differences, d)
	}
}

// Preview returns the changes that Restore would make to etcd now. It writes nothing, and any replica can run
// it.
func (m *Mirror) Preview(ctx context.Context) (Preview, error) {
	return m.preview(ctx, m.deps.Store.View())
}

func (m *Mirror) preview(ctx context.Context, v fsm.View) (p Preview, err error) {
	p.Equal, err = differences(ctx, m.server, m.proj.keys, m.proj.sections(v), func(st step) error {
		p.note(st.kv.Key, st.old, st.kv.Value)
		return nil
	})
	return p, err
}
