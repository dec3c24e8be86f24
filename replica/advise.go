package replica

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/persys/compute/cluster"
)

// advise adds to an error that keeps a replica from running what a person can do about it.
func (c *Config) advise(err error) error {
	raft := filepath.Join(c.DataDir, cluster.RaftDir)
	switch {
	case errors.Is(err, cluster.ErrCorrupt):
		return fmt.Errorf("%w; nothing was changed. While a majority of the schedulers runs: `mv %s %s.damaged`, and start this one again with SCHEDULER_JOIN: "+
			"it fetches everything from them. If there is no other: do the same and `persysctl backup restore FILE`", err, raft, raft)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w; make room for %s and start this scheduler again: what was acknowledged is there", err, c.DataDir)
	}
	return err
}
