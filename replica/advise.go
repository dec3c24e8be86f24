package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/persys/compute/cluster"
)

// advise returns an error of the Raft node with the commands that an operator can run next added to its text.
func (c *Config) advise(err error) error {
	raft := filepath.Join(c.DataDir, cluster.RaftDir)
	switch {
	case errors.Is(err, cluster.ErrCorrupt):
		return fmt.Errorf("%w; nothing was changed. If a majority of the schedulers runs: `mv %s %s.damaged`, and start this one again with SCHEDULER_JOIN: "+
			"it fetches all data from them. If there is no other scheduler: do the same and `persysctl backup restore FILE`", err, raft, raft)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w; free disk space for %s, or raise its quota, and start this scheduler again: no acknowledged write is lost", err, c.DataDir)
	}
	return err
}

// errNoCluster is the error of a scheduler that has no certificates and no settings that name a cluster.
var errNoCluster = errors.New("this scheduler is in no cluster yet: start the first scheduler of a new cluster with --init (SCHEDULER_INIT=true), any other with --join TOKEN (SCHEDULER_JOIN), " +
	"where `persysctl token create --role scheduler` makes the token; `persys dev` runs a whole cluster on this machine to try it out")

// adviseStart replaces an error about missing certificates by errNoCluster, if the scheduler has no settings
// that name a cluster.
func (c *Config) adviseStart(err error) error {
	if errors.Is(err, fs.ErrNotExist) && c.TLSCert == defaultCert && len(c.Join) == 0 && c.BootstrapExpect == 0 && !c.Vault.Enabled {
		return errNoCluster
	}
	return err
}
