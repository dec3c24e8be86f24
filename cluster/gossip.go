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

// Gossip finds replicas and suspects dead ones. It proves nothing: whoever it
// names is asked on the Raft port who it is (cluster/DESIGN.md).

// hint is what gossip carries about a replica: at most 512 bytes.
type hint struct {
	Name string `json:"n"`
	Raft string `json:"r"`
	GRPC string `json:"g,omitempty"`
}

const hintLimit = memberlist.MetaMaxSize

// How fast a replica is missed. DNS names a silent one last after suspectAfter
// and not at all once gossip has given it up: both within the TTL of the
// schedulers' records, 5 s, and the first within a second.
const (
	pingEvery    = 250 * time.Millisecond
	suspectAfter = 600 * time.Millisecond
	probeWait    = 200 * time.Millisecond // for one answer
	// suspicion times probe interval is how long gossip asks around before it
	// gives a replica up: 2 s.
	suspicion = 8
	// unheardAfter is how long a replica that gossip has never met since our start,
	// and Raft does not hear, is waited for: as long as one that was met once.
	unheardAfter = 3 * time.Second
	// goodbyeLimit is how long a replica that stops may take to say so.
	goodbyeLimit = 400 * time.Millisecond
)

type gossip struct {
	n       *Node
	lookup  lookup
	list    *memberlist.Memberlist
	keys    *memberlist.Keyring // nil: gossip is plain
	meta    []byte
	changed chan struct{} // capacity 1

	addr string // advertised
	end  sync.Once

	mu   sync.Mutex
	seen map[string]sighting  // who is alive, by raft id; memberlist's own list may only be read inside its callbacks
	dead map[string]time.Time // raft id → when gossip lost it
	word map[string]time.Time // raft id → when it last answered, or joined
	// sought: raft id → since when a server of the configuration that is neither
	// seen nor dead has been waited for. What gossip knew before our start is not
	// kept: who died meanwhile would be missed by nobody here.
	sought map[string]time.Time
}

func startGossip(n *Node, hooks hooks) (*gossip, error) {
	c := &n.cfg
	g := &gossip{n: n, lookup: net.DefaultResolver.LookupIPAddr, changed: make(chan struct{}, 1), seen: map[string]sighting{}, dead: map[string]time.Time{}, word: map[string]time.Time{}, sought: map[string]time.Time{}}
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
	// The raft id: unique, and another one after the disk was lost.
	mc.Name = n.id
	mc.Delegate, mc.Events = g, g
	mc.Logger = gossipLogger(n.log)
	mc.DeadNodeReclaimTime = time.Second // a restart on another address
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
		g.addr = g.seen[n.id].gossipAddr // we were the first to join
		g.mu.Unlock()
	}
	return g, nil
}

// lookup finds the addresses of a name.
type lookup func(ctx context.Context, host string) ([]net.IPAddr, error)

// resolve turns a host into an IP, because memberlist takes nothing else.
func (g *gossip) resolve(host string) (string, error) {
	ips, err := g.resolveAll(host)
	if err != nil {
		return "", err
	}
	return ips[0], nil
}

// resolveAll is resolve for a name that stands for several: at least one, all IPv4 or all IPv6.
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
	// Replicas advertise one address each, IPv4 before IPv6: others would be asked for ever.
	if four := slices.DeleteFunc(slices.Clone(found), func(a net.IPAddr) bool { return a.IP.To4() == nil }); len(four) > 0 {
		found = four
	}
	ips := make([]string, len(found))
	for i, ip := range found {
		ips[i] = ip.IP.String()
	}
	return ips, nil
}

// SetGossipKeys replaces the keys of gossip: all open what others have sealed, one of
// them seals. Packets that are on their way are lost at worst: a replica installs a key
// before any other seals with it.
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
	// The library moves what stands behind a removed key, in memory that its readers look
	// at. So keys are removed from the end, and what is still wanted is added again.
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

// sighting is one replica as gossip sees it.
type sighting struct {
	id, name, raftAddr, grpcAddr, gossipAddr string
}

// alive lists the other members that gossip holds to be alive, by id.
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

// deadSince says since when gossip misses the replica.
func (g *gossip) deadSince(id string) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.dead[id]
	return at, ok
}

// silent reports whether a replica that gossip holds to be alive has not answered
// for suspectAfter: too long to be asked first, too short to be given up.
func (g *gossip) silent(id string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.word[id]
	return ok && now.Sub(at) > suspectAfter
}

// listen asks every other replica for a sign of life. Gossip's own probes go
// round, one replica per interval, and what it suspects it keeps to itself until
// it is sure.
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
			g.seek(now)
		}
		for _, s := range g.alive() {
			addr, err := net.ResolveUDPAddr("udp", s.gossipAddr) // an IP: no look-up
			if err != nil {
				continue
			}
			// At most one interval long, so at most one or two at a time.
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

// seek gives up the servers of the configuration that have been waited for in
// vain. Whoever turns up later is there again at once.
func (g *gossip) seek(now time.Time) {
	servers := g.n.servers()
	g.mu.Lock()
	defer g.mu.Unlock()
	waited := make(map[string]time.Time, len(g.sought))
	for _, s := range servers {
		id := string(s.ID)
		_, seen := g.seen[id]
		_, dead := g.dead[id]
		if id == g.n.id || seen || dead || g.n.heard(s.ID) {
			continue
		}
		since, ok := g.sought[id]
		if !ok {
			since = now
		}
		if now.Sub(since) < unheardAfter {
			waited[id] = since
		} else if len(g.dead) < onceKeys {
			g.dead[id] = now
		}
	}
	g.sought = waited
}

// maxFresh bounds how many addresses one join asks.
const maxFresh = 256

// join contacts addresses that are not members yet, all that a name stands for; it reports
// how many answered, and why others did not.
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
			continue // validate has seen the configured ones
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

// close ends gossip. It says goodbye first, so that the others need not miss us;
// whom the word does not reach in time finds out by itself.
func (g *gossip) close() (err error) {
	g.end.Do(func() {
		if lerr := g.list.Leave(goodbyeLimit); lerr != nil {
			g.n.log.Debug("gossip: no goodbye", "err", lerr)
		}
		err = g.list.Shutdown()
	})
	return err
}

// NodeMeta and the rest of memberlist.Delegate.
func (g *gossip) NodeMeta(int) []byte             { return g.meta }
func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(int, int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}

// NotifyJoin and the rest of memberlist.EventDelegate.
func (g *gossip) NotifyJoin(m *memberlist.Node) {
	s := sighting{id: m.Name, gossipAddr: m.Address()}
	var h hint
	if json.Unmarshal(m.Meta, &h) == nil {
		s.name, s.raftAddr, s.grpcAddr = h.Name, h.Raft, h.GRPC
	}
	g.n.port.sighted(s.id, s.raftAddr)
	g.mu.Lock()
	delete(g.dead, s.id)
	g.seen[s.id] = s
	if s.id != g.n.id {
		g.word[s.id] = time.Now()
	}
	g.mu.Unlock()
	g.poke()
}

// NotifyLeave is called for the dead as well.
func (g *gossip) NotifyLeave(m *memberlist.Node) {
	g.n.port.sighted(m.Name, "")
	g.mu.Lock()
	delete(g.seen, m.Name)
	delete(g.word, m.Name)
	if len(g.dead) < onceKeys {
		g.dead[m.Name] = time.Now()
	}
	g.mu.Unlock()
	g.poke()
}

// NotifyUpdate replaces what is known.
func (g *gossip) NotifyUpdate(m *memberlist.Node) { g.NotifyJoin(m) }
