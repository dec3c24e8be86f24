package cluster

import (
	"bytes"
	"cmp"
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

// Gossip finds replicas and suspects dead ones. It proves nothing about them: this replica asks each replica
// that gossip names, on the Raft port, who it is (cluster/DESIGN.md).

// hint is the metadata that a replica publishes about itself in gossip, at most 512 bytes.
type hint struct {
	Name string `json:"n"`
	Raft string `json:"r"`
	GRPC string `json:"g,omitempty"`
}

const hintLimit = memberlist.MetaMaxSize

// Durations of failure detection. DNS lists a silent replica last after suspectAfter (under a second), and
// omits the replica once gossip declares it dead. Both happen within the 5 s TTL of the schedulers' DNS
// records.
const (
	pingEvery    = 250 * time.Millisecond
	suspectAfter = 600 * time.Millisecond
	probeWait    = 200 * time.Millisecond // timeout of one probe of another replica
	// suspicion times the probe interval (2 s) is the time for which gossip asks other members about a
	// silent replica before it declares the replica dead.
	suspicion = 8
	// neverMetTimeout concerns a configured replica that gossip has not met since this process
	// started and from which Raft receives no messages. Such a replica is suspect, and after
	// neverMetTimeout it is declared dead. Gossip takes about as long to declare a replica dead
	// that it has met.
	neverMetTimeout = 3 * time.Second
	// leaveTimeout is the timeout for sending the leave message when this replica stops.
	leaveTimeout = 400 * time.Millisecond
)

type gossip struct {
	n       *Node
	lookup  lookup
	list    *memberlist.Memberlist
	keys    *memberlist.Keyring // keys of gossip; nil if gossip is not encrypted
	meta    []byte
	changed chan struct{} // signals a change of members; capacity 1

	life  sync.Mutex // guards ended, and the first assignment of the field list
	ended bool

	mu   sync.Mutex
	addr string               // advertised gossip address; "" before start
	seen map[string]sighting  // live members by Raft id; memberlist's own list may be read only in its callbacks
	dead map[string]time.Time // for each Raft id: the time at which gossip declared the replica dead
	word map[string]time.Time // for each Raft id: the time of the replica's last answer to a ping, or of its join in gossip
	// neverMet holds the configured servers that are neither in seen nor in dead: it maps the Raft
	// id of the server to the time when this process began to wait for it. Gossip stores nothing
	// across a restart. Without neverMet, this replica would never declare a server dead that died
	// while this process was down.
	neverMet map[string]time.Time
	twins    map[string]string // for the Raft id of a live replica: the Raft address of another replica with the same id
}

// newGossip creates the gossip of node n without opening its port; call start.
func newGossip(n *Node, hooks hooks) (*gossip, error) {
	c := &n.cfg
	g := &gossip{n: n, lookup: net.DefaultResolver.LookupIPAddr, changed: make(chan struct{}, 1), seen: map[string]sighting{}, dead: map[string]time.Time{}, word: map[string]time.Time{}, neverMet: map[string]time.Time{}, twins: map[string]string{}}
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
	if len(c.GossipKey) > 0 {
		if g.keys, err = memberlist.NewKeyring(c.GossipKeys, c.GossipKey); err != nil {
			return nil, fmt.Errorf("gossip keys: %w", err)
		}
	}
	return g, nil
}

// start opens the gossip port and makes this replica a member of the gossip group.
func (g *gossip) start() error {
	g.life.Lock()
	defer g.life.Unlock()
	if g.ended {
		return ErrClosed
	}
	c := &g.n.cfg
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
	// The name in gossip is the Raft id, because the id is unique, and a replica that lost its disk has a
	// new id.
	mc.Name = g.n.id
	mc.Delegate, mc.Events, mc.Conflict = g, g, g
	mc.Logger = gossipLogger(g.n.log)
	mc.DeadNodeReclaimTime = time.Second // lets a replica that restarts at another address keep its id
	mc.Keyring = g.keys
	host, port, err := splitAddr(c.GossipBind)
	if err != nil {
		return fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %w", err)
	}
	if mc.BindAddr, err = g.resolve(host); err != nil {
		return fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %w", err)
	}
	mc.BindPort, mc.AdvertisePort = port, port
	if c.GossipAdvertise != "" {
		host, port, err := splitAddr(c.GossipAdvertise)
		if err != nil {
			return fmt.Errorf("gossip advertise address: %w", err)
		}
		if mc.AdvertiseAddr, err = g.resolve(host); err != nil {
			return fmt.Errorf("gossip advertise address: %w", err)
		}
		mc.AdvertisePort = port
	} else if net.ParseIP(mc.BindAddr).IsUnspecified() {
		mc.AdvertiseAddr = cmp.Or(c.OutwardIP, FirstIP())
	}
	list, err := memberlist.Create(mc)
	if err != nil {
		if strings.Contains(err.Error(), "address already in use") {
			return fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %s is in use by another program: %w", c.GossipBind, err)
		}
		return fmt.Errorf("SCHEDULER_GOSSIP_ADDR: %w", err)
	}
	g.list = list
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.addr = c.GossipAdvertise; g.addr == "" {
		g.addr = g.seen[g.n.id].gossipAddr // the first member that memberlist reported is this replica itself
	}
	return nil
}

// leave announces to the other members that this replica leaves, and waits for at most limit.
func (g *gossip) leave(limit time.Duration) error {
	g.life.Lock()
	defer g.life.Unlock()
	if g.list == nil || g.ended {
		return nil
	}
	return g.list.Leave(limit)
}

// lookup resolves a host name to IP addresses.
type lookup func(ctx context.Context, host string) ([]net.IPAddr, error)

// resolve turns a host into an IP address: memberlist accepts no names.
func (g *gossip) resolve(host string) (string, error) {
	ips, err := g.resolveAll(host)
	if err != nil {
		return "", err
	}
	return ips[0], nil
}

// resolveAll returns all addresses of a host name: at least one, and either all IPv4 or all IPv6.
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
	// Each replica advertises one address, IPv4 if it has one. An IPv6 address of such a replica never appears among
	// the members, so it would be dialled for ever.
	if four := slices.DeleteFunc(slices.Clone(found), func(a net.IPAddr) bool { return a.IP.To4() == nil }); len(four) > 0 {
		found = four
	}
	ips := make([]string, len(found))
	for i, ip := range found {
		ips[i] = ip.IP.String()
	}
	return ips, nil
}

// SetGossipKeys replaces the gossip keys: this replica encrypts with seals and decrypts with every key in all. When
// the cluster changes its key, every replica installs the new key before any replica encrypts with it. So a change
// loses at most the packets in transit.
func (n *Node) SetGossipKeys(seals []byte, all [][]byte) error {
	ring := n.gossip.keys
	if ring == nil {
		return errors.New("gossip is not encrypted, because it has no key")
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
	// When memberlist removes a key, it shifts the keys after it within an array that readers use at that
	// moment. So remove keys from the end only, until no unwanted key is left, and then add the wanted
	// ones again that had to be removed.
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
	n.gossip.mu.Lock()
	defer n.gossip.mu.Unlock()
	return n.gossip.addr
}

// sighting is what gossip knows about one other replica.
type sighting struct {
	id, name, raftAddr, grpcAddr, gossipAddr string
}

// alive returns the other replicas that gossip considers alive, sorted by id.
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

// deadSince returns the time at which gossip declared replica id dead; false if it did not.
func (g *gossip) deadSince(id string) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.dead[id]
	return at, ok
}

// silent reports whether a replica that gossip lists as alive has not answered for suspectAfter. DNS lists
// such a replica last.
func (g *gossip) silent(id string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.word[id]
	return ok && now.Sub(at) > suspectAfter
}

// listen pings every other replica once per interval. The probes of memberlist reach only one replica
// per interval, and memberlist does not report which replica it suspects.
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
			addr, err := net.ResolveUDPAddr("udp", s.gossipAddr) // the host is an IP address, so this needs no DNS lookup
			if err != nil {
				continue
			}
			// A ping takes at most one interval, so at most two pings per replica run at once.
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

// expireNeverMet declares a configured server dead if gossip has not met it within neverMetTimeout. A server
// that appears later is alive again at once.
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

// maxFresh is the largest number of addresses that one call of join dials; it skips further
// addresses.
const maxFresh = 256

// join dials those addresses of addrs that no member uses yet. A host name stands for all of its addresses. join
// returns the number of addresses that answered, and the errors of the other addresses.
func (g *gossip) join(addrs []string) (int, error) {
	if g.isOver() {
		return 0, nil
	}
	g.mu.Lock()
	known := map[string]bool{g.addr: true}
	for _, s := range g.seen {
		known[s.gossipAddr] = true
	}
	g.mu.Unlock()
	var fresh []string
	var errs []error
	for _, a := range addrs {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			continue // cannot happen, because Config was validated
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

func (g *gossip) isOver() bool {
	g.life.Lock()
	defer g.life.Unlock()
	return g.ended
}

func (g *gossip) poke() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// close ends gossip. If goodbye is true, it first sends a leave message, so that the other replicas need no failure
// detection; a replica that misses the message detects the end by its probes. A copy passes false: it has the Raft id
// of the original replica, which must not appear to leave.
func (g *gossip) close(goodbye bool) error {
	g.life.Lock()
	defer g.life.Unlock()
	if g.ended {
		return nil
	}
	g.ended = true
	if g.list == nil {
		return nil
	}
	if goodbye {
		if err := g.list.Leave(leaveTimeout); err != nil {
			g.n.log.Debug("gossip: no goodbye", "err", err)
		}
	}
	return g.list.Shutdown()
}

// NodeMeta and the following methods implement memberlist.Delegate.
func (g *gossip) NodeMeta(int) []byte             { return g.meta }
func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(int, int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}

// NotifyJoin and the following methods implement memberlist.EventDelegate.
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

// NotifyLeave is called when a member leaves, and also when it is declared dead.
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

// NotifyUpdate is called when a member has new metadata.
func (g *gossip) NotifyUpdate(m *memberlist.Node) { g.NotifyJoin(m) }

// NotifyConflict is called when a second replica uses the Raft id of a live replica, for example on
// a copy of a machine.
func (g *gossip) NotifyConflict(_, other *memberlist.Node) {
	var h hint
	if json.Unmarshal(other.Meta, &h) != nil || h.Raft == "" {
		return
	}
	g.mu.Lock()
	if len(g.twins) < onceKeys {
		g.twins[other.Name] = h.Raft
	}
	g.mu.Unlock()
	g.poke()
}

// takeTwins returns and clears the conflicts that NotifyConflict recorded: for each Raft id of a live
// replica, the Raft address of another replica that uses the same id.
func (g *gossip) takeTwins() map[string]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	twins := g.twins
	g.twins = map[string]string{}
	return twins
}
