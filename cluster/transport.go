package cluster

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// The Raft port carries two kinds of connections, distinguished by their first byte: Raft's streams, and
// calls between replicas (peer.go). Both begin with a greeting that names the sender, the replica that it
// wants to reach, and the cluster. The answer to the greeting is empty, or the reason of a refusal. Raft itself checks
// neither sender nor receiver nor cluster. Without the greeting, a replica that lost its disk would vote under its old
// id, and a replica of another cluster that got a reused address would have its log overwritten.
const (
	kindRaft = 'R'
	kindPeer = 'P'

	greetTimeout = 5 * time.Second
	greetLimit   = 4 << 10
)

type greeting struct {
	From    string `json:"from"`
	To      string `json:"to,omitempty"` // Raft id of the replica that the sender wants to reach; "" for any replica
	Cluster string `json:"cluster,omitempty"`
}

// port is the Raft port of a replica: the listener, and the StreamLayer of the Raft library.
type port struct {
	n         *Node
	ln        net.Listener
	advertise string
	dial      func(ctx context.Context, addr string) (net.Conn, error)
	raftConns chan net.Conn
	open      *handshakes // handshakes that have not ended

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	seen   map[string]string // Raft id → Raft address in gossip
	done   chan struct{}
	wg     sync.WaitGroup
}

func listenPort(n *Node, bind, advertise string, hooks hooks) (*port, error) {
	ln, err := net.Listen("tcp", bind)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("SCHEDULER_RAFT_ADDR: %s is in use by another program: %w", bind, err)
		}
		return nil, fmt.Errorf("SCHEDULER_RAFT_ADDR: %w", err)
	}
	adv, err := advertised(advertise, n.cfg.OutwardIP, ln.Addr())
	if err != nil {
		ln.Close()
		return nil, err
	}
	p := newPort(n, hooks)
	p.ln, p.advertise = ln, adv
	return p, nil
}

// newPort returns a port that can dial but does not listen yet.
func newPort(n *Node, hooks hooks) *port {
	p := &port{
		n:         n,
		raftConns: make(chan net.Conn),
		open:      newHandshakes(),
		conns:     map[net.Conn]struct{}{},
		seen:      map[string]string{},
		done:      make(chan struct{}),
	}
	dialer := &net.Dialer{Timeout: greetTimeout}
	p.dial = func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }
	if hooks.dial != nil {
		p.dial = hooks.dial
	}
	return p
}

// serve accepts connections on the Raft port until the port is closed.
func (p *port) serve() {
	pause := time.Duration(0)
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			select {
			case <-p.done:
				return
			default:
			}
			// The process probably has too many open files: wait before the next Accept.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.n.log.Warn("raft port: accept failed", "err", err)
			select {
			case <-p.done:
				return
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		from := addrOf(conn.RemoteAddr())
		leave := p.open.enter(from, p.hasReplica(from))
		if leave == nil {
			conn.Close() // too many unfinished handshakes
			continue
		}
		if !p.track(conn) {
			conn.Close()
			leave()
			return
		}
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			p.handle(conn, leave)
		}()
	}
}

// handle does the handshake of an incoming connection and passes the connection on to the library or to
// servePeer. It calls leave when the handshake has ended.
func (p *port) handle(raw net.Conn, leave func()) {
	conn, kind, g, err := p.handshake(raw)
	leave()
	if err != nil {
		p.drop(raw)
		if !errors.Is(err, io.EOF) && !p.isClosed() {
			// Log each kind of error once per machine. The remote port differs with every connection, so the
			// key that tells log lines apart does not contain it.
			host, _, _ := net.SplitHostPort(raw.RemoteAddr().String())
			p.n.once.warn(p.n.log, fmt.Sprintf("refused:%s:%T", host, err), "connection on the raft port refused", "from", raw.RemoteAddr().String(), "err", err)
		}
		return
	}
	p.open.succeeded(addrOf(raw.RemoteAddr()))
	conn = p.cutRevoked(conn, raw)
	switch kind {
	case kindRaft:
		c := &tracked{Conn: conn, p: p, raw: raw, from: g.From}
		select {
		case p.raftConns <- c:
		case <-p.done:
			c.Close()
		}
	case kindPeer:
		defer conn.Close() // closed after the raw connection, so this does not wait for the peer
		defer p.drop(raw)
		p.n.servePeer(conn)
	}
}

// cutRevoked wraps conn, so that it is closed when its peer is no longer accepted, for example after a
// revocation.
func (p *port) cutRevoked(conn, raw net.Conn) net.Conn {
	tc, ok := conn.(*tls.Conn)
	if !ok || p.n.cfg.TLS.CutRevoked == nil {
		return conn
	}
	return p.n.cfg.TLS.CutRevoked(conn, raw, tc.ConnectionState())
}

func (p *port) handshake(raw net.Conn) (conn net.Conn, kind byte, g greeting, err error) {
	raw.SetDeadline(time.Now().Add(greetTimeout))
	conn = raw
	if t := p.n.cfg.TLS; t != nil {
		tc := tls.Server(raw, t.Server)
		if err := tc.HandshakeContext(p.n.ctx); err != nil {
			return nil, 0, g, fmt.Errorf("TLS: %w", err)
		}
		if t.VerifyPeer != nil {
			if err := t.VerifyPeer(tc.ConnectionState()); err != nil {
				return nil, 0, g, err
			}
		}
		conn = tc
	}
	if kind, g, err = readGreeting(conn); err != nil {
		return nil, 0, g, err
	}
	refusal := p.n.checkGreeting(g)
	answer := ""
	if refusal != nil {
		answer = refusal.Error()
	}
	if err := writeFrame(conn, []byte(answer)); err != nil {
		return nil, 0, g, err
	}
	if refusal != nil {
		return nil, 0, g, refusal
	}
	conn.SetDeadline(time.Time{})
	return conn, kind, g, nil
}

// readGreeting reads the beginning of a connection: one byte for its kind, two bytes for the length, and the
// greeting. io.EOF means that the peer only probed the port, or disconnected.
func readGreeting(r io.Reader) (kind byte, g greeting, err error) {
	var head [3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, g, io.EOF
	}
	kind = head[0]
	size := int(binary.BigEndian.Uint16(head[1:]))
	if kind != kindRaft && kind != kindPeer || size > greetLimit {
		return 0, g, errors.New("not a Persys replica")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, g, err
	}
	if err := json.Unmarshal(body, &g); err != nil {
		return 0, g, fmt.Errorf("greeting: %w", err)
	}
	return kind, g, nil
}

// checkGreeting returns an error if this replica must refuse the sender of the greeting.
func (n *Node) checkGreeting(g greeting) error {
	own := n.clusterID()
	switch {
	case g.Cluster != "" && own != "" && g.Cluster != own:
		return fmt.Errorf("%w: replica %s is of cluster %q, replica %s (%s) of cluster %q", ErrWrongCluster, g.From, g.Cluster, n.id, n.cfg.Name, own)
	case g.To != "" && g.To != n.id:
		return fmt.Errorf("replica %s is no longer at this address; replica %s (%s) answers here", g.To, n.id, n.cfg.Name)
	}
	return nil
}

// connect dials addr and sends a greeting of this kind. to is the Raft id that the replica at addr must have; ""
// accepts any replica.
func (p *port) connect(ctx context.Context, kind byte, to, addr string) (net.Conn, error) {
	raw, err := p.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if !p.track(raw) {
		raw.Close()
		return nil, ErrClosed
	}
	conn, err := p.greet(ctx, raw, kind, to, addr)
	if err != nil {
		p.drop(raw)
		return nil, err
	}
	return &tracked{Conn: p.cutRevoked(conn, raw), p: p, raw: raw}, nil
}

func (p *port) greet(ctx context.Context, raw net.Conn, kind byte, to, addr string) (net.Conn, error) {
	deadline := time.Now().Add(greetTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	raw.SetDeadline(deadline)
	conn := raw
	if t := p.n.cfg.TLS; t != nil {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		tc := tls.Client(raw, t.Client(host))
		if err := tc.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS to %s: %w", addr, err)
		}
		if t.VerifyPeer != nil {
			if err := t.VerifyPeer(tc.ConnectionState()); err != nil {
				return nil, fmt.Errorf("%s: %w", addr, err)
			}
		}
		conn = tc
	}
	body, err := json.Marshal(greeting{From: p.n.id, To: to, Cluster: p.n.clusterID()})
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(body)))
	if _, err := conn.Write(append(head, body...)); err != nil {
		return nil, err
	}
	answer, err := readFrame(conn, greetLimit)
	if err != nil {
		return nil, err
	}
	if len(answer) > 0 {
		return nil, &refusedError{addr: addr, reason: string(answer)}
	}
	raw.SetDeadline(time.Time{})
	return conn, nil
}

// refusedError is the error of a connection that the replica at the other end refused, with the reason that
// it gave.
type refusedError struct{ addr, reason string }

func (e *refusedError) Error() string { return e.addr + " refused: " + e.reason }

// Is makes errors.Is(e, ErrWrongCluster) true if the replica refused because it belongs to another cluster.
func (e *refusedError) Is(target error) bool {
	return target == ErrWrongCluster && strings.HasPrefix(e.reason, ErrWrongCluster.Error())
}

// Accept, Close, Addr and Dial implement Raft's StreamLayer.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.raftConns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close stops listening and closes every connection.
func (p *port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.done)
	// Close the listener first: a follower whose connection breaks dials the port at once, and must find it
	// closed.
	var err error
	if p.ln != nil {
		err = p.ln.Close()
	}
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
	p.mu.Unlock()
	return err
}

func (p *port) isClosed() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Addr returns the advertised Raft address, which is also this server's address in the Raft configuration.
func (p *port) Addr() net.Addr { return namedAddr(p.advertise) }

// setGossipAddr records the Raft address of replica id in gossip; "" when the replica has left gossip.
func (p *port) setGossipAddr(id, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr == "" {
		delete(p.seen, id)
	} else if len(p.seen) < onceKeys || p.seen[id] != "" {
		p.seen[id] = addr
	}
}

// gossipAddrOf returns the last Raft address of replica id in gossip; "" if it has none.
func (p *port) gossipAddrOf(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[id]
}

// Dial connects to a target of the form "<raft id>@<host:port>". If gossip has a different address for that replica,
// Dial tries the address from gossip first. This is needed when most replicas have new addresses: only a leader can
// change the configuration, and there is no leader before the replicas reach each other. The greeting proves which
// replica answers.
func (p *port) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	to, addr, ok := strings.Cut(string(target), "@")
	if !ok {
		return nil, fmt.Errorf("raft target %q lacks an id", target)
	}
	if to == p.n.id {
		return p.loopback()
	}
	ctx, cancel := context.WithTimeout(p.n.ctx, min(timeout, greetTimeout))
	defer cancel()
	if now := p.gossipAddrOf(to); now != "" && now != addr {
		if conn, err := p.connect(ctx, kindRaft, to, now); err == nil {
			return conn, nil
		}
	}
	conn, err := p.connect(ctx, kindRaft, to, addr)
	if errors.Is(err, ErrWrongCluster) {
		p.n.once.warn(p.n.log, "wrong:"+addr, "a replica belongs to another cluster", "err", err)
	}
	return conn, err
}

// loopback returns a connection from this replica to itself. failover.go sends TimeoutNow through it.
func (p *port) loopback() (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.raftConns <- b:
		return a, nil
	case <-p.done:
		return nil, ErrClosed
	}
}

func (p *port) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *port) drop(raw net.Conn) {
	p.mu.Lock()
	delete(p.conns, raw)
	p.mu.Unlock()
	raw.Close()
}

// tracked is a connection that the port can close. An incoming connection reports when it breaks: if it came
// from the leader, the leader may be dead.
type tracked struct {
	net.Conn
	p    *port
	raw  net.Conn
	from string
}

func (t *tracked) Read(b []byte) (int, error) {
	k, err := t.Conn.Read(b)
	if err != nil && t.from != "" && !errors.Is(err, os.ErrDeadlineExceeded) && !t.p.isClosed() {
		t.p.n.failover.connectionBroke(t.from)
	}
	return k, err
}

func (t *tracked) Close() error {
	t.p.mu.Lock()
	delete(t.p.conns, t.raw)
	t.p.mu.Unlock()
	return t.Conn.Close()
}

type namedAddr string

func (a namedAddr) Network() string { return "tcp" }
func (a namedAddr) String() string  { return string(a) }

// writeFrame and readFrame transfer the messages of calls between replicas and of greetings: four
// bytes with the length, then the body.
func writeFrame(w io.Writer, body []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...))
	return err
}

func readFrame(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > uint32(limit) {
		return nil, fmt.Errorf("frame of %d bytes, limit %d", size, limit)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(r, body)
	return body, err
}

// transport is the library's network transport with seven changes:
// - targets contain the Raft id of the replica that they are meant for;
// - answers to heartbeats are recorded, because the library does not expose them;
// - an append to a follower that is away waits until the follower is back;
// - an append that continues this replica's snapshot is accepted;
// - a snapshot that the state contains is not installed;
// - an append to a follower's former address is treated as failed;
// - a term that is implausibly far ahead is not adopted from a peer.
type transport struct {
	*raft.NetworkTransport
	port     *port
	log      *slog.Logger
	history  snapshotHistory
	diverged func(error) // called when this replica's state is found to differ from that of the cluster
	incoming chan raft.RPC
	contacts *contacts
	done     <-chan struct{}
	raft     atomic.Pointer[raft.Raft] // nil until the Raft library has started
	failed   atomic.Int64              // number of failed appends, not counting heartbeats
}

// awayTick is the interval at which a waiting append checks whether its follower is back.
const awayTick = 20 * time.Millisecond

func newTransport(p *port, logs *logStore, timeout time.Duration, log *slog.Logger, diverged func(error)) *transport {
	return &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:  p,
			MaxPool: 4, // heartbeats, votes and catch-up of a follower each use one connection
			Timeout: timeout,
			Logger:  raftLogger(log),
		}),
		port:     p,
		log:      log,
		history:  snapshotHistory{logs: logs},
		diverged: diverged,
		incoming: make(chan raft.RPC),
		contacts: &contacts{m: map[raft.ServerID]contact{}},
		done:     p.done,
	}
}

// Consumer returns the channel from which the Raft library takes incoming calls.
func (t *transport) Consumer() <-chan raft.RPC { return t.incoming }

// relay passes incoming calls on to the channel of Consumer until the port is closed.
func (t *transport) relay() {
	var unread sync.WaitGroup
	defer unread.Wait()
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if err := t.checkTerm(rpc.Command); err != nil {
				if rpc.Reader != nil {
					_, _ = io.Copy(io.Discard, rpc.Reader)
				}
				rpc.Respond(nil, err)
				continue
			}
			switch r := rpc.Command.(type) {
			case *raft.AppendEntriesRequest:
				if id := (entryID{r.PrevLogEntry, r.PrevLogTerm}); t.history.contradicts(id) && r.Term >= t.raft.Load().CurrentTerm() {
					t.diverged(fmt.Errorf("%w: entry %d, at which a snapshot of this replica ends, has term %d at the leader", ErrDiverged, id.index, id.term))
				}
				t.history.follow(r)
			case *raft.InstallSnapshotRequest:
				if answer, read, err := t.install(r, rpc.Reader); read {
					rpc.Respond(answer, err)
				} else {
					// Read the unread part of the call's body in another goroutine, because the sender
					// may be slow.
					unread.Go(func() {
						_, broken := io.Copy(io.Discard, rpc.Reader)
						rpc.Respond(answer, cmp.Or(broken, err))
					})
				}
				continue
			}
			select {
			case t.incoming <- rpc:
			case <-t.done:
				rpc.Respond(nil, ErrClosed)
			}
		case <-t.done:
			return
		}
	}
}

// ask hands a Raft call to the library and waits for the answer. Once the library has taken a call, it always answers.
func (t *transport) ask(command any, body io.Reader) (any, error) {
	answer := make(chan raft.RPCResponse, 1)
	select {
	case t.incoming <- raft.RPC{Command: command, Reader: body, RespChan: answer}:
		a := <-answer
		return a.Response, a.Error
	case <-t.done:
		return nil, ErrClosed
	}
}

// install handles a snapshot that a leader sends; read reports whether the whole body was read. The library
// would install every snapshot, which is wrong in two cases:
//   - The answer to a snapshot was lost or late, so the leader sends the snapshot again. Installing it again
//     would take state and membership back to an earlier index.
//   - The installation takes longer than the leader waits. The leader would send the snapshot for ever.
func (t *transport) install(r *raft.InstallSnapshotRequest, body io.Reader) (answer any, read bool, err error) {
	// Let the library check, by an append without entries, whether the sender leads. The library handles calls one
	// after another, so when it answers, no earlier call is in progress.
	leads, err := t.ask(&raft.AppendEntriesRequest{RPCHeader: r.RPCHeader, Term: r.Term}, nil)
	a, ok := leads.(*raft.AppendEntriesResponse)
	if err != nil || !ok {
		return nil, false, cmp.Or(err, ErrClosed)
	}
	resp := &raft.InstallSnapshotResponse{RPCHeader: a.RPCHeader, Term: a.Term, Success: a.Success}
	if !a.Success {
		return resp, false, nil
	}
	id := entryID{r.LastLogIndex, r.LastLogTerm}
	applied := t.raft.Load().AppliedIndex()
	switch t.history.standing(id, applied) {
	case held:
		return resp, false, nil
	case behind:
		// The leader's newest snapshot ends before this replica's log begins. Wait for the leader's next
		// snapshot.
		err = fmt.Errorf("the snapshot of entry %d is behind the state, which has applied %d", id.index, applied)
		t.log.Warn("a snapshot was refused", "leader", string(r.ID), "err", err)
		return nil, false, err
	}
	t.history.expects(id)
	defer t.history.expects(entryID{})
	answer, err = t.ask(r, body) // the library reads the body of the call to its end
	return answer, true, err
}

func addressed(id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	return raft.ServerAddress(string(id) + "@" + string(addr))
}

// moved reports whether an append went to a former address of a follower: target, the address that was
// called, differs from the follower's address in the configuration, or the configuration is about to get
// another address for the follower. Such an append must be treated as failed. Otherwise the Raft library,
// which reads the follower's address again without a lock, could attribute the acknowledgement to the replica
// at the new address.
func (t *transport) moved(id raft.ServerID, target raft.ServerAddress) bool {
	r := t.raft.Load()
	return r != nil && slices.ContainsFunc(r.GetConfiguration().Configuration().Servers, func(s raft.Server) bool {
		return s.ID == id && s.Address != target
	})
}

func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	// If gossip has another address of the follower, that address must get into the configuration
	// first (see moved).
	if now := t.port.gossipAddrOf(string(id)); now != "" && now != string(target) {
		return nil, raft.ErrPipelineReplicationNotSupported
	}
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, addressed(id, target))
	if err != nil {
		return nil, err
	}
	return silenced{p, t.port.n.stall}, nil
}

// silenced is an append pipeline that sends nothing while the log disk hangs.
type silenced struct {
	raft.AppendPipeline
	stall *stall
}

func (s silenced) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if s.stall.isSilent() {
		return nil, errStalled
	}
	return s.AppendPipeline.AppendEntries(args, resp)
}

func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.port.n.stall.isSilent() {
		return errStalled
	}
	began := time.Now()
	err := t.NetworkTransport.AppendEntries(id, addressed(id, target), args, resp)
	if err == nil {
		err = t.leap(string(id), resp.Term)
	}
	if err != nil && !isHeartbeat(args) && t.waitForContact(id, args.Term, began) {
		err = t.NetworkTransport.AppendEntries(id, addressed(id, target), args, resp)
	}
	if err == nil && !isHeartbeat(args) && t.moved(id, target) {
		err = fmt.Errorf("replica %s answered, but is no longer at %s", id, target)
	}
	if err == nil {
		t.contacts.note(id, resp.LastLog)
	} else if !isHeartbeat(args) {
		t.failed.Add(1)
	}
	return err
}

// isHeartbeat reports whether an append is one of the library's heartbeats, which carry the term and nothing
// else.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// waitForContact waits until a follower answers a heartbeat later than the time since, and reports
// whether it did so while this replica still led in term. The library counts failed appends and
// pauses for up to 10 s between them. So a follower that was away for half a minute would get no
// entry for up to 10 s after its return. If another follower were lost meanwhile, the cluster could
// commit nothing. An append that waits in this function counts as one failed append, however long
// it waits. Heartbeats continue; the pause between them stays short.
func (t *transport) waitForContact(id raft.ServerID, term uint64, since time.Time) bool {
	r := t.raft.Load()
	if r == nil {
		return false
	}
	tick := time.NewTicker(awayTick)
	defer tick.Stop()
	for {
		c, ok := t.contacts.of(id)
		if ok && c.at.After(since) {
			return true
		}
		// A follower that was asked to take over leadership does not wait here: the library retries
		// its appends at its own pace. The leader refuses proposals until the transfer ends, so no
		// time must be lost.
		if c.asked.After(c.at) || r.State() != raft.Leader || r.CurrentTerm() != term {
			return false
		}
		if !slices.ContainsFunc(r.GetConfiguration().Configuration().Servers, func(s raft.Server) bool { return s.ID == id }) {
			return false
		}
		select {
		case <-tick.C:
		case <-t.done:
			return false
		}
	}
}

func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := t.NetworkTransport.RequestVote(id, addressed(id, target), args, resp); err != nil {
		return err
	}
	return t.leap(string(id), resp.Term)
}

func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := t.NetworkTransport.RequestPreVote(id, addressed(id, target), args, resp); err != nil {
		return err
	}
	return t.leap(string(id), resp.Term)
}

func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	// The library writes the snapshot in small pieces, and each would become a TLS record. Buffer 64 KiB, which costs
	// much less.
	return t.NetworkTransport.InstallSnapshot(id, addressed(id, target), args, resp, bufio.NewReaderSize(data, 64<<10))
}

func (t *transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, addressed(id, target), args, resp)
}

// contacts holds, for each follower, the time at which it last answered a heartbeat and the index of the last
// log entry in that answer.
type contacts struct {
	mu sync.Mutex
	m  map[raft.ServerID]contact
}

type contact struct {
	at    time.Time
	last  uint64
	asked time.Time // time at which the follower was last asked to take over leadership
}

func (c *contacts) note(id raft.ServerID, last uint64) {
	c.mu.Lock()
	c.m[id] = contact{at: time.Now(), last: last, asked: c.m[id].asked}
	c.mu.Unlock()
}

// asks records the time at which this leader asks a follower to take over leadership.
func (c *contacts) asks(id raft.ServerID) {
	c.mu.Lock()
	was := c.m[id]
	was.asked = time.Now()
	c.m[id] = was
	c.mu.Unlock()
}

// of returns the time at which a follower last answered a heartbeat, and the log index in that answer; false if it
// never answered.
func (c *contacts) of(id raft.ServerID) (contact, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.m[id]
	return v, !v.at.IsZero()
}
