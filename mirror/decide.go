package mirror

import (
	"errors"
	"fmt"

	"github.com/persys/compute/fsm"
)

var (
	// ErrDeposed means that the cursor in etcd has a later epoch and that the leadership of this replica
	// could not be confirmed. The mirror then writes nothing, and Run returns.
	ErrDeposed = errors.New("a later leader writes the mirror")
	// ErrEmptied means that etcd was attached before and now has neither a cursor nor
	// data. It leads to recovery mode.
	ErrEmptied = errors.New("etcd was attached before and is empty now")
	// ErrForeignData means that etcd holds data that belongs to another cluster or has
	// no known owner. The mirror does not overwrite it. It leads to recovery mode.
	ErrForeignData = errors.New("etcd holds data of another cluster or of an unknown owner")
	// ErrOtherEtcd means that another etcd cluster than the attached one answers at the endpoints. The mirror
	// writes nothing there, not even by Restore.
	ErrOtherEtcd = errors.New("another etcd answers")
)

// found is what one read of etcd has found: the cursor, the owner, and whether there is data.
type found struct {
	cursor      cursor
	unreadable  bool // the cursor key exists but cannot be parsed
	owner       owner
	ownerErr    error
	data        bool // etcd holds a node, workload or assignment
	etcdCluster uint64
	revision    int64
}

// standing is what the function decide must know about this cluster and its state to judge the
// contents of etcd.
type standing struct {
	cluster  string
	epoch    fsm.Epoch
	index    uint64
	digest   uint64
	layout   Layout
	shape    string
	empty    bool // the state has no workloads; nodes do not count, because they register with any new leader
	attached bool
	mismatch bool // the cursor in etcd is not the last one that this leadership term wrote
}

// samePin returns ErrOtherEtcd if the etcd cluster that answered (its id is etcdCluster) is not the attached
// one. pin is the id of the attached etcd cluster; 0 if none is attached.
func samePin(pin, etcdCluster uint64) error {
	if pin == 0 || pin == etcdCluster {
		return nil
	}
	return fmt.Errorf("%w: its cluster id is %x, but the mirror is attached to %x; `persysctl mirror detach` ends that attachment", ErrOtherEtcd, etcdCluster, pin)
}

// action is the first step of a session, which decide chooses from the contents of etcd.
type action uint8

const (
	actFill    action = iota + 1 // etcd is empty and was never attached: write all records
	actResume                    // this cluster wrote the cursor: continue with the changes after its index
	actCompare                   // this cluster wrote the cursor, but etcd may be incomplete: compare all records
	actRefuse                    // write nothing; the error gives the reason
)

// decide chooses the action for the contents of etcd. See "What happens when the
// cursor is not as expected?" in DESIGN.md. The first matching case applies.
func decide(f found, s standing) (action, error) {
	c := f.cursor
	hasCursor, hasOwner := c.raw != "", f.owner.raw != ""
	switch {
	case hasOwner && f.ownerErr != nil:
		return actRefuse, fmt.Errorf("%w: %w", ErrForeignData, f.ownerErr)
	case hasOwner && f.owner.ClusterID != s.cluster:
		return actRefuse, fmt.Errorf("%w: the data belongs to cluster %s, this is cluster %s", ErrForeignData, f.owner.ClusterID, s.cluster)
	case hasCursor && !f.unreadable && s.epoch.Less(c.epoch()):
		return actRefuse, fmt.Errorf("%w: the cursor in etcd is of epoch %s, this leader's epoch is %s", ErrDeposed, c.epoch(), s.epoch)
	case hasCursor && s.empty && f.data && (f.unreadable || c.Incarnation != s.epoch.Incarnation):
		return actRefuse, fmt.Errorf("%w: the copy is of incarnation %d of this cluster, and the state of this cluster is empty now", ErrForeignData, c.Incarnation)
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
		return actCompare, nil // etcd has no cursor, but its owner key names this cluster
	}
	return actRefuse, fmt.Errorf("%w: there are nodes, workloads or assignments, but no key that names the cluster that owns them", ErrForeignData)
}

// resumable reports whether the cursor names a state in the history of this cluster, and etcd holds that
// state completely, so that writing may continue from there.
func resumable(c *cursor, s *standing) bool {
	switch {
	case s.mismatch, !c.Complete, c.Format != format, c.Layout != s.layout, c.Shape != s.shape:
		return false
	case c.Incarnation != s.epoch.Incarnation:
		return false // a restored state (a new incarnation) starts at lower log indexes, so the cursor's index means nothing
	case c.Index > s.index:
		return false
	}
	return c.Index < s.index || c.Digest == digestText(s.digest)
}
