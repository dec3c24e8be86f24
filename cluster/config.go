package cluster

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/persys/compute/pki"
)

// Config configures one replica. Addresses are host:port. An error about a field names the environment variable that
// sets it, given in capitals below.
type Config struct {
	// Name is the stable name of the replica (SCHEDULER_NAME), in the form [A-Za-z0-9][A-Za-z0-9_.-]{0,127}.
	// By its name the cluster recognises a replica that lost its disk.
	Name string
	// DataDir is the directory of the Raft log, the snapshots and the replica id (SCHEDULER_DATA_DIR). It is
	// created if absent. Only one process can use it at a time.
	DataDir string

	// RaftBind (SCHEDULER_RAFT_ADDR) and GossipBind (SCHEDULER_GOSSIP_ADDR) are the listen addresses; port
	// 0 takes any free port.
	RaftBind, GossipBind string
	// RaftAdvertise and GossipAdvertise are the addresses that other replicas dial. Default: the bound
	// address, with OutwardIP in place of a wildcard host.
	RaftAdvertise, GossipAdvertise string
	// OutwardIP is the address under which other machines reach this one; default FirstIP.
	OutwardIP string
	// GRPCAdvertise, HTTPAdvertise and DNSAdvertise are the published addresses of the gRPC, HTTP and DNS servers,
	// which clients and other replicas use; empty means that this process does not run that server.
	GRPCAdvertise, HTTPAdvertise, DNSAdvertise string

	// Join lists at most 64 gossip addresses of replicas (SCHEDULER_JOIN). This replica's own address may be
	// among them.
	Join []string
	// BootstrapExpect (SCHEDULER_BOOTSTRAP_EXPECT) is the number of replicas that form a new cluster together,
	// at most 9. With 1, this replica forms a cluster alone. With 0, it forms no cluster, unless AllowSolo is
	// set.
	BootstrapExpect int
	// AllowSolo lets a replica without data, Join and BootstrapExpect form a cluster alone. It is set by -insecure,
	// --init and `persys dev`.
	AllowSolo bool
	// ClusterID is the id that an existing cluster must have and that a new cluster gets. If ClusterID
	// is empty, this replica joins a cluster with any id, and a new cluster gets a random id.
	ClusterID string
	// Shard is the cluster's shard, a label that tells clusters apart in DNS. It is stored in the state when
	// the cluster is formed.
	Shard string

	// TLS protects the Raft port; nil means plain TCP (-insecure).
	TLS *TLSConfig
	// GossipKey encrypts gossip: 16, 24 or 32 bytes. Empty means plain gossip.
	GossipKey []byte
	// GossipKeys are further keys with which this replica can decrypt gossip. It encrypts with GossipKey
	// only; see Node.SetGossipKeys.
	GossipKeys [][]byte

	Timing Timing
	Logger *slog.Logger
	// Metrics receives the measurements of this replica; nil discards them.
	Metrics Metrics

	// Version and FeatureLevel of this program are published to the other replicas. The feature level says
	// which commands a program understands. The leader raises the cluster's level to the lowest level of all
	// replicas.
	Version      string
	FeatureLevel uint32
	// Memory is the memory in MiB that this program may use; 0 if not known. The replica with the least
	// memory limits the size of the replicated state.
	Memory int64
}

// TLSConfig configures mutual TLS on the Raft port.
type TLSConfig struct {
	Server *tls.Config
	// Client returns the TLS configuration for a connection to host.
	Client func(host string) *tls.Config
	// VerifyPeer checks, on both sides and after the handshake, that the peer is a scheduler of this
	// cluster. If VerifyPeer is nil, every peer that passes the TLS handshake is accepted.
	VerifyPeer func(tls.ConnectionState) error
	// CutRevoked wraps every connection, incoming and outgoing, after its handshake. The wrapped connection is
	// closed as soon as its peer is no longer accepted, for example after a revocation. raw is the TCP
	// connection below TLS, state the result of the handshake. If CutRevoked is nil, open connections are not
	// closed.
	CutRevoked func(conn, raw net.Conn, state tls.ConnectionState) net.Conn
}

// TLSFromFiles returns the TLS configuration for a scheduler's certificate files. It accepts schedulers
// only.
func TLSFromFiles(f *pki.Files) *TLSConfig {
	return &TLSConfig{
		CutRevoked: f.CutRevoked,
		Server:     f.ServerConfig(pki.ServerOptions{Roles: []pki.Role{pki.RoleScheduler}, OwnOnly: true}),
		Client: func(host string) *tls.Config {
			return f.ClientConfig(pki.Peer{Hosts: []string{host}, Role: pki.RoleScheduler})
		},
		VerifyPeer: func(state tls.ConnectionState) error {
			id, err := f.Identify(state)
			if err != nil {
				return err
			}
			if id.Role != pki.RoleScheduler {
				return fmt.Errorf("peer %s %q may not use the Raft port, want role %s", id.Role, id.ID, pki.RoleScheduler)
			}
			if own := f.Identity().Cluster; own != "" && id.Cluster != "" && id.Cluster != own {
				return fmt.Errorf("peer %s %q is of cluster %q, this replica is of cluster %q", id.Role, id.ID, id.Cluster, own)
			}
			return nil
		},
	}
}

// Timing holds durations and limits of a replica. A zero field selects its default.
type Timing struct {
	// Heartbeat is the time without a heartbeat after which a follower stands for election; the actual time
	// is random, between 1 and 2 times Heartbeat. Default 300 ms.
	Heartbeat time.Duration
	// Election is the time after which a candidate without a result starts another election. Default
	// Heartbeat.
	Election time.Duration
	// LeaderLease is the time for which a leader that hears from no quorum remains leader. Default 5/6 of
	// Heartbeat.
	LeaderLease time.Duration
	// RPC is the timeout of one Raft call or one other call between replicas. Default 5 s.
	RPC time.Duration
	// NoFastFailover turns off fast failover, in which a voter stands for election as soon as the leader's
	// process is known to be dead (failover.go).
	NoFastFailover bool

	// A snapshot is due when the log has grown by SnapshotEntries or SnapshotBytes since the last snapshot,
	// or later if the state is much larger than these limits (snapshotDue). Defaults 8192 and 128 MiB.
	SnapshotEntries uint64
	SnapshotBytes   int64
	// SnapshotInterval is the period of the check whether a snapshot is due; the actual time is random,
	// between 1 and 2 times SnapshotInterval. Default 5 s.
	SnapshotInterval time.Duration
	// TrailingEntries is the number of entries that stay in the log after a snapshot, so that a replica that
	// was away briefly needs no snapshot. Default 2048.
	TrailingEntries uint64

	// DiskStall (SCHEDULER_DISK_STALL) is the age at which an unfinished write to the log disk is
	// treated as hanging (stall.go). Default 1 s.
	DiskStall time.Duration
	// SlowCooldown is the time for which a new leader with a slow disk keeps leadership. Only after that time may it
	// hand leadership over to a faster replica, so that leadership does not go back and forth. Default 1 minute.
	SlowCooldown time.Duration

	// MoveWait applies to a replica whose data directory may be a copy. It is how long the replica waits for
	// an answer at its former address before it takes part in the cluster (place.go). Default 20 s.
	MoveWait time.Duration

	// InFlight is the maximum number of log entries that are proposed and not yet committed. Default 4.
	InFlight int

	// Reconcile is the period of the membership loop, in which a replica searches for its cluster and a
	// leader adds, promotes and removes replicas. Default 1 s.
	Reconcile time.Duration
	// Stabilize is the time for which a new replica must be caught up before it gets a vote. Default 3 s.
	Stabilize time.Duration
	// DeadAfter is the time after which the leader removes a dead server, if enough healthy voters remain.
	// Default 72 h; negative: never.
	DeadAfter time.Duration
	// Compare is the period at which a replica compares the digest of its state with the digests of the other voters.
	// Default 5 s.
	Compare time.Duration
	// LostContact is the time without a leader after which LocalMode is degraded. Default 1 s, or three
	// times Election if that is longer.
	LostContact time.Duration
	// FastGossip shortens the intervals of gossip's failure detection. It is for clusters on loopback and
	// for tests.
	FastGossip bool
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.Heartbeat, 300*time.Millisecond)
	def(&t.Election, t.Heartbeat)
	def(&t.LeaderLease, t.Heartbeat*5/6)
	def(&t.RPC, 5*time.Second)
	def(&t.DiskStall, time.Second)
	def(&t.SlowCooldown, time.Minute)
	def(&t.MoveWait, 20*time.Second)
	def(&t.SnapshotInterval, 5*time.Second)
	def(&t.Reconcile, time.Second)
	def(&t.Stabilize, 3*time.Second)
	def(&t.DeadAfter, 72*time.Hour)
	def(&t.Compare, 5*time.Second)
	def(&t.LostContact, max(time.Second, 3*t.Election))
	if t.SnapshotEntries == 0 {
		t.SnapshotEntries = 8192
	}
	if t.SnapshotBytes == 0 {
		t.SnapshotBytes = 128 << 20
	}
	if t.TrailingEntries == 0 {
		t.TrailingEntries = 2048
	}
	if t.InFlight == 0 {
		t.InFlight = 4
	}
	return t
}

func (t Timing) validate() error {
	for _, c := range []struct {
		name   string
		v, min time.Duration
	}{
		{"SCHEDULER_RAFT_HEARTBEAT", t.Heartbeat, 20 * time.Millisecond},
		{"Timing.Election", t.Election, t.Heartbeat},
		{"Timing.LeaderLease", t.LeaderLease, 10 * time.Millisecond},
		{"Timing.RPC", t.RPC, 100 * time.Millisecond},
		{"SCHEDULER_DISK_STALL", t.DiskStall, 50 * time.Millisecond},
		{"Timing.SnapshotInterval", t.SnapshotInterval, 5 * time.Millisecond},
		{"Timing.Reconcile", t.Reconcile, 10 * time.Millisecond},
		{"Timing.Compare", t.Compare, 10 * time.Millisecond},
		{"Timing.LostContact", t.LostContact, t.Election},
	} {
		if c.v < c.min {
			return fmt.Errorf("%s: %s is below %s", c.name, c.v, c.min)
		}
	}
	if t.LeaderLease > t.Heartbeat {
		return fmt.Errorf("Timing.LeaderLease: %s is above Timing.Heartbeat, %s", t.LeaderLease, t.Heartbeat)
	}
	if t.InFlight < 1 || t.InFlight > 32 {
		return fmt.Errorf("Timing.InFlight: %d is not in 1..32", t.InFlight)
	}
	return nil
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

const maxExpect = 9

func (c Config) withDefaults() Config {
	c.Timing = c.Timing.withDefaults()
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !nameRule.MatchString(c.Name) {
		bad("SCHEDULER_NAME: %q does not match %s", c.Name, nameRule)
	}
	if c.DataDir == "" {
		bad("SCHEDULER_DATA_DIR: is empty")
	}
	if c.ClusterID != "" && !nameRule.MatchString(c.ClusterID) {
		bad("SCHEDULER_CLUSTER_ID: %q does not match %s", c.ClusterID, nameRule)
	}
	for _, a := range []struct{ name, v string }{
		{"SCHEDULER_RAFT_ADDR", c.RaftBind},
		{"SCHEDULER_GOSSIP_ADDR", c.GossipBind},
	} {
		if _, _, err := splitAddr(a.v); err != nil {
			bad("%s: %w", a.name, err)
		}
	}
	for _, a := range []struct{ name, v string }{
		{"Raft advertise address", c.RaftAdvertise},
		{"gossip advertise address", c.GossipAdvertise},
		{"gRPC advertise address", c.GRPCAdvertise},
		{"HTTP advertise address", c.HTTPAdvertise},
		{"DNS advertise address", c.DNSAdvertise},
	} {
		if a.v == "" {
			continue
		}
		if host, port, err := splitAddr(a.v); err != nil {
			bad("%s: %w", a.name, err)
		} else if host == "" || port == 0 || net.ParseIP(host).IsUnspecified() {
			bad("SCHEDULER_ADVERTISE_IP: other machines cannot dial %s %q", a.name, a.v)
		}
	}
	if len(c.Join) > 64 {
		bad("SCHEDULER_JOIN: %d addresses, limit 64", len(c.Join))
	}
	for _, j := range c.Join {
		if pki.IsJoinToken(j) { // the value is a secret, so the error must not contain the value
			bad("SCHEDULER_JOIN: has a join token and something else; set only the token, or only addresses")
		} else if host, port, err := splitAddr(j); err != nil {
			bad("SCHEDULER_JOIN: %w", err)
		} else if host == "" || port == 0 {
			bad("SCHEDULER_JOIN: %q lacks a host or a port", j)
		}
	}
	if c.BootstrapExpect < 0 || c.BootstrapExpect > maxExpect {
		bad("SCHEDULER_BOOTSTRAP_EXPECT: %d is not in 0..%d", c.BootstrapExpect, maxExpect)
	}
	if c.TLS != nil && (c.TLS.Server == nil || c.TLS.Client == nil) {
		bad("TLS: both the server and the client configuration are needed")
	}
	for _, k := range c.GossipKeys {
		if len(k) != len(c.GossipKey) {
			return fmt.Errorf("gossip keys must all have the same length: one has %d bytes, another %d", len(k), len(c.GossipKey))
		}
	}
	if n := len(c.GossipKey); n != 0 && n != 16 && n != 24 && n != 32 {
		bad("gossip key: %d bytes, want 16, 24 or 32", n)
	}
	if err := c.Timing.validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func splitAddr(a string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(a)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", a)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q: port %q is not in 0..65535", a, p)
	}
	return host, port, nil
}

// advertised returns the configured address, or the bound address with a wildcard host replaced by outward.
func advertised(configured, outward string, bound net.Addr) (string, error) {
	if configured != "" {
		return configured, nil
	}
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = cmp.Or(outward, FirstIP())
	}
	return net.JoinHostPort(host, port), nil
}

// FirstIP returns the first IP address of this machine that is not loopback, IPv4 before IPv6. If there is
// none, it returns 127.0.0.1.
func FirstIP() string {
	addrs, _ := net.InterfaceAddrs()
	return firstIP(addrs)
}

func firstIP(addrs []net.Addr) string {
	six := ""
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			return n.IP.String()
		case six == "":
			six = n.IP.String()
		}
	}
	return cmp.Or(six, "127.0.0.1")
}

// errNoWayIn returns the error of a replica that has no data and no addresses of replicas to join, and may
// not form a cluster (cluster/DESIGN.md).
func errNoWayIn(dir string) error {
	return fmt.Errorf("%w: %s holds no data, and neither SCHEDULER_BOOTSTRAP_EXPECT "+
		"(how many replicas form a new cluster together) nor SCHEDULER_JOIN (gossip addresses of a cluster to join) is set; "+
		"only -insecure and `persys dev` form a cluster of one without either", ErrNoWayIn, dir)
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("SCHEDULER_DATA_DIR: %w", err)
	}
	return nil
}
