package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/persys/compute/pki"
)

// note is the content of the file peers.json: what this replica knows of its cluster. It is stored outside the Raft
// directory, so that a replica whose Raft directory was lost or moved aside finds the other replicas.
type note struct {
	Cluster string        `json:"cluster"`
	Replica string        `json:"replica"` // Raft id of this replica
	Servers []knownServer `json:"servers"` // servers of the last Raft configuration, including this replica; at most maxKnownServers
	Repair  *Repaired     `json:"repair,omitempty"`
}

// knownServer is one server of the Raft configuration in peers.json.
type knownServer struct {
	ID     string `json:"id"`
	Name   string `json:"name,omitempty"`
	Raft   string `json:"raft"`
	Gossip string `json:"gossip,omitempty"`
}

// Repaired describes a repair, in which a replica replaced its damaged data.
type Repaired struct {
	Of     string    `json:"of"`           // Raft id before the repair
	As     string    `json:"as,omitempty"` // Raft id after the repair; empty until the first start with the new data
	Damage string    `json:"damage"`       // description of the damage
	Aside  string    `json:"aside"`        // folder in the data directory that holds the damaged data
	At     time.Time `json:"at"`
}

const (
	peersFile       = "peers.json"
	maxKnownServers = 64
)

// loadNote reads peers.json from a data directory. It returns nil if the file is missing or cannot be read.
func loadNote(dataDir string) *note {
	b, err := os.ReadFile(filepath.Join(dataDir, peersFile))
	if err != nil {
		return nil
	}
	t := &note{}
	if json.Unmarshal(b, t) != nil {
		return nil
	}
	t.Servers = t.Servers[:min(len(t.Servers), maxKnownServers)]
	return t
}

// store writes peers.json if its content changed.
func (t *note) store(dataDir string) error {
	path := filepath.Join(dataDir, peersFile)
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return nil
	}
	return pki.WriteFile(path, b, 0o600)
}

// others returns the servers in peers.json other than the one with this id.
func (t *note) others(id string) []knownServer {
	var out []knownServer
	for _, s := range t.Servers {
		if s.ID != id && s.Raft != "" {
			out = append(out, s)
		}
	}
	return out
}

// remembered returns the gossip addresses of the other replicas from peers.json.
func (n *Node) remembered() []string {
	t := loadNote(n.cfg.DataDir)
	if t == nil {
		return nil
	}
	var addrs []string
	for _, s := range t.others(t.Replica) {
		if s.Gossip != "" {
			addrs = append(addrs, s.Gossip)
		}
	}
	return addrs
}

// remember updates peers.json if the configuration or an address changed. It returns false if the address of
// a replica is not known yet.
func (n *Node) remember() (complete bool) {
	view := n.Store().View()
	servers := n.servers()
	cluster := view.Info().ClusterID
	if cluster == "" || len(servers) == 0 {
		return false // after an error the former file stays in place
	}
	complete = true
	t := &note{Cluster: cluster, Replica: n.id, Repair: n.repaired}
	for _, s := range servers[:min(len(servers), maxKnownServers)] {
		one := knownServer{ID: string(s.ID), Raft: string(s.Address)}
		if r, ok := view.Replica(one.ID); ok {
			one.Name, one.Raft, one.Gossip = r.Name, r.RaftAddr, r.GossipAddr
		} else {
			complete = false
		}
		t.Servers = append(t.Servers, one)
	}
	if err := t.store(n.cfg.DataDir); err != nil {
		n.once.warn(n.log, "remember", "cannot store the addresses of the other replicas", "err", err)
	}
	return complete
}

// readNote reads what the last run wrote to peers.json. fresh reports that the Raft directory is empty.
//
// The first start after a repair stores the cluster id in the new log: a replica that knows a cluster id joins
// that cluster and does not help to form another one.
func (n *Node) readNote(fresh bool) error {
	t := loadNote(n.cfg.DataDir)
	if t == nil {
		return nil
	}
	r := t.Repair
	if r != nil && r.As == "" && fresh && t.Cluster != "" {
		if _, err := os.Stat(filepath.Join(n.cfg.DataDir, r.Aside)); err == nil {
			if err := n.logs.setOwn(keyClusterID, t.Cluster); err != nil {
				return err
			}
			n.learned.Store(&t.Cluster)
			r.As = n.id
		}
	}
	if r != nil && r.As == n.id {
		n.repaired = r
	}
	if t.Replica == n.id && t.Repair == n.repaired {
		return nil
	}
	t.Servers = t.others(t.Replica)
	t.Replica, t.Repair = n.id, n.repaired
	return t.store(n.cfg.DataDir)
}
