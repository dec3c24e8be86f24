package cluster

import (
	"fmt"
	"os"

	"github.com/hashicorp/raft"
)

// Oldest returns the index of the oldest log entry or snapshot on the disk of this replica.
func (n *Node) Oldest() (uint64, error) {
	oldest, _, err := n.logs.ends()
	if err != nil {
		return 0, err
	}
	snaps, err := n.snapshotFolders()
	for _, s := range snaps {
		if oldest == 0 || s.index < oldest {
			oldest = s.index
		}
	}
	return oldest, err
}

// reconfigure changes some of the settings that Raft can change while it runs. Two calls at the same time do not undo
// each other's change.
func (n *Node) reconfigure(change func(*raft.ReloadableConfig)) error {
	n.reconfiguring.Lock()
	defer n.reconfiguring.Unlock()
	c := n.raft.ReloadableConfig()
	change(&c)
	return n.raft.ReloadConfig(c)
}

// DropBefore removes what this replica has on its disk from before an index: it takes a snapshot, and deletes the log
// entries and snapshots that are older than index. It does nothing if there are none, or if the replica has not applied
// index yet. A replica that lacks the deleted entries gets a snapshot instead.
func (n *Node) DropBefore(index uint64) error {
	if oldest, err := n.Oldest(); err != nil || oldest >= index || n.Store().View().Info().Index < index {
		return err
	}
	trail := func(entries uint64) error {
		return n.reconfigure(func(c *raft.ReloadableConfig) { c.TrailingLogs = entries })
	}
	usual := n.raft.ReloadableConfig().TrailingLogs
	if err := trail(0); err != nil {
		return err
	}
	err := n.raft.Snapshot().Error()
	if back := trail(usual); err == nil {
		err = back
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	snaps, err := n.snapshotFolders()
	if err != nil {
		return err
	}
	newer := false
	for _, s := range snaps {
		newer = newer || s.index >= index
	}
	for _, s := range snaps {
		if newer && s.index < index {
			if err := os.RemoveAll(s.path); err != nil {
				return fmt.Errorf("snapshot: %w", err)
			}
		}
	}
	return nil
}
