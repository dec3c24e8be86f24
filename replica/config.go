package replica

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/config"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/replica/auditsink"
	"github.com/persys/compute/replica/coredns"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/stack"
)

// Config holds the settings of one scheduler. The usage text in the tag of each field describes it;
// docs/reference lists all settings.
type Config struct {
	// Stacks loads Compose stacks when they are applied, in child processes of this program. The program
	// must call stack.Serve at the beginning of main. If Stacks is nil, a stack is checked only on its node.
	Stacks *stack.Loader

	// Status is called with a line about what a start waits for; nil if nobody reads it.
	Status func(string)

	outward string // the address that others dial, if this scheduler listens on a wildcard address; "" = not chosen yet

	Insecure bool `flag:"insecure" yaml:"insecure" env:"SCHEDULER_INSECURE" default:"false" usage:"plaintext, and every caller is an anonymous admin; binds to loopback"`

	Name            string        `env:"SCHEDULER_NAME" flag:"name" yaml:"name" usage:"stable name of this replica; default: host name"`
	DataDir         string        `env:"SCHEDULER_DATA_DIR" flag:"data-dir" yaml:"data_dir" usage:"Raft log, snapshots and keys; default /var/lib/persys/scheduler, or a folder in XDG_STATE_HOME for users other than root and with -insecure"`
	Join            []string      `env:"SCHEDULER_JOIN" flag:"join" yaml:"join" usage:"gossip addresses of replicas (this replica may be among them; a name stands for all its addresses), or one join token"`
	Init            bool          `env:"SCHEDULER_INIT" flag:"init" yaml:"init" default:"false" usage:"start as the first scheduler of a new cluster: create its CA and keys, and write join tokens for the other machines"`
	CADir           string        `env:"SCHEDULER_CA_DIR" flag:"ca-dir" yaml:"ca_dir" usage:"folder made by persysctl ca init, for --init; the root key need not be in it"`
	CertLife        time.Duration `env:"SCHEDULER_CERT_LIFE" flag:"cert-life" yaml:"cert_life" default:"168h" min:"30s" max:"8760h" usage:"validity of the certificates that the cluster's CA issues to programs; they are renewed after two thirds of it"`
	UserCertLife    time.Duration `env:"SCHEDULER_USER_CERT_LIFE" flag:"user-cert-life" yaml:"user_cert_life" default:"24h" min:"1m" max:"2160h" usage:"validity of the certificates of people; persysctl renews a certificate when it runs after a quarter of the validity"`
	BootstrapExpect int           `env:"SCHEDULER_BOOTSTRAP_EXPECT" flag:"bootstrap-expect" yaml:"bootstrap_expect" default:"0" min:"0" max:"9" usage:"number of replicas that form a new cluster together"`
	ClusterID       string        `env:"SCHEDULER_CLUSTER_ID" flag:"cluster-id" yaml:"cluster_id" usage:"id that the cluster must have, or that a new cluster gets"`
	Shard           string        `env:"SCHEDULER_SHARD_KEY" flag:"shard" yaml:"shard_key" default:"default" usage:"shard in the DNS names of agents"`

	// TokenDirs maps a role to the folder for join tokens of that role, so that each joining program can see
	// only the token of its own role.
	TokenDirs map[string]string `env:"SCHEDULER_TOKEN_DIR" flag:"token-dir" yaml:"token_dir" usage:"folders for the join tokens of --init, role=folder: scheduler=/tokens/scheduler,agent=/tokens/agent; default for each role: the folder admin in the data folder"`

	BindAddr    string `env:"PERSYS_GRPC_ADDR" flag:"bind" yaml:"grpc_addr" usage:"bind address of every port; default 0.0.0.0, with -insecure 127.0.0.1"`
	GRPCPort    int    `env:"GRPC_PORT" flag:"grpc-port" yaml:"grpc_port" kind:"port" min:"0" default:"8085" usage:"port of the control API (gRPC)"`
	MetricsPort int    `env:"METRICS_PORT" flag:"metrics-port" yaml:"metrics_port" kind:"port" min:"0" default:"8084" usage:"port of /metrics and /health (HTTP)"`
	RaftAddr    string `env:"SCHEDULER_RAFT_ADDR" flag:"raft-addr" yaml:"raft_addr" usage:"Raft listen address; default <bind>:8086"`
	GossipAddr  string `env:"SCHEDULER_GOSSIP_ADDR" flag:"gossip-addr" yaml:"gossip_addr" usage:"gossip listen address; default <bind>:8088"`
	DNSAddr     string `env:"SCHEDULER_DNS_ADDR" flag:"dns-addr" yaml:"dns_addr" usage:"DNS listen address, UDP and TCP; none = no DNS server; default <bind>:8053"`
	AdvertiseIP string `env:"SCHEDULER_ADVERTISE_IP" flag:"advertise-ip" yaml:"advertise_ip" usage:"IP address that others dial; default: the bound address, else the local address of the route to SCHEDULER_JOIN, else that of the default route"`
	// AdvertisePort is the port in the published gRPC address, if it differs from the port on which the
	// scheduler listens.
	AdvertisePort int `env:"SCHEDULER_ADVERTISE_PORT" flag:"advertise-port" yaml:"advertise_port" kind:"port" min:"0" default:"0" usage:"published gRPC port; default GRPC_PORT"`

	TLSCA          string            `env:"PERSYS_TLS_CA" flag:"tls-ca" yaml:"tls_ca" default:"/etc/persys/certs/persys-scheduler/ca.pem" usage:"bundle of the trusted CA certificates"`
	TLSCert        string            `env:"PERSYS_TLS_CERT" flag:"tls-cert" yaml:"tls_cert" default:"/etc/persys/certs/persys-scheduler/persys_scheduler.crt" usage:"certificate of this scheduler"`
	TLSKey         string            `env:"PERSYS_TLS_KEY" flag:"tls-key" yaml:"tls_key" default:"/etc/persys/certs/persys-scheduler/persys_scheduler-key.key" usage:"private key of PERSYS_TLS_CERT"`
	TLSPeers       map[string]string `env:"PERSYS_TLS_PEERS" flag:"tls-peers" yaml:"tls_peers" usage:"roles of certificates of other CAs: NAME=ROLE or NAME=ROLE/ID; NAME is the common name or a DNS name in the certificate, such as node7.example.com=agent/node-7"`
	TLSLegacyNames bool              `env:"PERSYS_TLS_LEGACY_NAMES" flag:"tls-legacy-names" yaml:"tls_legacy_names" default:"false" usage:"certificates of other CAs with the name of a legacy v1 program (persys-scheduler, persys-gateway, compute-agent, persysctl, …) get the role of that program"`
	ClusterKey     string            `env:"SCHEDULER_CLUSTER_KEY_FILE" flag:"cluster-key-file" yaml:"cluster_key_file" usage:"key that seals secrets, 0600; default <data dir>/cluster.key"`
	KeyPassphrase  string            `env:"SCHEDULER_CLUSTER_KEY_PASSPHRASE" yaml:"cluster_key_passphrase" secret:"true" usage:"passphrase that encrypts the cluster key in its file, at least 12 bytes; SCHEDULER_CLUSTER_KEY_PASSPHRASE_FILE names a file with the passphrase"`
	KeyTransit     string            `env:"SCHEDULER_CLUSTER_KEY_TRANSIT" flag:"cluster-key-transit" yaml:"cluster_key_transit" usage:"key of Vault's transit engine that encrypts the cluster key in its file; see PERSYS_VAULT_ADDR"`
	ExternalIP     string            `env:"PERSYS_EXTERNAL_IP" flag:"external-ip" yaml:"external_ip" usage:"further IP address in this scheduler's certificate from Vault or the cluster's CA"`
	Vault          vaultSettings
	AgentTLS       string `env:"SCHEDULER_AGENT_TLS_ENABLED" flag:"agent-tls" yaml:"agent_tls_enabled" oneof:"true,false" usage:"use TLS for calls to agents; default true, with -insecure false"`

	HeartbeatInterval  time.Duration `env:"SCHEDULER_HEARTBEAT_INTERVAL" flag:"heartbeat-interval" yaml:"heartbeat_interval" seconds:"true" default:"3s" min:"1s" max:"10m" usage:"time between two heartbeats of an agent"`
	NodeLease          time.Duration `env:"SCHEDULER_NODE_LEASE" flag:"node-lease" yaml:"node_lease" seconds:"true" default:"10s" min:"3s" max:"1h" usage:"time without a heartbeat after which a node is NotReady; at least 3 heartbeats"`
	UnavailableGrace   time.Duration `env:"SCHEDULER_NODE_UNAVAILABLE_GRACE" flag:"node-unavailable-grace" yaml:"node_unavailable_grace" seconds:"true" default:"0s" min:"0s" max:"24h" usage:"time between the end of a node's lease and its status NotReady"`
	MissingGrace       time.Duration `env:"SCHEDULER_MISSING_GRACE_PERIOD" flag:"missing-grace-period" yaml:"missing_grace_period" seconds:"true" default:"15s" min:"0s" max:"24h" usage:"time for which a node may report that an assigned workload is missing before that counts as a drift"`
	FailureGrace       time.Duration `env:"SCHEDULER_FAILURE_GRACE" flag:"failure-grace" yaml:"failure_grace" seconds:"true" default:"2m" min:"1s" max:"24h" usage:"time after which the failures of a running workload are forgotten; before this time since its first failure no workload is given up"`
	ApplyTimeout       time.Duration `env:"SCHEDULER_AGENT_APPLY_TIMEOUT" flag:"agent-apply-timeout" yaml:"agent_apply_timeout" seconds:"true" default:"45s" min:"1s" max:"24h" usage:"time after which a container or stack counts as failed if its agent has accepted the order, does not work on it, and does not run it"`
	VMApplyTimeout     time.Duration `env:"SCHEDULER_AGENT_VM_APPLY_TIMEOUT" flag:"agent-vm-apply-timeout" yaml:"agent_vm_apply_timeout" seconds:"true" default:"240s" min:"1s" max:"24h" usage:"as SCHEDULER_AGENT_APPLY_TIMEOUT, for a virtual machine"`
	DeleteTimeout      time.Duration `env:"SCHEDULER_AGENT_DELETE_TIMEOUT" flag:"agent-delete-timeout" yaml:"agent_delete_timeout" seconds:"true" default:"60s" min:"1s" max:"24h" usage:"time after which the reason of a deleted workload names the node that still runs it"`
	PreemptionCooldown time.Duration `env:"SCHEDULER_PREEMPTION_COOLDOWN" flag:"preemption-cooldown" yaml:"preemption_cooldown" seconds:"true" default:"5m" min:"1s" max:"24h" usage:"time within which a workload that was preempted is not preempted again"`
	PreemptionBudget   int           `env:"SCHEDULER_PREEMPTION_BUDGET" flag:"preemption-budget" yaml:"preemption_budget" default:"100" min:"1" max:"100000" usage:"number of workloads that may be preempted within SCHEDULER_PREEMPTION_COOLDOWN"`
	DriftInterval      time.Duration `env:"SCHEDULER_DRIFT_DETECT_INTERVAL" flag:"drift-detect-interval" yaml:"drift_detect_interval" seconds:"true" default:"30s" min:"1s" max:"24h" usage:"period at which every node is asked for its workloads, to compare them with the state"`
	AgentRPCTimeout    time.Duration `env:"SCHEDULER_AGENT_RPC_TIMEOUT" flag:"agent-rpc-timeout" yaml:"agent_rpc_timeout" seconds:"true" default:"10s" min:"100ms" max:"10m" usage:"deadline of one call to an agent"`
	Policy             string        `env:"SCHEDULER_PLACEMENT_POLICY" flag:"placement-policy" yaml:"placement_policy" oneof:"spread,binpack" default:"spread" usage:"spread workloads over the nodes, or fill the nodes one by one"`
	NetworkPool        string        `env:"SCHEDULER_NETWORK_POOL" flag:"network-pool" yaml:"network_pool" default:"10.216.0.0/14" usage:"IPv4 prefix from which networks get their subnets, a /20 for each; it must be free in the networks of all machines"`
	RaftHeartbeat      time.Duration `env:"SCHEDULER_RAFT_HEARTBEAT" flag:"raft-heartbeat" yaml:"raft_heartbeat" default:"0s" min:"0s" max:"1m" usage:"time without a heartbeat of the leader after which a follower stands for election; 0 = 300 ms"`
	DiskStall          time.Duration `env:"SCHEDULER_DISK_STALL" flag:"disk-stall" yaml:"disk_stall" default:"1s" min:"100ms" max:"1m" usage:"a write to the Raft log that takes longer than this, and longer than the slowest write of the last minute, counts as hanging: a leader then gives up leadership"`

	Repair string `env:"SCHEDULER_REPAIR" flag:"repair" yaml:"repair" oneof:"auto,off" default:"auto" usage:"auto: a replica with a damaged log or snapshot moves it aside and joins its cluster anew, while a majority of the replicas is healthy without it; off: it exits and says what to do"`

	LimitCalls       int `env:"SCHEDULER_LIMIT_CALLS" flag:"limit-calls" yaml:"limit_calls" default:"10000" min:"0" max:"10000000" usage:"calls per second of one user, agent or gateway, with bursts of twice as many; 0 = no limit"`
	LimitConcurrent  int `env:"SCHEDULER_LIMIT_CONCURRENT" flag:"limit-concurrent" yaml:"limit_concurrent" default:"4096" min:"0" max:"1000000" usage:"concurrent calls of one user, agent or gateway, streams included; 0 = no limit"`
	LimitStreams     int `env:"SCHEDULER_LIMIT_STREAMS" flag:"limit-streams" yaml:"limit_streams" default:"256" min:"0" max:"1000000" usage:"concurrent streams (logs, sessions, events, watches) of one user or agent at one replica, through gateways too; 0 = no limit"`
	LimitNodeStreams int `env:"SCHEDULER_LIMIT_STREAMS_PER_NODE" flag:"limit-streams-per-node" yaml:"limit_streams_per_node" default:"512" min:"0" max:"1000000" usage:"concurrent logs and sessions that this replica relays from one node; keep it below PERSYS_LIMIT_STREAMS of the agents; 0 = no limit"`
	LimitConnections int `env:"SCHEDULER_LIMIT_CONNECTIONS" flag:"limit-connections" yaml:"limit_connections" default:"20000" min:"0" max:"1000000" usage:"connections to the control API; 0 = no limit"`
	LimitPerHost     int `env:"SCHEDULER_LIMIT_CONNECTIONS_PER_HOST" flag:"limit-connections-per-host" yaml:"limit_connections_per_host" default:"4096" min:"0" max:"1000000" usage:"connections to the control API from one address; 0 = no limit"`
	LimitStrangers   int `env:"SCHEDULER_LIMIT_STRANGERS" flag:"limit-strangers" yaml:"limit_strangers" default:"512" min:"0" max:"1000000" usage:"connections to the control API without a certificate, an eighth of them from one /24 or /64 network; 0 = no limit"`

	AuditSink     string `env:"SCHEDULER_AUDIT_SINK" flag:"audit-sink" yaml:"audit_sink" usage:"where this scheduler sends each record of the audit logs: file:///PATH, syslog: (the daemon of this machine) or https://HOST/PATH; not set: nowhere"`
	AuditToken    string `env:"SCHEDULER_AUDIT_SINK_TOKEN" yaml:"audit_sink_token" secret:"true" usage:"bearer token for a SCHEDULER_AUDIT_SINK at an https address"`
	AuditCommands bool   `env:"SCHEDULER_AUDIT_COMMANDS" flag:"audit-commands" yaml:"audit_commands" default:"false" usage:"keep the command lines of exec sessions in the audit log; otherwise the program and a hash of the command line"`

	Domain       string   `env:"DOMAIN" flag:"domain" yaml:"domain" default:"persys.local" usage:"DNS domain of schedulers and workloads"`
	AgentsDomain string   `env:"AGENTS_DISCOVERY_DOMAIN" flag:"agents-domain" yaml:"agents_discovery_domain" default:"agents.persys.cloud" usage:"DNS domain of agents"`
	DNSUpstream  []string `env:"SCHEDULER_DNS_UPSTREAM" flag:"dns-upstream" yaml:"dns_upstream" usage:"host[:port] of DNS servers for other names; not set: other names are refused"`
	CoreDNS      []string `env:"SCHEDULER_COREDNS_ADDR" flag:"coredns-addr" yaml:"coredns_addr" usage:"host[:port] of CoreDNS servers, at most 8, that the leader probes; a server that does not answer correctly causes a warning, an event and a metric"`
	DNSRate      int      `env:"SCHEDULER_DNS_RATE" flag:"dns-rate" yaml:"dns_rate" min:"0" default:"5000" usage:"DNS queries per second of one client (IPv4 address, IPv6 /64), separately for UDP and TCP; 0 = no limit; loopback has no limit"`

	EtcdEndpoints []string      `env:"ETCD_ENDPOINTS" flag:"etcd-endpoints" yaml:"etcd_endpoints" usage:"etcd servers of the mirror, host:port or URL each; without them the control plane is degraded. none: no mirror, ever. Not set: no etcd is contacted until 'persysctl mirror attach [ENDPOINTS]', default localhost:2379"`
	EtcdPlaintext bool          `env:"ETCD_PLAINTEXT" flag:"etcd-plaintext" yaml:"etcd_plaintext" default:"false" usage:"allow an etcd on another machine without TLS: anybody on the network between them can then read and change the mirror"`
	EtcdPrefix    string        `env:"ETCD_PREFIX" flag:"etcd-prefix" yaml:"etcd_prefix" usage:"prefix of every key, so that clusters can share an etcd"`
	EtcdUsername  string        `env:"ETCD_USERNAME" flag:"etcd-username" yaml:"etcd_username" usage:"name with which this scheduler logs in to etcd"`
	EtcdPassword  string        `env:"ETCD_PASSWORD" yaml:"etcd_password" secret:"true" usage:"password of ETCD_USERNAME"`
	EtcdTLSCA     string        `env:"ETCD_TLS_CA" flag:"etcd-tls-ca" yaml:"etcd_tls_ca" usage:"CA bundle that verifies etcd's certificate; setting it turns TLS on. An https endpoint turns TLS on too, with the system's CA bundle by default"`
	EtcdTLSCert   string        `env:"ETCD_TLS_CERT" flag:"etcd-tls-cert" yaml:"etcd_tls_cert" usage:"client certificate for etcd"`
	EtcdTLSKey    string        `env:"ETCD_TLS_KEY" flag:"etcd-tls-key" yaml:"etcd_tls_key" usage:"private key of ETCD_TLS_CERT"`
	EtcdTimeout   time.Duration `env:"ETCD_TIMEOUT" flag:"etcd-timeout" yaml:"etcd_timeout" default:"5s" min:"100ms" max:"1m" usage:"deadline of one call to etcd; a write that six calls could not make has failed, and the control plane is degraded"`
	EtcdProbe     time.Duration `env:"ETCD_PROBE_INTERVAL" flag:"etcd-probe-interval" yaml:"etcd_probe_interval" default:"3s" min:"100ms" max:"1m" usage:"time between probes of etcd; it is unreachable after two failed probes in a row"`
	MirrorLayout  string        `env:"MIRROR_LAYOUT" flag:"mirror-layout" yaml:"mirror_layout" oneof:"whole,both" default:"whole" usage:"whole: one record per workload; both: also the split records of later legacy v1 schedulers"`
	MirrorEvents  time.Duration `env:"MIRROR_EVENT_AGE" flag:"mirror-event-age" yaml:"mirror_event_age" default:"168h" min:"1m" max:"8760h" usage:"age from which events and drifts are removed from etcd; at most the newest 10,000 of each are kept"`

	Shadow bool `env:"SCHEDULER_SHADOW" flag:"shadow" yaml:"shadow" default:"false" usage:"run beside another control plane: place and apply workloads, but neither answer nor publish DNS"`

	Pprof bool `env:"SCHEDULER_PPROF" flag:"pprof" yaml:"pprof" default:"false" usage:"serve Go profiles at /debug/pprof on the Unix socket pprof.sock of the data directory"`

	OTLPEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT,JAEGER_ENDPOINT" flag:"otlp-endpoint" yaml:"otlp_endpoint" usage:"receiver of traces (OTLP over HTTP), host:port or URL; empty = no traces"`
	OTLPInsecure bool   `env:"OTEL_EXPORTER_OTLP_INSECURE" flag:"otlp-insecure" yaml:"otlp_insecure" default:"true" usage:"plain HTTP for an OTLP endpoint without a scheme"`

	LogLevel  string `env:"LOG_LEVEL" flag:"log-level" yaml:"log_level" oneof:"debug,info,warn,error" default:"info" usage:"lowest level that is logged"`
	LogFormat string `env:"LOG_FORMAT" flag:"log-format" yaml:"log_format" oneof:"text,json" default:"text" usage:"text or json"`

	// Settings of legacy v1 schedulers that have no effect.
	Ignored struct {
		ReconcileInterval string `env:"SCHEDULER_RECONCILE_INTERVAL" usage:"ignored: every change is handled at once"`
		ReapplyGuard      string `env:"SCHEDULER_REAPPLY_GUARD" usage:"ignored: retries wait 5s at first and at most 2m"`
		StatusPoll        string `env:"SCHEDULER_AGENT_STATUS_POLL_INTERVAL" usage:"ignored: agents report by themselves; legacy v1 agents are polled once per second"`
		Redis             string `env:"REDIS_ADDR,REDIS_PASSWORD,REDIS_DB,REDIS_RECONCILE_TTL,REDIS_EVENT_TTL,REDIS_EVENT_MAX_ENTRIES" secret:"true" usage:"ignored, as all REDIS_* are: Redis is not needed"`
	}
}

// DefaultConfig returns the default settings.
func DefaultConfig() (Config, error) {
	var c Config
	err := config.Defaults(&c)
	return c, err
}

// complete sets the settings whose defaults depend on other settings.
func (c *Config) complete() error {
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("SCHEDULER_NAME is not set and the host has no name: %w", err)
		}
		c.Name = host
	}
	if c.BindAddr == "" {
		c.BindAddr = "0.0.0.0"
		if c.Insecure {
			c.BindAddr = "127.0.0.1"
		}
	}
	if net.ParseIP(c.BindAddr) == nil {
		return fmt.Errorf("PERSYS_GRPC_ADDR %q must be an IP address", c.BindAddr)
	}
	for _, role := range slices.Sorted(maps.Keys(c.TokenDirs)) {
		if role != string(pki.RoleScheduler) && role != string(pki.RoleAgent) || c.TokenDirs[role] == "" {
			return fmt.Errorf("SCHEDULER_TOKEN_DIR: %s=%s must be scheduler=FOLDER or agent=FOLDER: --init makes tokens of these roles; `persysctl token create` makes others", role, c.TokenDirs[role])
		}
	}
	if c.AdvertiseIP == "auto" {
		c.AdvertiseIP = ""
	}
	if c.AdvertiseIP != "" && net.ParseIP(c.AdvertiseIP) == nil {
		return fmt.Errorf("SCHEDULER_ADVERTISE_IP %q must be an IP address, or auto", c.AdvertiseIP)
	}
	if c.RaftAddr == "" {
		c.RaftAddr = net.JoinHostPort(c.BindAddr, "8086")
	}
	if c.GossipAddr == "" {
		c.GossipAddr = net.JoinHostPort(c.BindAddr, "8088")
	}
	if c.DNSAddr == "" {
		c.DNSAddr = net.JoinHostPort(c.BindAddr, "8053")
	}
	if c.DataDir == "" {
		dir, err := DefaultDataDir(c.Insecure, c.Name)
		if err != nil {
			return err
		}
		c.DataDir = dir
	}
	if c.ExternalIP != "" && net.ParseIP(c.ExternalIP) == nil {
		return fmt.Errorf("PERSYS_EXTERNAL_IP %q must be an IP address", c.ExternalIP)
	}
	if c.ClusterKey == "" {
		c.ClusterKey = filepath.Join(c.DataDir, "cluster.key")
	}
	if err := c.completeEtcd(); err != nil {
		return err
	}
	if _, fault := fsm.ParsePool(c.NetworkPool); fault != "" && c.NetworkPool != "" {
		return fmt.Errorf("SCHEDULER_NETWORK_POOL: %s", fault)
	}
	if c.AuditSink != "" {
		if err := auditsink.Check(c.AuditSink); err != nil {
			return fmt.Errorf("SCHEDULER_AUDIT_SINK %w", err)
		}
	}
	var err error
	if c.CoreDNS, err = coredns.ParseServers(c.CoreDNS); err != nil {
		return err
	}
	if c.HeartbeatInterval%time.Second != 0 || c.NodeLease%time.Second != 0 {
		return fmt.Errorf("SCHEDULER_HEARTBEAT_INTERVAL %s and SCHEDULER_NODE_LEASE %s must be whole seconds, because agents get them in seconds", c.HeartbeatInterval, c.NodeLease)
	}
	if c.NodeLease < 3*c.HeartbeatInterval {
		return fmt.Errorf("SCHEDULER_NODE_LEASE %s must be at least three times SCHEDULER_HEARTBEAT_INTERVAL %s", c.NodeLease, c.HeartbeatInterval)
	}
	return nil
}

// DefaultDataDir returns the data folder of a replica whose DataDir is not set: /var/lib/persys/scheduler for
// root; for other users a folder with the replica's name in XDG_STATE_HOME or ~/.local/state.
func DefaultDataDir(insecure bool, name string) (string, error) {
	if !insecure && os.Geteuid() == 0 {
		return "/var/lib/persys/scheduler", nil
	}
	if s := os.Getenv("XDG_STATE_HOME"); s != "" {
		return filepath.Join(s, "persys", name), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("SCHEDULER_DATA_DIR is not set and there is no home directory: %w", err)
	}
	return filepath.Join(home, ".local", "state", "persys", name), nil
}

// advertise returns the gRPC address to publish for a listener. bound is the address at which the listener listens.
func (c *Config) advertise(bound net.Addr) string {
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return bound.String()
	}
	return net.JoinHostPort(c.advertiseHost(host), port)
}

func (c *Config) advertiseHost(bound string) string {
	if c.AdvertiseIP != "" {
		return c.AdvertiseIP
	}
	if ip := net.ParseIP(bound); ip != nil && !ip.IsUnspecified() {
		return bound
	}
	return cmp.Or(c.outward, cluster.FirstIP())
}

// chooseOutward finds the address that this scheduler publishes in place of a wildcard address on which it
// listens.
func (c *Config) chooseOutward() (err error) {
	wildcard := func(listen string) bool {
		host, _, err := net.SplitHostPort(listen)
		ip := net.ParseIP(host)
		return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
	}
	if c.outward == "" && c.AdvertiseIP == "" && slices.ContainsFunc([]string{net.JoinHostPort(c.BindAddr, "0"), c.RaftAddr, c.GossipAddr, c.DNSAddr}, wildcard) {
		c.outward, err = config.Outward("SCHEDULER_ADVERTISE_IP", "IP", c.Join)
	}
	return err
}

func (c *Config) grpcAdvertise(bound net.Addr) string {
	a := c.advertise(bound)
	if c.AdvertisePort == 0 {
		return a
	}
	host, _, err := net.SplitHostPort(a)
	if err != nil {
		return a
	}
	return net.JoinHostPort(host, strconv.Itoa(c.AdvertisePort))
}

// advertiseOf returns the address under which other programs reach the port of the listen setting: AdvertiseIP
// with that port. If it returns "", the Raft node chooses the address.
func (c *Config) advertiseOf(listen string) string {
	if c.AdvertiseIP == "" {
		return ""
	}
	_, port, err := net.SplitHostPort(listen)
	if err != nil || port == "0" {
		return ""
	}
	return net.JoinHostPort(c.AdvertiseIP, port)
}

// files loads the scheduler's certificate, key and CA files. With -insecure it returns nil.
func (c *Config) files() (*pki.Files, error) {
	if c.Insecure {
		return nil, nil
	}
	mapping, err := pki.PeerMapping(c.TLSLegacyNames, c.TLSPeers)
	if err != nil {
		return nil, err
	}
	return pki.LoadFiles(pki.FilesConfig{CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey, Mapping: mapping})
}

// strangerLife is the time after which the gRPC server closes a connection without a client certificate. A
// join, the purpose of such a connection, takes seconds.
const strangerLife = 30 * time.Second

// limits converts the settings to the limits that the gRPC server applies to connections and calls.
func (c *Config) limits() limits.Limits {
	out := limits.Limits{Calls: c.LimitCalls, Concurrent: c.LimitConcurrent, Streams: c.LimitStreams, Connections: c.LimitConnections, PerHost: c.LimitPerHost}
	if !c.Insecure && c.LimitStrangers > 0 {
		out.Strangers, out.StrangersPerNetwork, out.StrangerLife = c.LimitStrangers, max(1, c.LimitStrangers/8), strangerLife
	}
	return out
}
