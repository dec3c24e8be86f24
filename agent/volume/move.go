package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/order"
)

// A volume moves to another node in two steps: the other node copies it while the workload runs, and again after the
// workload was stopped. Before the second copy this node sets its copy aside: the record says so, and the folder gets
// another name, so that neither a late order nor the engine can start a workload on it. An order names the copy in use
// (ADR 72), so each node knows whether it has it.

// useCopy checks that this node's copy of a volume is that which the order of a workload names, and makes it usable: it
// takes a complete incoming copy into use, and takes back a copy that was set aside for a move that was undone. The
// caller holds the lock of the volume.
func (m *Manager) useCopy(v *Volume, r request, known bool) error {
	if !known {
		if r.copy.IsZero() && r.undone.IsZero() {
			return nil
		}
		return broken("volume %q was moved, and this node does not have the copy in use (%s): an empty volume is not made in its place", r.name, r.copy)
	}
	next, err := copyInUse(*v, r.copy, r.undone)
	if err != nil || next == (copies{v.Copy, v.Aside, v.Undone, v.Incoming, v.Complete}) {
		return err
	}
	switch {
	case !v.Aside.IsZero() && next.aside.IsZero():
		err = takeBack(v)
	case v.Phase == Moving:
		err = arrived(v)
	}
	if err != nil {
		return classed(driver.StorageAttachFailed, v.ID, err)
	}
	v.Empty = false
	v.Copy, v.Aside, v.Undone, v.Incoming, v.Complete = next.copy, next.aside, next.undone, next.incoming, next.complete
	if v.Phase == Moving {
		v.Phase = Provisioned
	}
	return m.put(v)
}

// copies are the fields of a volume about its copies.
type copies struct {
	copy, aside, undone, incoming order.Generation
	complete                      bool
}

// copyInUse returns the fields of v after an order that names the copy in use and the last move that was undone, or an
// error if v is not that copy.
func copyInUse(v Volume, copy, undone order.Generation) (copies, error) {
	next := copies{v.Copy, v.Aside, v.Undone, v.Incoming, v.Complete}
	switch {
	case v.Phase == Moving && (copy != v.Incoming || !v.Complete):
		return next, broken("volume %q is being copied to this node for move %s, and the order is not that of the complete copy", v.Name, v.Incoming)
	case v.Phase == Moving:
		next.copy, next.incoming, next.complete = copy, order.Generation{}, false
	case copy != v.Copy:
		return next, broken("volume %q: the copy in use was made by move %s, and this node has another copy (%s)", v.Name, copy, v.Copy)
	case !v.Aside.IsZero() && undone != v.Aside:
		// Also if a later move was undone: the copy that was set aside need not be the source of that move.
		return next, broken("volume %q: this node set its copy aside for move %s, so the copy in use is on another node", v.Name, v.Aside)
	case !v.Aside.IsZero():
		next.aside = order.Generation{}
	}
	if next.undone.Less(undone) {
		next.undone = undone
	}
	return next, nil
}

// asidePath returns the path of a folder that was set aside. The names of volumes on their storage never begin with a dot.
func asidePath(plain string) string {
	return filepath.Join(filepath.Dir(plain), ".aside-"+filepath.Base(plain))
}

// putAside gives the folder of a volume that was set aside its other name.
func putAside(v *Volume) error {
	_, err := os.Lstat(v.StagePath)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return renamed(v.Plain, v.StagePath)
}

// takeBack gives the folder of a volume that was set aside its former name, and changes the record accordingly.
func takeBack(v *Volume) error {
	_, err := os.Lstat(v.StagePath)
	switch {
	case err == nil:
		_ = os.Remove(v.Plain) // the engine may have made an empty folder; a folder with files makes the next step fail
		if err := renamed(v.StagePath, v.Plain); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default: // the agent was killed after the folder got its name, or the disk is missing
		if empty, err := isEmpty(v.Plain); err != nil || empty {
			return fmt.Errorf("volume %q: neither %s nor %s has its files: check that the disk is mounted; if the volume had no files, make the folder %s (%w)",
				v.Name, v.StagePath, v.Plain, v.StagePath, errors.Join(err, fs.ErrNotExist))
		}
	}
	v.StagePath, v.Plain = v.Plain, ""
	if v.Phase == Released { // garbage collection deletes released volumes, and this copy is the only one again
		v.Phase, v.ReleasedAt = Retained, time.Time{}
	}
	return nil
}

// arrived returns an error if the files of a complete incoming copy have disappeared before its first use.
func arrived(v *Volume) error {
	empty, err := isEmpty(v.StagePath)
	if err == nil && empty && !v.Empty {
		err = fmt.Errorf("volume %q: %s is empty, but its copy had files: check that the disk is mounted", v.Name, v.StagePath)
	}
	return err
}

// isEmpty reports whether a folder has no entries.
func isEmpty(folder string) (bool, error) {
	d, err := os.Open(folder)
	if err != nil {
		return false, err
	}
	defer d.Close()
	if _, err := d.Readdirnames(1); errors.Is(err, io.EOF) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	return false, nil
}

// KeepCopy returns an error unless this node, from which a volume moved, has the copy was, which was in use when the move
// began. With back, the move was undone: a copy that was set aside for this move is taken back into use first.
func (m *Manager) KeepCopy(move, was order.Generation, workload, namespace, name string, back bool) error {
	id := m.knownAs(workload, namespace, Local, name)
	unlock := m.lock(id)
	defer unlock()
	v, ok := m.get(id)
	if err := m.source(&v, ok, move, was, workload, namespace, name); err != nil {
		return err
	}
	if back && !v.Aside.IsZero() {
		if err := takeBack(&v); err != nil {
			return err
		}
		v.Aside, v.Undone = order.Generation{}, move
		if err := m.put(&v); err != nil {
			return err
		}
	}
	if !v.Aside.IsZero() {
		if err := putAside(&v); err != nil {
			return err
		}
	}
	return present(&v, v.StagePath)
}

// source checks that a volume of this node is the copy was, from which a move of the workload's volumes began. A complete copy
// that came by the move was, and that the workload has never used, is taken into use first. A copy that was set aside for
// another move is not the source, because nobody knows which copy the workload used since. The caller holds the lock of
// the volume.
func (m *Manager) source(v *Volume, ok bool, move, was order.Generation, workload, namespace, name string) error {
	if !ok || !v.Made() {
		return broken("volume %q does not exist on this node", name)
	}
	if !m.admits(*v, workload, namespace) {
		return invalid("volume %q of this node belongs to namespace %q, and workload %q is in namespace %q", name, v.In(), workload, namespace)
	}
	if v.Phase == Moving && v.Incoming == was {
		v.Copy, v.Incoming, v.Complete, v.Phase = v.Incoming, order.Generation{}, false, Provisioned
		if err := m.put(v); err != nil {
			return err
		}
	}
	switch {
	case v.Phase == Moving:
		return broken("volume %q: move %s is from copy %s, and this node has a copy of move %s that was never used", name, move, was, v.Incoming)
	case v.Copy != was:
		return broken("volume %q: move %s is from copy %s, and this node has copy %s", name, move, was, v.Copy)
	case !v.Aside.IsZero() && v.Aside != move:
		return broken("volume %q: this node set its copy aside for move %s, and not for move %s", name, v.Aside, move)
	}
	return nil
}

func renamed(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return driver.Synced(filepath.Dir(to))
}

// OpenSource opens this node's copy of a volume for a move, which must be the copy was. With final the copy is set aside first: the record is on disk
// and the folder has its other name before OpenSource returns. Only workload may use the volume, and the caller has made
// sure that it is stopped.
func (m *Manager) OpenSource(move, was order.Generation, workload, namespace, name string, final bool) (*os.Root, error) {
	id := m.knownAs(workload, namespace, Local, name)
	unlock := m.lock(id)
	defer unlock()
	v, ok := m.get(id)
	if err := m.source(&v, ok, move, was, workload, namespace, name); err != nil {
		return nil, err
	}
	switch {
	case v.Form != Folder:
		return nil, invalid("volume %q is %s, and only volumes that are folders can move", name, v.Form)
	case !v.Undone.Less(move):
		return nil, broken("volume %q: move %s was undone", name, move)
	case !v.Copy.Less(move):
		return nil, broken("volume %q: this node's copy was made by move %s, so move %s is not the newest", name, v.Copy, move)
	}
	for _, u := range m.users(id) {
		if u.WorkloadID != workload {
			return nil, &inUse{volume: id, by: "workload " + u.WorkloadID}
		}
	}
	if final || !v.Aside.IsZero() {
		if err := m.setAside(&v, move); err != nil {
			return nil, err
		}
	}
	return os.OpenRoot(v.StagePath)
}

// OpenTarget makes or finds the incoming copy of a volume for a move and opens it.
func (m *Manager) OpenTarget(move order.Generation, workload, namespace, name, pool string) (*os.Root, error) {
	id := idOf(namespace, Local, name)
	unlock := m.lock(id)
	defer unlock()
	v, ok := m.get(id)
	if !ok {
		if err := m.distinct(request{id: id, name: name, namespace: namespace, driver: Local}); err != nil {
			return nil, err
		}
		root, err := (&local{m, m.pools}).root(pool)
		if err != nil {
			return nil, err
		}
		v = Volume{ID: id, Name: name, Namespace: namespace, Driver: Local, Form: Folder, Pool: pool, Phase: Moving, Owner: workload, Retain: true, Incoming: move}
		v.StagePath = filepath.Join(root, v.stored())
		if _, err := os.Lstat(v.StagePath); !errors.Is(err, fs.ErrNotExist) {
			return nil, broken("volume %q: %s exists on this node already and belongs to no volume: remove it, or move the volume to another node (%v)", name, v.StagePath, err)
		}
		if err := m.put(&v); err != nil {
			return nil, err
		}
	}
	if v.Phase != Moving || v.Incoming != move {
		return nil, broken("this node has a volume %q already (copy %s, set aside for move %s): delete it (persysctl volume rm %s --node %s)", name, v.Copy, v.Aside, name, m.node)
	}
	if err := os.MkdirAll(v.StagePath, folderMode); err != nil {
		return nil, err
	}
	return os.OpenRoot(v.StagePath)
}

// Complete records that the incoming copy of a volume is complete and on disk. Until it is used, only the schedulers can
// have it deleted.
func (m *Manager) Complete(move order.Generation, namespace, name string) error {
	id := idOf(namespace, Local, name)
	unlock := m.lock(id)
	defer unlock()
	v, ok := m.get(id)
	if !ok || v.Phase != Moving || v.Incoming != move {
		return broken("volume %q is not being copied to this node for move %s", name, move)
	}
	if err := driver.Synced(filepath.Dir(v.StagePath)); err != nil {
		return err
	}
	empty, err := isEmpty(v.StagePath)
	if err != nil {
		return err
	}
	v.Complete, v.Empty = true, empty
	return m.put(&v)
}

// IsComplete reports whether the copy of a volume for a move is complete, or is in use already.
func (m *Manager) IsComplete(move order.Generation, namespace, name string) bool {
	v, ok := m.get(idOf(namespace, Local, name))
	return ok && (v.Phase == Moving && v.Incoming == move && v.Complete || v.Phase != Moving && v.Copy == move)
}

// DropCopy deletes the copy of a volume that a move does not need any more: with aside, that which was set aside for the
// move, otherwise the incoming one. A copy that is in use, or was used since, stays. DropCopy succeeds if there is no such
// copy.
func (m *Manager) DropCopy(ctx context.Context, move order.Generation, workload, namespace, name string, aside bool) error {
	id := m.knownAs(workload, namespace, Local, name)
	unlock := m.lock(id)
	defer unlock()
	v, ok := m.get(id)
	if ok && !m.admits(v, workload, namespace) {
		return invalid("volume %q of this node belongs to namespace %q, and workload %q is in namespace %q", name, v.In(), workload, namespace)
	}
	if !aside && ok {
		if err := m.retire(&v, move); err != nil {
			return err
		}
	}
	if !ok || aside && v.Aside != move || !aside && (v.Phase != Moving || v.Incoming != move) {
		return nil
	}
	if users := m.users(id); len(users) > 0 {
		return &inUse{volume: id, by: "workload " + users[0].WorkloadID}
	}
	if aside && v.Phase != Deleting {
		if err := putAside(&v); err != nil { // also if the folder is missing: its disk may not be mounted
			return err
		}
		if err := os.Remove(v.Plain); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is not empty, although the volume was set aside: %w", v.Plain, err)
		}
	}
	return m.destroy(ctx, m.kinds[Local], &v)
}

// Retire sets the copy of a volume aside that a move made and that was in use, because the volume has returned to the other
// node. The copy has what the workload wrote meanwhile, so it stays on the disk until a person deletes it. Retire succeeds if
// there is no such copy.
func (m *Manager) Retire(move order.Generation, workload, namespace, name string) error {
	id := m.knownAs(workload, namespace, Local, name)
	unlock := m.lock(id)
	defer unlock()
	v, ok := m.get(id)
	if !ok {
		return nil
	}
	return m.retire(&v, move)
}

// retire is Retire for a caller that holds the lock of the volume.
func (m *Manager) retire(v *Volume, move order.Generation) error {
	if v.Phase == Moving || v.Copy != move || !v.Aside.IsZero() && v.Aside != move {
		return nil
	}
	if users := m.users(v.ID); len(users) > 0 {
		return &inUse{volume: v.ID, by: "workload " + users[0].WorkloadID}
	}
	return m.setAside(v, move)
}

// setAside records that a copy was set aside for a move, and then gives the folder its other name.
func (m *Manager) setAside(v *Volume, move order.Generation) error {
	if v.Aside.IsZero() {
		v.Aside, v.Plain = move, v.StagePath
		v.StagePath = asidePath(v.StagePath)
		if err := m.put(v); err != nil {
			return err
		}
	}
	return putAside(v)
}

// SetMoves stores which moves have not ended. Delete refuses to delete their copies.
func (m *Manager) SetMoves(moves map[order.Generation]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moves = moves
}

// needed reports whether v is a copy that an unfinished move may need. Before the schedulers have listed the moves, every
// copy that is not in use may be needed.
func (m *Manager) needed(v *Volume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return v.Idle() && m.moves == nil || m.moves[v.Aside] || m.moves[v.Incoming]
}
