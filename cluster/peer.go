package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Calls between replicas on the Raft port: one JSON message in each direction, on a connection that is reused. JSON is
// fast enough, because the calls are few and small and no write waits for a call.
const (
	peerLimit = 64 << 10
	peerIdle  = 2 * time.Minute
)

// Hello is the message in which a replica introduces itself to another replica: its identity, its addresses and its
// status.
type Hello struct {
	ID        string `json:"id"` // Raft id of the sender
	Name      string `json:"name"`
	ClusterID string `json:"cluster,omitempty"`
	Shard     string `json:"shard,omitempty"`
	// Knows: the replica knows a cluster, because it has a Raft configuration. It must not help to form
	// another cluster.
	Knows bool `json:"knows,omitempty"`
	// Removed: the cluster has removed the replica. A leader must not add it again.
	Removed bool `json:"removed,omitempty"`
	// Expect is the replica's setting SCHEDULER_BOOTSTRAP_EXPECT.
	Expect int `json:"expect,omitempty"`

	RaftAddr   string `json:"raft"`
	GossipAddr string `json:"gossip,omitempty"`
	GRPCAddr   string `json:"grpc,omitempty"`
	HTTPAddr   string `json:"http,omitempty"`
	DNSAddr    string `json:"dns,omitempty"`

	Version      string `json:"version,omitempty"`
	FeatureLevel uint32 `json:"level,omitempty"`
	Memory       int64  `json:"memory,omitempty"` // memory that the sender's process may use, in MiB

	Term      uint64 `json:"term,omitempty"`
	LastIndex uint64 `json:"last,omitempty"`
	Applied   uint64 `json:"applied,omitempty"`
	// DiskWrite is the usual duration of a write to the log, in nanoseconds; 0 = not known.
	DiskWrite time.Duration `json:"disk_write,omitempty"`
	// Repair describes how the replica replaced damaged data.
	Repair *Repaired `json:"repair,omitempty"`
	// Instance is a random value of each process. It distinguishes two processes with the same Raft id.
	Instance string `json:"instance,omitempty"`
	// Copies are the Raft addresses of processes that run on copies of this replica's data directory.
	Copies []string `json:"copies,omitempty"`
}

// request is one call from a replica to another. Only the fields of its operation Op are set.
type request struct {
	Op    string `json:"op"`
	Hello *Hello `json:"hello,omitempty"`
	Index uint64 `json:"index,omitempty"` // log index that opDigest is about
	// First and Reason belong to opCopied: the Raft address of the original replica, and how the leader
	// found the copy.
	First  string `json:"first,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// The operations of calls between replicas.
const (
	opHello   = "hello"   // asks the called replica who it is
	opForm    = "form"    // asks the called replica to promise to form a cluster with no other candidate
	opDigest  = "digest"  // asks for the digest of the called replica's state at Index
	opLeave   = "leave"   // asks the leader to remove the calling replica
	opRemoved = "removed" // the leader tells a replica that it was removed
	opCopied  = "copied"  // the leader tells a replica that its data directory is a copy
	opTwin    = "twin"    // a copy announces itself to the original replica
	opDepart  = "depart"  // the leader asks a replica to leave the cluster
	opRepair  = "repair"  // a replica with damaged data asks the leader about its cluster (repair.go)
)

type response struct {
	Error  string `json:"error,omitempty"`
	Hello  *Hello `json:"hello,omitempty"`
	Digest uint64 `json:"digest,omitempty"`
	Known  bool   `json:"known,omitempty"`
	Level  uint32 `json:"level,omitempty"`
	// Leader and Cluster belong to the answer to opRepair. Leader is the Raft address of the leader. Cluster
	// is set only if the leader itself answers.
	Leader  string  `json:"leader,omitempty"`
	Cluster *quorum `json:"quorum,omitempty"`
}

// servePeer answers the calls on a connection until the connection ends.
func (n *Node) servePeer(conn net.Conn) {
	for {
		conn.SetDeadline(time.Now().Add(peerIdle))
		body, err := readFrame(conn, peerLimit)
		if err != nil {
			return
		}
		var req request
		var res response
		if err := json.Unmarshal(body, &req); err != nil {
			res.Error = "request: " + err.Error()
		} else if err := n.answer(&req, &res); err != nil {
			res.Error = err.Error()
		}
		out, err := json.Marshal(&res)
		if err != nil {
			return
		}
		conn.SetDeadline(time.Now().Add(n.cfg.Timing.RPC))
		if err := writeFrame(conn, out); err != nil {
			return
		}
	}
}

func (n *Node) answer(req *request, res *response) error {
	switch req.Op {
	case opHello:
		h := n.hello()
		res.Hello = &h
		return nil
	case opForm:
		return n.members.promise(req.Hello)
	case opDigest:
		res.Digest, res.Known = n.machine.digests.at(req.Index)
		res.Level = n.Store().View().Info().FeatureLevel
		return nil
	case opLeave:
		if req.Hello == nil {
			return errors.New("leave: who?")
		}
		ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
		defer cancel()
		return n.RemoveReplica(ctx, req.Hello.ID, false)
	case opRemoved:
		return n.members.wasRemoved(req.Hello)
	case opCopied:
		return n.isCopy(req.Hello, req.First, req.Reason)
	case opTwin:
		return n.heardOfTwin(req.Hello)
	case opDepart:
		ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
		defer cancel()
		return n.Depart(ctx)
	case opRepair:
		return n.answerRepair(req.Hello, res)
	}
	return fmt.Errorf("unknown operation %q", req.Op)
}

// hello returns the introduction of this replica.
func (n *Node) hello() Hello {
	c := &n.cfg
	return Hello{
		ID: n.id, Name: c.Name, ClusterID: n.clusterID(), Shard: c.Shard,
		Knows: n.knows(), Removed: n.removed.Load(), Expect: c.BootstrapExpect,
		RaftAddr: n.port.advertise, GossipAddr: n.gossipAddr(),
		GRPCAddr: c.GRPCAdvertise, HTTPAddr: c.HTTPAdvertise, DNSAddr: c.DNSAdvertise,
		Version: c.Version, FeatureLevel: c.FeatureLevel, Memory: c.Memory,
		Term: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(), Applied: n.Store().View().Info().Index,
		DiskWrite: n.logs.watch.typical(),
		Repair:    n.repaired,
		Instance:  n.instance, Copies: n.copiesOf(n.id),
	}
}

// knows reports whether this replica knows a cluster: it has a Raft configuration, or is getting one. A cluster id in
// the settings does not mean that this replica knows a cluster: a new cluster gets the same id.
func (n *Node) knows() bool {
	return len(n.servers()) > 0 || n.learned.Load() != nil
}

// servers returns the servers of the latest Raft configuration, committed or not.
func (n *Node) servers() []raft.Server { return n.raft.GetConfiguration().Configuration().Servers }

// peers keeps one open connection to each address for calls between replicas.
type peers struct {
	n     *Node
	mu    sync.Mutex
	idle  map[string]net.Conn
	ended bool
}

// call makes a call to the replica at addr. to is the Raft id that the replica must have; "" accepts any
// replica.
func (p *peers) call(ctx context.Context, to, addr string, req *request) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, p.n.cfg.Timing.RPC)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	key := to + "@" + addr
	conn := p.take(key)
	reused := conn != nil
	for {
		if conn == nil {
			if conn, err = p.n.port.connect(ctx, kindPeer, to, addr); err != nil {
				return nil, fmt.Errorf("%s to %s: %w", req.Op, addr, err)
			}
		}
		res, err := exchange(ctx, conn, body)
		if err == nil {
			p.keep(key, conn)
			if res.Error != "" {
				return nil, fmt.Errorf("%s to %s: %s", req.Op, addr, res.Error)
			}
			return res, nil
		}
		conn.Close()
		conn = nil
		if !reused || ctx.Err() != nil {
			return nil, fmt.Errorf("%s to %s: %w", req.Op, addr, err)
		}
		reused = false // the peer may have closed this idle connection long ago: dial again
	}
}

func exchange(ctx context.Context, conn net.Conn, body []byte) (*response, error) {
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := writeFrame(conn, body); err != nil {
		return nil, err
	}
	out, err := readFrame(conn, peerLimit)
	if err != nil {
		return nil, err
	}
	res := &response{}
	if err := json.Unmarshal(out, res); err != nil {
		return nil, err
	}
	return res, nil
}

func (p *peers) take(key string) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.idle[key]
	delete(p.idle, key)
	return c
}

const idleLimit = 32

func (p *peers) keep(key string, c net.Conn) {
	p.mu.Lock()
	old := p.idle[key]
	if p.ended || len(p.idle) >= idleLimit {
		old = c
	} else {
		p.idle[key] = c
	}
	p.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

func (p *peers) close() {
	p.mu.Lock()
	p.ended = true
	all := p.idle
	p.idle = map[string]net.Conn{}
	p.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// greetPeer asks the replica at addr who it is.
func (n *Node) greetPeer(ctx context.Context, addr string) (*Hello, error) {
	res, err := n.peers.call(ctx, "", addr, &request{Op: opHello})
	if err != nil {
		return nil, err
	}
	if res.Hello == nil || res.Hello.ID == "" || !nameRule.MatchString(res.Hello.Name) {
		return nil, fmt.Errorf("hello to %s: no introduction in the answer", addr)
	}
	return res.Hello, nil
}
