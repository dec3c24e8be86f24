package mirror

import (
	"errors"
	"fmt"

	"github.com/persys/compute/fsm"
)

var (
	// ErrDeposed means that etcd carries the mark of a later leader and that the
	// leadership could not be confirmed: nothing was written, the stint is over.
	ErrDeposed = errors.New("a later leader writes the mirror")
	// ErrEmptied means that this etcd held the mirror and now holds neither its
	// cursor nor any data: recovery.
	ErrEmptied = errors.New("etcd was attached before and is empty now")
	// ErrForeignData means that etcd holds data that is not this cluster's to
	// replace: recovery.
	ErrForeignData = errors.New("etcd holds data that is not this cluster's")
)

// found is what one look at etcd showed.
type found struct {
	cursor      cursor
	unreadable  bool // the cursor is there and says nothing
	owner       owner
	ownerErr    error
	data        bool // a node, workload or assignment exists
	etcdCluster uint64
	revision    int64
}

// standing is what the state machine knows at that moment.
type standing struct {
	cluster  string
	epoch    fsm.Epoch
	index    uint64
	digest   uint64
	layout   Layout
	shape    string
	empty    bool // no workloads; nodes register with whoever leads, as soon as it does
	attached bool
	mismatch bool // a cursor was found that this stint did not write
}

// action is what a leader does with what it found.
type action uint8

const (
	actFill    action = iota + 1 // nothing there and nothing expected: write everything
	actResume                    // ours: go on after the cursor's index
	actCompare                   // ours, but not known to be whole: compare everything
	actRefuse                    // the error says why
)

// decide holds the rules of DESIGN, decisions 11 and 12. The first line that
// holds decides.
func decide(f found, s standing) (action, error) {
	c := f.cursor
	hasCursor, hasOwner := c.raw != "", f.owner.raw != ""
	switch {
	case hasOwner && f.ownerErr != nil:
		return actRefuse, fmt.Errorf("%w: %w", ErrForeignData, f.ownerErr)
	case hasOwner && f.owner.ClusterID != s.cluster:
		return actRefuse, fmt.Errorf("%w: it belongs to cluster %s, this is %s", ErrForeignData, f.owner.ClusterID, s.cluster)
	case hasCursor && !f.unreadable && s.epoch.Less(c.epoch()):
		return actRefuse, fmt.Errorf("%w: it was written in epoch %s, this is %s", ErrDeposed, c.epoch(), s.epoch)
	case hasCursor && s.empty && f.data && (f.unreadable || c.Incarnation != s.epoch.Incarnation):
		return actRefuse, fmt.Errorf("%w: it is of incarnation %d of this cluster, whose state is empty now", ErrForeignData, c.Incarnation)
	case hasCursor && f.unreadable:
		return actCompare, nil
	case hasCursor && resumable(&c, &s):
		return actResume, nil
	case hasCursor:
		return actCompare, nil
	case !f.data && s.attached:
		return actRefuse, ErrEmptied
	case !f.data:
		return actFill, nil
	case hasOwner && !s.empty:
		return actCompare, nil // the owner key says that the data is ours
	}
	return actRefuse, fmt.Errorf("%w: there are nodes, workloads or assignments and nothing says whose", ErrForeignData)
}

// resumable says whether a cursor names a state on our own history, of which
// etcd holds all.
func resumable(c *cursor, s *standing) bool {
	switch {
	case s.mismatch, !c.Complete, c.Format != format, c.Layout != s.layout, c.Shape != s.shape:
		return false
	case c.Incarnation != s.epoch.Incarnation:
		return false // indexes went back in between
	case c.Index > s.index:
		return false
	}
	return c.Index < s.index || c.Digest == digestText(s.digest)
}
