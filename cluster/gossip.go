package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Gossip finds replicas and suspects dead ones. It proves nothing: each replica that it names is asked on
// the Raft port who it is (cluster/DESIGN.md).

// hint is the metadata of a replica in gossip, at most 512 bytes.
type hint struct {
	Name string `json:"n"`
	Raft string `json:"r"`
	GRPC string `json:"g,omitempty"`
}

const hintLimit = memberlist.MetaMaxSize

// Failure detection. DNS lists a silent replica last after suspectAfter (under a second), and omits it once
// gossip holds it for dead. Both are within the 5 s TTL of the schedulers' records.
const (
	pingEvery    = 250 * time.Millisecond
	suspectAfter = 600 * time.Millisecond
	probeWait    = 200 * time.Millisecond // timeout of one probe
	// suspicion times the probe interval is the time for which gossip asks other members before it declares
	// a replica dead: 2 s.
	suspicion = 8
	// neverMetTimeout is the time for which a replica that gossip has not met since the start, and that
	// Raft does not hear, counts as suspect. It is as long as for a replica that was met.
	neverMetTimeout = 3 * time.Second
	// leaveTimeout bounds the leave message of a replica that stops.
	leaveTimeout = 400 * time.Millisecond
)

type gossip struct {
	n       *Node
	lookup  lookup
	list    *memberlist.Memberlist
	keys    *memberlist.Keyring // nil: plain gossip
	meta    []byte
	changed chan struct{} // capacity 1

	addr string // advertised address
	end  sync.Once

	mu   sync.Mutex
	seen map[string]sighting  // members that are alive, by Raft id; memberlist's own list may be read in its callbacks only
	dead map[string]time.Time // Raft id → time at which gossip declared it dead
	word map[string]time.Time // Raft id → time of its last answer, or of its join
	// neverMet: Raft id → time since which this process waits for a configured server that is neither seen
	// nor dead. Gossip keeps nothing over a restart, so a server that died meanwhile would otherwise never
	// be declared dead here.
	neverMet map[string]time.Time
}

func startGossip(n *Node, hooks hooks) (*gossip, error) {
	c := &n.cfg
	g := &gossip{n: n, lookup: net.DefaultResolver.LookupIPAddr, changed: make(chan struct{}, 1), seen: map[string]sighting{}, dead: map[string]time.Time{}, word: map[string]time.Time{}, neverMet: map[string]time.Time{}}
	if hooks.lookup != nil {
		g.lookup = hooks.lookup
	}
	meta, err := json.Marshal(hint{Name: c.Name, Raft: n.port.advertise, GRPC: c.GRPCAdvertise})
	if err != nil {
		return nil, err
	}
	if len(meta) > hintLimit {
		return nil, fmt.Errorf("SCHEDULER_NAME and the advertised addresses take %d bytes of gossip, limit %d", len(meta), hintLimit)
	}
	g.meta = meta

	mc := memberlist.DefaultLANConfig()
	mc.ProbeInterval, mc.ProbeTimeout, mc.SuspicionMult = pingEvery, probeWait, suspicion
	if c.Timing.FastGossip {
		mc = memberlist.DefaultLocalConfig()
		mc.ProbeInterval = 200 * time.Millisecond
		mc.ProbeTimeout = 100 * time.Millisecond
		mc.SuspicionMult = 4
		mc.GossipInterval = 20 * time.Millisecond
		mc.PushPullInterval = time.Second
	}
	// The name in gossip is the Raft id: it is unique, and a replica that lost its disk has a new one.
	mc.Name = n.id
	mc.Delegate, mc.Events = g, g
	mc.Logger = gossipLogger(n.log)
	mc.DeadNodeReclaimTime = time.Second // for a restart at another address
	if len(c.GossipKey) > 0 {
		if mc.Keyring, err = memberlist.NewKeyring(c.GossipKeys, c.GossipKey); err != nil {
			return nil, fmt.Errorf("gossip keys: %w", err)
		}
		g.keys = mc.Keyring
	}
	host, port, err := splitAddr(c.GossipBind)
	if err != nil {
		return nil, fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %w", err)
	}
	if mc.BindAddr, err = g.resolve(host); err != nil {
		return nil, fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %w", err)
	}
	mc.BindPort, mc.AdvertisePort = port, port
	if c.GossipAdvertise != "" {
		host, port, err := splitAddr(c.GossipAdvertise)
		if err != nil {
			return nil, fmt.Errorf("gossip advertise address: %w", err)
		}
		if mc.AdvertiseAddr, err = g.resolve(host); err != nil {
			return nil, fmt.Errorf("gossip advertise address: %w", err)
		}
		mc.AdvertisePort = port
	} else if net.ParseIP(mc.BindAddr).IsUnspecified() {
		mc.AdvertiseAddr = FirstIP()
	}
	g.list, err = memberlist.Create(mc)
	if err != nil {
		if strings.Contains(err.Error(), "address already in use") {
			return nil, fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %s is in use by another program: %w", c.GossipBind, err)
		}
		return nil, fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %w", err)
	}
	if g.addr = c.GossipAdvertise; g.addr == "" {
		g.mu.Lock()
		g.addr = g.seen[n.id].gossipAddr // this replica was the first member
		g.mu.Unlock()
	}
	return g, nil
}

// lookup resolves a host name.
type lookup func(ctx context.Context, host string) ([]net.IPAddr, error)

// resolve turns a host into an IP address: memberlist accepts no names.
func (g *gossip) resolve(host string) (string, error) {
	ips, err := g.resolveAll(host)
	if err != nil {
		return "", err
	}
	return ips[0], nil
}

// resolveAll returns all addresses of a name, at least one, and either all IPv4 or all IPv6.
func (g *gossip) resolveAll(host string) ([]string, error) {
	if host == "" {
		return []string{"0.0.0.0"}, nil
	}
	if ip := net.ParseIP(host); ip != nil {
		return []string{ip.String()}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	found, err := g.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	// Each replica advertises one address, IPv4 before IPv6. A second address of a replica would never
	// become a member and would be dialled for ever.
	if four := slices.DeleteFunc(slices.Clone(found), func(a net.IPAddr) bool { return a.IP.To4() == nil }); len(four) > 0 {
		found = four
	}
	ips := make([]string, len(found))
	for i, ip := range found {
		ips[i] = ip.IP.String()
	}
	return ips, nil
}

// SetGossipKeys replaces the gossip keys: seals encrypts, all of them decrypt. It loses at most the packets
// under way, because every replica installs a new key before any replica encrypts with it.
func (n *Node) SetGossipKeys(seals []byte, all [][]byte) error {
	ring := n.gossip.keys
	if ring == nil {
		return errors.New("gossip is not sealed: it runs without a key")
	}
	add := func() error {
		for _, k := range all {
			if err := ring.AddKey(k); err != nil {
				return fmt.Errorf("gossip key: %w", err)
			}
		}
		return nil
	}
	if err := add(); err != nil {
		return err
	}
	if err := ring.UseKey(seals); err != nil {
		return fmt.Errorf("gossip key: %w", err)
	}
	// The library moves the keys behind a removed one, in memory that readers use at that moment. So remove
	// keys from the end, and add those that are still wanted again.
	keys := slices.Clone(ring.GetKeys())
	first := slices.IndexFunc(keys, func(k []byte) bool {
		return !slices.ContainsFunc(all, func(a []byte) bool { return bytes.Equal(a, k) })
	})
	if first < 0 {
		return nil
	}
	for i := len(keys) - 1; i >= first; i-- {
		if err := ring.RemoveKey(keys[i]); err != nil {
			return fmt.Errorf("gossip key: %w", err)
		}
	}
	return add()
}

func (n *Node) gossipAddr() string {
	if n.gossip == nil {
		return ""
	}
	return n.gossip.addr
}

// sighting is one replica in gossip.
type sighting struct {
	id, name, raftAddr, grpcAddr, gossipAddr string
}

// alive lists the other members that are alive, by id.
func (g *gossip) alive() []sighting {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []sighting
	for id, s := range g.seen {
		if id != g.n.id && s.raftAddr != "" {
			out = append(out, s)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].id < out[j].id })
	return out
}

// deadSince returns the time at which gossip declared the replica dead.
func (g *gossip) deadSince(id string) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.dead[id]
	return at, ok
}

// silent reports whether a member that gossip holds for alive has not answered for suspectAfter. DNS lists
// such a replica last.
func (g *gossip) silent(id string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.word[id]
	return ok && now.Sub(at) > suspectAfter
}

// listen pings every other replica. Gossip's own probes reach one replica per interval, and memberlist does
// not tell whom it suspects.
func (g *gossip) listen() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	var pings sync.WaitGroup
	defer pings.Wait()
	for {
		select {
		case <-g.n.ctx.Done():
			return
		case now := <-tick.C:
			g.expireNeverMet(now)
		}
		for _, s := range g.alive() {
			addr, err := net.ResolveUDPAddr("udp", s.gossipAddr) // an IP address: no lookup
			if err != nil {
				continue
			}
			// A ping takes at most one interval, so at most two per replica run at once.
			pings.Go(func() {
				if _, err := g.list.Ping(s.id, addr); err != nil {
					return
				}
				g.mu.Lock()
				defer g.mu.Unlock()
				if _, ok := g.seen[s.id]; ok {
					g.word[s.id] = time.Now()
				}
			})
		}
	}
}

// expireNeverMet declares configured servers dead that gossip has not met in time. A server that turns up
// later is alive again at once.
func (g *gossip) expireNeverMet(now time.Time) {
	servers := g.n.servers()
	g.mu.Lock()
	defer g.mu.Unlock()
	waited := make(map[string]time.Time, len(g.neverMet))
	for _, s := range servers {
		id := string(s.ID)
		_, seen := g.seen[id]
		_, dead := g.dead[id]
		if id == g.n.id || seen || dead || g.n.heard(s.ID) {
			continue
		}
		since, ok := g.neverMet[id]
		if !ok {
			since = now
		}
		if now.Sub(since) < neverMetTimeout {
			waited[id] = since
		} else if len(g.dead) < onceKeys {
			g.dead[id] = now
		}
	}
	g.neverMet = waited
}

// maxFresh bounds the addresses that one join dials.
const maxFresh = 256

// join dials addresses that are not members yet, all addresses of a name. It returns how many answered, and
// why the others did not.
func (g *gossip) join(addrs []string) (int, error) {
	known := map[string]bool{g.addr: true}
	g.mu.Lock()
	for _, s := range g.seen {
		known[s.gossipAddr] = true
	}
	g.mu.Unlock()
	var fresh []string
	var errs []error
	for _, a := range addrs {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			continue // the configured addresses were validated
		}
		ips, err := g.resolveAll(host)
		if err != nil {
			errs = append(errs, err)
		}
		for _, ip := range ips {
			if to := net.JoinHostPort(ip, port); !known[to] && len(fresh) < maxFresh {
				known[to] = true
				fresh = append(fresh, to)
			}
		}
	}
	if len(fresh) == 0 {
		return 0, errors.Join(errs...)
	}
	joined, err := g.list.Join(fresh)
	return joined, errors.Join(append(errs, err)...)
}

func (g *gossip) poke() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// close ends gossip. It sends a leave message first, so that the other replicas need no failure detection.
// A replica that misses the message detects the end itself.
func (g *gossip) close() (err error) {
	g.end.Do(func() {
		if lerr := g.list.Leave(leaveTimeout); lerr != nil {
			g.n.log.Debug("gossip: no goodbye", "err", lerr)
		}
		err = g.list.Shutdown()
	})
	return err
}

// NodeMeta and the next methods implement memberlist.Delegate.
func (g *gossip) NodeMeta(int) []byte             { return g.meta }
func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(int, int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}

// NotifyJoin and the next methods implement memberlist.EventDelegate.
func (g *gossip) NotifyJoin(m *memberlist.Node) {
	s := sighting{id: m.Name, gossipAddr: m.Address()}
	var h hint
	if json.Unmarshal(m.Meta, &h) == nil {
		s.name, s.raftAddr, s.grpcAddr = h.Name, h.Raft, h.GRPC
	}
	g.n.port.setGossipAddr(s.id, s.raftAddr)
	g.mu.Lock()
	delete(g.dead, s.id)
	g.seen[s.id] = s
	if s.id != g.n.id {
		g.word[s.id] = time.Now()
	}
	g.mu.Unlock()
	g.poke()
}

// NotifyLeave is called for dead members too.
func (g *gossip) NotifyLeave(m *memberlist.Node) {
	g.n.port.setGossipAddr(m.Name, "")
	g.mu.Lock()
	delete(g.seen, m.Name)
	delete(g.word, m.Name)
	if len(g.dead) < onceKeys {
		g.dead[m.Name] = time.Now()
	}
	g.mu.Unlock()
	g.poke()
}

// NotifyUpdate replaces the metadata of a member.
func (g *gossip) NotifyUpdate(m *memberlist.Node) { g.NotifyJoin(m) }
