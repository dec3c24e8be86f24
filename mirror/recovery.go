package mirror

import (
	"bytes"
	"context"

	"github.com/persys/compute/fsm"
)

// restore is a request to the session that writes.
type restore struct {
	done chan error // gets one value, from the Run that took the request
}

// Restore makes etcd hold the state, whatever it held before: the way out of
// recovery when the state machine is right. It returns once etcd is equal, or
// with the error that stopped it; only the replica that runs Run can. Take a
// Preview first.
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

// Kinds of Difference.
const (
	Create = "create"
	Change = "change"
	Remove = "remove"
)

// maxListed is how many differences a Preview lists; all are counted.
const maxListed = 1000

// Difference is one key (of etcd) or record (of an import) that would change.
type Difference struct {
	Kind string // Create, Change or Remove
	Key  string
	Old  []byte // JSON or text; nil when it does not exist
	New  []byte // nil when it will not
}

// Preview says what a restore or an import would do.
type Preview struct {
	Equal, Create, Change, Remove int
	Differences                   []Difference // the first 1,000
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

// Preview says what Restore would do to etcd now. It writes nothing, and any
// replica can do it.
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
