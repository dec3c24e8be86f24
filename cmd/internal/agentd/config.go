package agentd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/persys/compute/agent"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/libvirt"
	"github.com/persys/compute/agent/volume"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/cmd/internal/taint"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/enrol"
)

// Config is the settings of an agent (contract/env.md, "Agent"). The usage text in a field's tag explains the
// field.
type Config struct {
	Standalone bool `flag:"standalone" yaml:"standalone" env:"PERSYS_STANDALONE" default:"false" usage:"run without schedulers"`
	Insecure   bool `flag:"insecure" yaml:"insecure" env:"PERSYS_INSECURE" default:"false" usage:"no TLS, neither for callers nor towards schedulers; the agent listens on the loopback address"`

	NodeID  string `env:"PERSYS_NODE_ID" flag:"node-id" yaml:"node_id" usage:"name of this node; auto = host name and machine id; default: host name"`
	Version string `env:"PERSYS_VERSION" flag:"report-version" yaml:"version" usage:"version that the agent reports to the schedulers; default: the version of this program"`

	GRPCAddr    string `env:"PERSYS_GRPC_ADDR" flag:"bind" yaml:"grpc_addr" usage:"bind address; default 0.0.0.0, with -insecure 127.0.0.1"`
	GRPCPort    int    `env:"PERSYS_GRPC_PORT" flag:"grpc-port" yaml:"grpc_port" kind:"port" min:"0" default:"50051" usage:"agent API"`
	MetricsPort int    `env:"PERSYS_METRICS_PORT" flag:"metrics-port" yaml:"metrics_port" kind:"port" min:"0" default:"8089" usage:"/metrics and /health"`
	Endpoint    string `env:"PERSYS_AGENT_GRPC_ENDPOINT" flag:"endpoint" yaml:"agent_grpc_endpoint" usage:"host:port at which schedulers reach this agent; default: the address on which it listens"`

	TLSEnabled bool   `env:"PERSYS_TLS_ENABLED" flag:"tls" yaml:"tls_enabled" default:"true" usage:"mutual TLS"`
	TLSCert    string `env:"PERSYS_TLS_CERT" flag:"tls-cert" yaml:"tls_cert_path" default:"/etc/persys/certs/agent.crt" usage:"certificate"`
	TLSKey     string `env:"PERSYS_TLS_KEY" flag:"tls-key" yaml:"tls_key_path" default:"/etc/persys/certs/agent.key" usage:"private key"`
	TLSCA      string `env:"PERSYS_TLS_CA" flag:"tls-ca" yaml:"tls_ca_path" default:"/etc/persys/certs/ca.crt" usage:"CA bundle"`

	Join           string            `env:"PERSYS_JOIN" flag:"join" yaml:"join" secret:"true" usage:"join token: the first start gets a certificate with it and stores it beside the state"`
	TLSPeers       map[string]string `env:"PERSYS_TLS_PEERS" flag:"tls-peers" yaml:"tls_peers" usage:"roles of certificates of other CAs: NAME=ROLE or NAME=ROLE/ID; NAME is the common name or a DNS name in the certificate, such as control.example.com=scheduler"`
	TLSLegacyNames bool              `env:"PERSYS_TLS_LEGACY_NAMES" flag:"tls-legacy-names" yaml:"tls_legacy_names" default:"false" usage:"certificates of other CAs with the name of a legacy v1 program (persys-scheduler, persys-gateway, compute-agent, persysctl, …) get the role of that program"`

	Vault vaultSettings

	StatePath string `env:"PERSYS_STATE_PATH,PERSYS_STATE_STORE_PATH" flag:"state" yaml:"state_store_path" usage:"state file; default /var/lib/persys/state.db, or below XDG_STATE_HOME for users and -insecure"`

	Schedulers        []string          `env:"PERSYS_SCHEDULER_ADDR" flag:"scheduler" yaml:"scheduler_addr" usage:"host:port of schedulers, comma separated; default 127.0.0.1:8085"`
	Discovery         string            `env:"PERSYS_SCHEDULER_DISCOVERY" flag:"discovery" yaml:"scheduler_discovery" usage:"srv://NAME[?dns=HOST:PORT,...]: find the schedulers by the SRV records of NAME; used only if no scheduler address is set"`
	SchedulerInsecure bool              `env:"PERSYS_SCHEDULER_INSECURE" flag:"scheduler-insecure" yaml:"scheduler_insecure" default:"false" usage:"no TLS on connections to the schedulers"`
	ClusterID         string            `env:"PERSYS_CLUSTER_ID" flag:"cluster-id" yaml:"cluster_id" usage:"id that the cluster of this node must have"`
	Shard             string            `env:"PERSYS_SCHEDULER_SHARD" flag:"scheduler-shard" yaml:"scheduler_shard" usage:"shard (SCHEDULER_SHARD_KEY of the schedulers) that the cluster of this node must have"`
	Region            string            `env:"PERSYS_NODE_REGION" flag:"region" yaml:"node_region" usage:"value of the label region"`
	Env               string            `env:"PERSYS_NODE_ENV" flag:"env" yaml:"node_env" usage:"value of the label env"`
	Labels            map[string]string `env:"PERSYS_NODE_LABELS" flag:"labels" yaml:"node_labels" usage:"labels of this node, k=v,k2=v2; labels set with persysctl node label override them"`
	Devices           map[string]string `env:"PERSYS_NODE_DEVICES" flag:"devices" yaml:"node_devices" usage:"numbers of devices that workloads can reserve, name=number,…, such as nvidia.com/gpu=2; they take precedence over the CDI devices that the engine reports"`
	Taints            []string          `env:"PERSYS_NODE_TAINTS" flag:"taints" yaml:"node_taints" usage:"taints of this node, KEY=VALUE:EFFECT, comma separated, such as k=v:NoSchedule,k2:NoExecute:60; the effects are NoSchedule, PreferNoSchedule and NoExecute, which may have a delay in seconds; taints set with persysctl node taint override them"`

	Fencer      string        `env:"PERSYS_FENCER" flag:"fencer" yaml:"fencer" oneof:"auto,external,off" default:"auto" usage:"process that stops workloads with on_lost_lease: stop when the lease ends: auto = fencers that the agent starts, external = a persys-agent fencer that an operator runs, off = such workloads are refused"`
	FencerDir   string        `env:"PERSYS_FENCER_DIR" flag:"fencer-dir" yaml:"fencer_dir" usage:"folder of the socket between agent and fencer; default: beside the state"`
	FencerGrace time.Duration `env:"PERSYS_FENCER_GRACE" flag:"fencer-grace" yaml:"fencer_grace" seconds:"true" default:"10s" min:"0s" max:"10m" usage:"time a fencer gives a workload to stop; the workload is placed elsewhere at least 5 s after this time"`

	Docker     bool   `env:"PERSYS_DOCKER_ENABLED" flag:"docker" yaml:"docker_enabled" default:"true" usage:"run containers on a Docker engine"`
	DockerHost string `env:"DOCKER_HOST" flag:"docker-host" yaml:"docker_endpoint" default:"unix:///var/run/docker.sock" usage:"Docker endpoint"`
	Compose    bool   `env:"PERSYS_COMPOSE_ENABLED" flag:"compose" yaml:"compose_enabled" default:"true" usage:"run Compose stacks on the Docker engine"`
	ComposeBin string `env:"PERSYS_COMPOSE_BINARY" flag:"compose-binary" yaml:"compose_binary" usage:"Compose command (several words are allowed), used instead of the library that is built in"`
	ComposeDir string `env:"PERSYS_COMPOSE_DIR" flag:"compose-dir" yaml:"compose_dir" usage:"folders of Compose projects; default: compose, beside the state file"`
	VM         bool   `env:"PERSYS_VM_ENABLED" flag:"vm" yaml:"vm_enabled" default:"true" usage:"run virtual machines, if this build and this machine support them"`
	LibvirtURI string `env:"PERSYS_LIBVIRT_URI" flag:"libvirt-uri" yaml:"libvirt_uri" default:"qemu:///system" usage:"URI of the libvirt daemon of this machine"`
	VMImages   string `env:"PERSYS_VM_IMAGES" flag:"vm-images" yaml:"vm_images" default:"/var/lib/libvirt/images" usage:"folder of the disks of virtual machines and of images named without a folder"`
	VMAccel    string `env:"PERSYS_VM_ACCELERATION" flag:"vm-acceleration" yaml:"vm_acceleration" oneof:"auto,kvm,qemu" default:"auto" usage:"auto = KVM if a test guest boots, else emulation"`
	VMScreens  string `env:"PERSYS_VM_VNC" flag:"vm-vnc" yaml:"vm_vnc" default:"127.0.0.1" usage:"listen address of VNC; each screen has a password in a file beside the disks of its machine; none = no VNC"`
	CredsFile  string `env:"PERSYS_CREDENTIALS_FILE" flag:"credentials" yaml:"credentials_file" usage:"file with credentials for registries and Git, readable by the owner only; default: credentials.yaml beside the state file"`
	DockerConf string `env:"DOCKER_CONFIG" flag:"docker-config" yaml:"docker_config" usage:"folder of a Docker config.json with further registry credentials; default: ~/.docker, none = not used"`
	Simulate   string `env:"PERSYS_SIMULATE" flag:"simulate" yaml:"simulate" usage:"folder of a simulated engine in place of Docker; no workload really runs"`

	LocalRoot        string            `env:"PERSYS_STORAGE_LOCAL_ROOT" flag:"storage-local-root" yaml:"storage_local_root" usage:"folder of local volumes, the default pool; default: volumes/local beside the state file"`
	Pools            map[string]string `env:"PERSYS_STORAGE_POOLS" flag:"storage-pools" yaml:"storage_pools" usage:"further pools for local volumes, name=folder: fast=/mnt/nvme,bulk=/srv/bulk"`
	NFSRoot          string            `env:"PERSYS_STORAGE_NFS_STAGE_ROOT" flag:"storage-nfs-stage-root" yaml:"storage_nfs_stage_dir" usage:"where the NFS export is mounted; default: volumes/nfs, beside the state file"`
	NFSServer        string            `env:"PERSYS_STORAGE_NFS_SERVER" flag:"storage-nfs-server" yaml:"storage_nfs_server" usage:"NFS server; with an export, volumes of driver nfs are offered"`
	NFSExport        string            `env:"PERSYS_STORAGE_NFS_EXPORT" flag:"storage-nfs-export" yaml:"storage_nfs_export" usage:"path on the NFS server; every volume is a folder of it"`
	NFSOptions       string            `env:"PERSYS_STORAGE_NFS_MOUNT_OPTIONS" flag:"storage-nfs-options" yaml:"storage_nfs_options" usage:"options of mount, such as vers=4.2,hard"`
	CephRoot         string            `env:"PERSYS_STORAGE_CEPH_STAGE_ROOT" flag:"storage-ceph-stage-root" yaml:"storage_ceph_stage_dir" usage:"where Ceph images are mounted; default: volumes/ceph-rbd, beside the state file"`
	CephCluster      string            `env:"PERSYS_STORAGE_CEPH_CLUSTER" flag:"storage-ceph-cluster" yaml:"storage_ceph_cluster" usage:"name of the Ceph cluster; empty = the default of the program rbd"`
	CephPool         string            `env:"PERSYS_STORAGE_CEPH_POOL" flag:"storage-ceph-pool" yaml:"storage_ceph_pool" usage:"Ceph pool; with it, volumes of driver ceph-rbd are offered"`
	CephUser         string            `env:"PERSYS_STORAGE_CEPH_USER" flag:"storage-ceph-user" yaml:"storage_ceph_user" usage:"name of the Ceph user; empty = the default of the program rbd"`
	CephKeyring      string            `env:"PERSYS_STORAGE_CEPH_KEYRING" flag:"storage-ceph-keyring" yaml:"storage_ceph_keyring" usage:"file with the key of the Ceph user"`
	LimitCalls       int               `env:"PERSYS_LIMIT_CALLS" flag:"limit-calls" yaml:"limit_calls" default:"2000" min:"0" max:"10000000" usage:"calls per second of one host, with bursts of twice as many; 0 = no limit"`
	LimitConcurrent  int               `env:"PERSYS_LIMIT_CONCURRENT" flag:"limit-concurrent" yaml:"limit_concurrent" default:"1024" min:"0" max:"1000000" usage:"concurrent calls of one host, streams excluded; 0 = no limit"`
	LimitStreams     int               `env:"PERSYS_LIMIT_STREAMS" flag:"limit-streams" yaml:"limit_streams" default:"1024" min:"0" max:"1000000" usage:"concurrent streams (logs, exec sessions) of one host; a scheduler is one host and relays the streams of many users; 0 = no limit"`
	LimitConnections int               `env:"PERSYS_LIMIT_CONNECTIONS" flag:"limit-connections" yaml:"limit_connections" default:"1024" min:"0" max:"1000000" usage:"connections to the agent API; 0 = no limit"`
	LimitPerHost     int               `env:"PERSYS_LIMIT_CONNECTIONS_PER_HOST" flag:"limit-connections-per-host" yaml:"limit_connections_per_host" default:"256" min:"0" max:"1000000" usage:"connections to the agent API from one address; 0 = no limit"`

	Threshold      int `env:"PERSYS_RESOURCE_THRESHOLD" flag:"resource-threshold" yaml:"resource_threshold" min:"1" max:"100" default:"80" usage:"percent of CPU, memory and disk that workloads may reserve, after the reservations for the machine itself; a workload that needs more is refused with INSUFFICIENT_RESOURCES"`
	ReservedCPU    int `env:"PERSYS_RESERVED_CPU" flag:"reserved-cpu" yaml:"reserved_cpu" min:"0" max:"1000000000" default:"0" usage:"millicores kept for the machine itself"`
	ReservedMemory int `env:"PERSYS_RESERVED_MEMORY" flag:"reserved-memory" yaml:"reserved_memory" min:"0" max:"1000000000" default:"0" usage:"MiB kept for the machine itself"`
	ReservedDisk   int `env:"PERSYS_RESERVED_DISK" flag:"reserved-disk" yaml:"reserved_disk" min:"0" max:"1048576" default:"0" usage:"GB of the default storage pool kept for the machine itself"`

	GC            bool          `env:"PERSYS_GC_ENABLED" flag:"gc" yaml:"gc_enabled" default:"true" usage:"remove leftovers, unused images and old volumes periodically"`
	GCInterval    time.Duration `env:"PERSYS_GC_INTERVAL" flag:"gc-interval" yaml:"gc_interval" seconds:"true" default:"5m" min:"1s" max:"24h" usage:"period of garbage collection"`
	GCOrphans     bool          `env:"PERSYS_GC_ORPHANS" flag:"gc-orphans" yaml:"gc_orphans" default:"false" usage:"also remove instances with our labels that no scheduler ordered"`
	GCFailedAge   time.Duration `env:"PERSYS_GC_FAILED_AGE" flag:"gc-failed-age" yaml:"gc_failed_age" seconds:"true" default:"1h" min:"1m" max:"8760h" usage:"age at which the agent forgets a failed workload without an instance; used only with legacy v1 schedulers"`
	GCVolumeAge   time.Duration `env:"PERSYS_GC_VOLUME_AGE" flag:"gc-volume-age" yaml:"gc_volume_age" seconds:"true" default:"72h" min:"1s" max:"8760h" usage:"age at which a released volume without retain policy, or a disk that a moved virtual machine left, is deleted"`
	GCImageBudget int           `env:"PERSYS_GC_IMAGE_BUDGET_GB" flag:"gc-image-budget" yaml:"gc_image_budget_gb" min:"0" max:"1048576" default:"20" usage:"GB of unused images pulled by this agent that garbage collection keeps; 0 = no limit"`

	Reconcile         bool          `env:"PERSYS_RECONCILE_ENABLED" flag:"reconcile" yaml:"reconcile_enabled" default:"true" usage:"compare all workloads with the engines periodically"`
	ReconcileInterval time.Duration `env:"PERSYS_RECONCILE_INTERVAL" flag:"reconcile-interval" yaml:"reconcile_interval" seconds:"true" default:"30s" min:"1s" max:"24h" usage:"interval between two comparisons of all workloads with the engines"`

	Policy    string   `env:"PERSYS_POLICY" flag:"policy" yaml:"policy" usage:"the most that any workload may ask of this machine: privileged, baseline, restricted, or a file with a policy; default: baseline, except for workloads of legacy v1 schedulers and of namespaces that only admins use"`
	Protected []string `env:"PERSYS_PROTECTED_PATHS" flag:"protected-paths" yaml:"protected_paths" usage:"data folders of schedulers on this machine, which no workload may mount; /var/lib/persys/scheduler is always protected"`

	Exec     bool          `env:"PERSYS_EXEC_ENABLED" flag:"exec" yaml:"exec_enabled" default:"true" usage:"let operators run commands in workloads and open consoles (persysctl exec, console)"`
	ExecIdle time.Duration `env:"PERSYS_EXEC_IDLE_TIMEOUT" flag:"exec-idle-timeout" yaml:"exec_idle_timeout" seconds:"true" default:"15m" min:"0s" max:"24h" usage:"time without input and output after which a session ends; 0 = never"`

	OTLPEndpoint string `env:"OTEL_EXPORTER_JAEGER_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" flag:"otlp-endpoint" yaml:"otlp_endpoint" usage:"receiver of traces (OTLP over HTTP), host:port or URL; empty = no traces"`
	OTLPInsecure bool   `env:"OTEL_EXPORTER_OTLP_INSECURE" flag:"otlp-insecure" yaml:"otlp_insecure" default:"true" usage:"plain HTTP for an OTLP endpoint without a scheme"`
	OTelService  string `env:"OTEL_SERVICE_NAME" flag:"otel-service-name" yaml:"otel_service_name" default:"compute-agent" usage:"name of this program in traces"`

	LogLevel  string `env:"PERSYS_LOG_LEVEL,LOG_LEVEL" flag:"log-level" yaml:"log_level" oneof:"debug,info,warn,error" default:"info" usage:"lowest level that is logged"`
	LogFormat string `env:"LOG_FORMAT" flag:"log-format" yaml:"log_format" oneof:"text,json" default:"text" usage:"text or json"`
}

// DefaultScheduler is the address of the scheduler if no setting names one.
const DefaultScheduler = "127.0.0.1:8085"

// DefaultCert is the default of PERSYS_TLS_CERT.
const DefaultCert = "/etc/persys/certs/agent.crt"

// identityStore returns the store of the identity (key and certificate) that this agent got for a join token.
func (c *Config) identityStore() pki.IdentityStore {
	return pki.IdentityStore{Dir: c.StatePath + ".tls"}
}

// identity obtains an identity (key and certificate) with the join token, or loads the identity that an earlier start
// has stored. It returns false if the PERSYS_TLS_* files are used instead.
func (c *Config) identity(ctx context.Context, node string, log *slog.Logger) (bool, error) {
	identityStore := c.identityStore()
	hosts := c.hosts()
	switch {
	case c.Join != "":
		if err := enrol.Join(ctx, enrol.Options{Token: c.Join, Identity: identityStore, Role: pki.RoleAgent, Name: node, Hosts: hosts, Status: setup.Status, Log: log}); err != nil {
			return false, fmt.Errorf("PERSYS_JOIN: %w", err)
		}
	case !c.TLSEnabled || c.Vault.Enabled || c.TLSCert != DefaultCert || !identityStore.Exists():
		if len(c.Schedulers) == 0 && c.Discovery == "" {
			c.Schedulers = []string{DefaultScheduler}
		}
		return false, nil
	}
	m, err := enrol.LoadMembership(identityStore, "PERSYS_NODE_ID", node, "to join as another node, `persysctl token create --role agent`, then start with --join TOKEN")
	if err != nil {
		return false, err
	}
	if err := enrol.Expired(identityStore, pki.RoleAgent, node); err != nil {
		return false, err
	}
	p := identityStore.Paths()
	c.TLSCA, c.TLSCert, c.TLSKey = p.CA, p.Cert, p.Key
	if len(c.Schedulers) == 0 && c.Discovery == "" {
		c.Schedulers = m.Schedulers
	}
	return true, nil
}

// hosts returns the names and addresses under which schedulers may connect to this agent.
func (c *Config) hosts() []string {
	advertised, _, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		advertised = ""
	}
	return enrol.Hosts(c.GRPCAddr, advertised)
}

// begin fills in the settings that have no value. It returns the name of this node and, in reports, the version that
// the agent sends to the schedulers.
func (c *Config) begin(version string) (node, reports string, err error) {
	if err := c.complete(); err != nil {
		return "", "", err
	}
	node, err = agent.NodeID(c.NodeID)
	return node, cmp.Or(c.Version, version), err
}

func (c *Config) complete() error {
	if c.Insecure {
		c.TLSEnabled, c.SchedulerInsecure = false, true
	}
	if c.GRPCAddr == "" {
		c.GRPCAddr = "0.0.0.0"
		if c.Insecure {
			c.GRPCAddr = "127.0.0.1"
		}
	}
	if net.ParseIP(c.GRPCAddr) == nil {
		return fmt.Errorf("PERSYS_GRPC_ADDR %q must be an IP address", c.GRPCAddr)
	}
	if c.VM {
		if err := libvirt.Available(c.LibvirtURI); driver.ClassOf(err) == driver.InvalidConfiguration {
			return fmt.Errorf("PERSYS_LIBVIRT_URI: %w", err)
		}
	}
	if c.StatePath == "" {
		path, err := defaultStatePath(c.Insecure, c.NodeID)
		if err != nil {
			return err
		}
		c.StatePath = path
	}
	if c.FencerDir == "" {
		c.FencerDir = c.StatePath + ".fencer"
	}
	if c.Standalone {
		c.Fencer = "off" // a standalone agent has no lease, so it needs no fencer
	}
	if c.CredsFile == "" {
		c.CredsFile = filepath.Join(filepath.Dir(c.StatePath), "credentials.yaml")
	}
	switch c.DockerConf {
	case "none":
		c.DockerConf = ""
	case "":
		if home, err := os.UserHomeDir(); err == nil {
			c.DockerConf = filepath.Join(home, ".docker")
		}
	}
	if c.ComposeDir == "" {
		c.ComposeDir = filepath.Join(filepath.Dir(c.StatePath), "compose")
	}
	for _, d := range []struct {
		path *string
		name string
	}{{&c.LocalRoot, volume.Local}, {&c.NFSRoot, volume.NFS}, {&c.CephRoot, volume.Ceph}} {
		if *d.path == "" {
			*d.path = filepath.Join(filepath.Dir(c.StatePath), "volumes", d.name)
		}
		abs, err := filepath.Abs(*d.path)
		if err != nil {
			return fmt.Errorf("the folder of %s volumes %q: %w", d.name, *d.path, err)
		}
		*d.path = abs
	}
	if !c.Reconcile {
		c.ReconcileInterval = 24 * time.Hour
	}
	if c.Join != "" && (c.Insecure || !c.TLSEnabled) {
		return errors.New("PERSYS_JOIN is set, but TLS is off: leave out -insecure and PERSYS_TLS_ENABLED=false")
	}
	if c.Join != "" && c.Vault.Enabled {
		return errors.New("PERSYS_JOIN and PERSYS_VAULT_ENABLED=true are both set: set one of them")
	}
	if c.Join != "" && c.TLSCert != DefaultCert {
		return fmt.Errorf("PERSYS_JOIN and PERSYS_TLS_CERT=%s are both set: set one of them", c.TLSCert)
	}
	return nil
}

// gc converts the settings of garbage collection to the form that package agent takes.
func (c *Config) gc() agent.GC {
	out := agent.GC{Orphans: c.GCOrphans, FailedAfter: c.GCFailedAge, VolumesAfter: c.GCVolumeAge, ImageBudget: int64(c.GCImageBudget) << 30}
	if c.GC {
		out.Every = c.GCInterval
	}
	return out
}

// storage converts the settings of managed volumes to the form that package volume takes.
func (c *Config) storage() volume.Config {
	out := volume.Config{
		Pools: []volume.PoolConfig{{Name: volume.DefaultPool, Path: c.LocalRoot}},
		NFS:   volume.NFSConfig{Root: c.NFSRoot, Server: c.NFSServer, Export: c.NFSExport, Options: c.NFSOptions},
		Ceph:  volume.CephConfig{Root: c.CephRoot, Cluster: c.CephCluster, Pool: c.CephPool, User: c.CephUser, Keyring: c.CephKeyring},
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		out.Pools = append(out.Pools, volume.PoolConfig{Name: name, Path: c.Pools[name]})
	}
	return out
}

func defaultStatePath(insecure bool, node string) (string, error) {
	if !insecure && os.Geteuid() == 0 {
		return "/var/lib/persys/state.db", nil
	}
	if node == "" {
		node = "agent"
	}
	base, err := userState()
	return filepath.Join(base, strings.ToLower(node), "state.db"), err
}

// userState returns the folder in which programs that were started by a user, not as a service, keep their
// data.
func userState() (string, error) {
	if base := os.Getenv("XDG_STATE_HOME"); base != "" {
		return filepath.Join(base, "persys"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("PERSYS_STATE_PATH is not set and there is no home directory: %w", err)
	}
	return filepath.Join(home, ".local", "state", "persys"), nil
}

const maxDevices = 4096 // largest number of devices of one name

var deviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,62})?$`)

// devices parses the setting PERSYS_NODE_DEVICES.
func (c *Config) devices() (map[string]int64, error) {
	out := map[string]int64{}
	for name, text := range c.Devices {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > maxDevices {
			return nil, fmt.Errorf("PERSYS_NODE_DEVICES: %s=%s: the number of devices must be 0 to %d; write NAME=NUMBER,NAME=NUMBER, such as nvidia.com/gpu=2", name, text, maxDevices)
		}
		if !deviceName.MatchString(name) {
			return nil, fmt.Errorf("PERSYS_NODE_DEVICES: %q must be NAME or VENDOR/CLASS of letters, digits, '.', '_' and '-', such as nvidia.com/gpu", name)
		}
		out[name] = n
	}
	return out, nil
}

// taints parses the setting PERSYS_NODE_TAINTS.
func (c *Config) taints() ([]*controlv1.Taint, error) {
	var out []*controlv1.Taint
	for _, text := range c.Taints {
		t, err := taint.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("PERSYS_NODE_TAINTS: %w", err)
		}
		out = append(out, t)
	}
	return out, nil
}

func (c *Config) labels() map[string]string {
	out := map[string]string{}
	for k, v := range c.Labels {
		out[k] = v
	}
	if c.Region != "" {
		out["region"] = c.Region
	}
	if c.Env != "" {
		out["env"] = c.Env
	}
	return out
}
