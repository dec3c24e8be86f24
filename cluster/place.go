package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// location says on which machine, under which directory and at which Raft address a data directory was last in use. It
// is stored in the directory, so a copy of the directory contains the location of the original.
type location struct {
	// Boot is the boot id of the kernel. It differs between machines and between boots.
	Boot string `json:"boot,omitempty"`
	// Dir is the device number and the inode of the data directory.
	Dir string `json:"dir"`
	// Addr is the Raft address that the replica advertised.
	Addr string `json:"addr"`
}

// bootIDFile contains the boot id of the kernel. It exists in containers too. On systems without the file the boot id
// is not known, and only Dir is compared.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

func locationOf(dir, addr string) (location, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return location{}, fmt.Errorf("SCHEDULER_DATA_DIR: %w", err)
	}
	p := location{Addr: addr}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		p.Dir = fmt.Sprintf("%d:%d", sys.Dev, sys.Ino)
	}
	if b, err := os.ReadFile(bootIDFile); err == nil {
		p.Boot = strings.TrimSpace(string(b))
	}
	return p, nil
}

// mayBeCopy reports whether a directory may be a copy; was is the location stored in the directory. The directory is no
// copy if its Raft address is the same, or if it is the same directory and the machine was not restarted.
func (p location) mayBeCopy(was location) bool {
	return was.Addr != "" && was.Addr != p.Addr && (was.Boot != p.Boot || was.Dir != p.Dir)
}

// refusal is stored in a data directory that was found to be a copy, so that the replica does not start on it
// again.
type refusal struct {
	First string `json:"first"` // Raft address of the original replica
	Why   string `json:"why"`
}

// locate compares the present location of the data directory with the stored location. If the directory may be a copy,
// locate returns the stored location in was. If the directory was found to be a copy before, locate returns that
// finding in refused.
func (n *Node) locate() (was *location, refused *refusal, err error) {
	text, err := n.logs.own(keyCopied)
	if err != nil {
		return nil, nil, err
	}
	if text != "" {
		refused = &refusal{}
		if err := json.Unmarshal([]byte(text), refused); err != nil {
			return nil, nil, fmt.Errorf("%w: raft log %s: the value stored under key %s cannot be decoded: %w", ErrCorrupt, n.logs.path, keyCopied, err)
		}
		return nil, refused, nil
	}
	now, err := locationOf(n.cfg.DataDir, n.port.advertise)
	if err != nil {
		return nil, nil, err
	}
	if text, err = n.logs.own(keyLocation); err != nil {
		return nil, nil, err
	}
	var stored location
	if text != "" {
		if err := json.Unmarshal([]byte(text), &stored); err != nil {
			return nil, nil, fmt.Errorf("%w: raft log %s: the value stored under key %s cannot be decoded: %w", ErrCorrupt, n.logs.path, keyLocation, err)
		}
	}
	if now.mayBeCopy(stored) {
		return &stored, nil, nil
	}
	return nil, nil, n.settle(now, stored)
}

// settle stores the present location of the data directory, if it differs from the stored location.
func (n *Node) settle(now, stored location) error {
	if now == stored {
		return nil
	}
	b, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return n.logs.setOwn(keyLocation, string(b))
}

// muted is the election timeout of a replica that must not take part in elections: so long that the replica
// never stands.
const muted = 10000 * time.Hour

// Waiting returns the reason why this replica does not take part in its cluster yet; "" if it takes part. A
// replica waits while its data directory may be a copy.
func (n *Node) Waiting() string {
	if w := n.waiting.Load(); w != nil {
		return *w
	}
	return ""
}

func (n *Node) wait(was location) {
	why := fmt.Sprintf("the data directory was last used at %s on another machine, in another directory or before a restart of the machine: this replica takes part at %s unless %s answers within %s",
		was.Addr, n.port.advertise, was.Addr, n.cfg.Timing.MoveWait)
	n.waiting.Store(&why)
	n.log.Warn("this data directory may be a copy", "why", why)
}

// waitForFirst asks the process at this replica's former Raft address for its identity. If a replica with the same id
// answers, this replica runs on a copy and must not vote: two processes with one Raft id could vote twice in one term.
// If nothing answers for Timing.MoveWait, the directory was moved, and this replica takes part.
func (n *Node) waitForFirst(was location) {
	end := time.Now().Add(n.cfg.Timing.MoveWait)
	for time.Now().Before(end) {
		if first, err := n.greetAt(n.ctx, was.Addr); err == nil && first.ID == n.id && first.Instance != n.instance {
			n.refuse(was.Addr, fmt.Sprintf("replica %s (%s) answers at %s, and its data is the same as that of this process at %s", n.id, first.Name, was.Addr, n.port.advertise))
			return
		}
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(n.cfg.Timing.MoveWait / 40):
		}
	}
	n.log.Info("nothing answers at the former address of this replica: it takes part", "from", was.Addr, "at", n.port.advertise)
	now, err := locationOf(n.cfg.DataDir, n.port.advertise)
	if err == nil {
		err = n.settle(now, was)
	}
	if err == nil {
		err = n.participate(false)
	}
	if err == nil {
		err = n.reconfigure(func(c *raft.ReloadableConfig) {
			c.HeartbeatTimeout, c.ElectionTimeout = n.cfg.Timing.Heartbeat, n.cfg.Timing.Election
		})
	}
	if err != nil {
		n.halt(err)
		return
	}
	n.waiting.Store(nil)
}

// greetAt asks the replica at addr who it is, and waits for at most a second.
func (n *Node) greetAt(ctx context.Context, addr string) (*Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Second, n.cfg.Timing.RPC))
	defer cancel()
	return n.greetPeer(ctx, addr)
}
