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

	"github.com/persys/compute/fsm"
)

// Calls between replicas on the Raft port: one JSON message in each direction, on a connection that is
// reused. Calls are few, small and not on the path of a write, so JSON is fast enough.
const (
	peerLimit = 64 << 10
	peerIdle  = 2 * time.Minute
)

// Hello introduces a replica.
type Hello struct {
	ID        string `json:"id"` // Raft id
	Name      string `json:"name"`
	ClusterID string `json:"cluster,omitempty"`
	Shard     string `json:"shard,omitempty"`
	// Knows: the replica has a configuration, so it must not help to form a cluster.
	Knows bool `json:"knows,omitempty"`
	// Removed: the cluster has removed the replica, and must not add it again.
	Removed bool `json:"removed,omitempty"`
	// Expect is the replica's SCHEDULER_BOOTSTRAP_EXPECT.
	Expect int `json:"expect,omitempty"`

	RaftAddr   string `json:"raft"`
	GossipAddr string `json:"gossip,omitempty"`
	GRPCAddr   string `json:"grpc,omitempty"`
	HTTPAddr   string `json:"http,omitempty"`
	DNSAddr    string `json:"dns,omitempty"`

	Version      string `json:"version,omitempty"`
	FeatureLevel uint32 `json:"level,omitempty"`

	Term      uint64 `json:"term,omitempty"`
	LastIndex uint64 `json:"last,omitempty"`
	Applied   uint64 `json:"applied,omitempty"`
}

// request is one peer call. Only the fields of its Op are set.
type request struct {
	Op    string `json:"op"`
	Hello *Hello `json:"hello,omitempty"`
	Index uint64 `json:"index,omitempty"` // for opDigest
}

// The operations of peer calls.
const (
	opHello   = "hello"   // asks who the replica is
	opForm    = "form"    // asks to promise not to form a cluster with another replica
	opDigest  = "digest"  // asks for the digest at Index
	opLeave   = "leave"   // asks the leader to remove the sender
	opRemoved = "removed" // the leader tells that it removed the receiver
	opDepart  = "depart"  // the leader asks the receiver to leave
)

type response struct {
	Error  string `json:"error,omitempty"`
	Hello  *Hello `json:"hello,omitempty"`
	Digest uint64 `json:"digest,omitempty"`
	Known  bool   `json:"known,omitempty"`
	Level  uint32 `json:"level,omitempty"`
}

// servePeer answers calls until the connection ends.
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
	case opDepart:
		ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timing.RPC)
		defer cancel()
		return n.Depart(ctx)
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
		Version: c.Version, FeatureLevel: c.FeatureLevel,
		Term: n.raft.CurrentTerm(), LastIndex: n.raft.LastIndex(), Applied: n.Store().View().Info().Index,
	}
}

func (h *Hello) replica() *fsm.Replica {
	return &fsm.Replica{
		ID: h.ID, Name: h.Name, GRPCAddr: h.GRPCAddr, HTTPAddr: h.HTTPAddr, RaftAddr: h.RaftAddr,
		GossipAddr: h.GossipAddr, DNSAddr: h.DNSAddr, Version: h.Version, FeatureLevel: h.FeatureLevel,
	}
}

// knows reports whether this replica has a configuration or is getting one. A cluster id that was only
// configured is the wish for a new cluster, and does not count.
func (n *Node) knows() bool {
	return len(n.servers()) > 0 || n.learned.Load() != nil
}

// servers returns the latest configuration, committed or not.
func (n *Node) servers() []raft.Server { return n.raft.GetConfiguration().Configuration().Servers }

// peers keeps one connection per address.
type peers struct {
	n     *Node
	mu    sync.Mutex
	idle  map[string]net.Conn
	ended bool
}

// call calls the replica at addr. to is its Raft id; "" accepts any replica.
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
		reused = false // the peer may have closed the connection long ago: dial again
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
