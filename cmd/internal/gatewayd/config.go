package gatewayd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/gateway"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
)

// Config is the settings of a gateway (contract/env.md, "Gateway"). Some settings of legacy v1 gateways have
// no effect here. They are accepted and ignored, so that this gateway starts with the settings file of a
// legacy v1 gateway.
type Config struct {
	Insecure bool `flag:"insecure" yaml:"insecure" env:"PERSYS_INSECURE" default:"false" usage:"no TLS, neither for callers nor towards schedulers, and every caller is an admin; the gateway listens on the loopback address"`

	HTTPAddr   string `env:"PERSYS_GATEWAY_HTTP_ADDR" flag:"http-addr" yaml:"app.http_addr" usage:"API listener; default :8551, with -insecure 127.0.0.1:8551"`
	PublicAddr string `env:"PERSYS_GATEWAY_PUBLIC_ADDR" flag:"public-addr" yaml:"app.http_addr_public" usage:"public listener (webhooks, metrics), none = off; default :8585, with -insecure 127.0.0.1:8585"`
	PublicTLS  string `env:"PERSYS_GATEWAY_PUBLIC_TLS" flag:"public-tls" yaml:"app.public_tls" oneof:"auto,true,false" default:"auto" usage:"TLS on the public listener; auto: yes, except on port 8585, where legacy senders expect plain HTTP, and with -insecure"`

	Schedulers []string `env:"PERSYS_SCHEDULER_ADDR" flag:"scheduler" usage:"host:port of the schedulers of one cluster, comma separated, if no cluster file names them; default 127.0.0.1:8085 with -insecure"`
	Discovery  string   `env:"PERSYS_SCHEDULER_DISCOVERY" flag:"discovery" usage:"srv://NAME[?dns=HOST:PORT,...]: find the schedulers by the SRV records of NAME; used only if no scheduler address is set"`

	ClusterFile    string        `env:"PERSYS_GATEWAY_CLUSTER_CONFIG" flag:"cluster-config" default:"cluster.yaml" usage:"YAML file with scheduler.clusters, scheduler.default_cluster_id and scheduler.repository_cluster_map, which replace the main file's; may be absent"`
	DefaultCluster string        `env:"PERSYS_GATEWAY_DEFAULT_CLUSTER" usage:"cluster of requests that name none; must be configured; default: scheduler.default_cluster_id"`
	FileDefault    string        `yaml:"scheduler.default_cluster_id" usage:"cluster of requests that name none; if it does not exist, the first in the order of ids"`
	Clusters       string        `yaml:"scheduler.clusters" kind:"yaml" usage:"list of {id, name, routing_strategy: leader-only|sticky|shard, discovery, schedulers: [{id, address, is_leader}]}"`
	ProbeInterval  time.Duration `env:"PERSYS_GATEWAY_PROBE_INTERVAL" yaml:"scheduler.health_check_interval" default:"15s" min:"100ms" max:"10m" usage:"time between probes of each scheduler"`
	CallTimeout    time.Duration `env:"PERSYS_GATEWAY_CALL_TIMEOUT" yaml:"scheduler.request_timeout" default:"20s" min:"1s" max:"10m" usage:"deadline of one call; streams have none, and calls of garbage collection and recovery have at least 15m"`

	DNSAddr          string `yaml:"core_dns.addr" usage:"DNS server for prow.discovery_domain; default: the system's"`
	ProxyScheduler   string `yaml:"prow.scheduler_addr" usage:"only shown by /health"`
	ProxyEnabled     bool   `yaml:"prow.enable_proxy" default:"false" usage:"only shown by /health"`
	DiscoveryDomain  string `yaml:"prow.discovery_domain" usage:"domain in which the gateway finds the schedulers by DNS if no clusters are listed: SRV records of _<discovery_service>._tcp.<domain>, _<discovery_service>.<domain> or <domain>, else port 8085 of <discovery_service>.<domain>, persys-scheduler.<domain> or these names without the domain; the cluster gets the id cluster-discovered"`
	DiscoveryService string `yaml:"prow.discovery_service" default:"persys-scheduler" usage:"see prow.discovery_domain"`

	TLSCert           string            `env:"PERSYS_GATEWAY_TLS_CERT_PATH,PERSYS_TLS_CERT" flag:"tls-cert" yaml:"tls.cert_path" default:"/etc/persys/certs/gateway.crt" usage:"certificate, towards callers and schedulers"`
	TLSKey            string            `env:"PERSYS_GATEWAY_TLS_KEY_PATH,PERSYS_TLS_KEY" flag:"tls-key" yaml:"tls.key_path" default:"/etc/persys/certs/gateway.key" usage:"private key"`
	TLSCA             string            `env:"PERSYS_GATEWAY_TLS_CA_PATH,PERSYS_TLS_CA" flag:"tls-ca" yaml:"tls.ca_path" default:"/etc/persys/certs/ca.crt" usage:"CA bundle"`
	TLSPeers          map[string]string `env:"PERSYS_TLS_PEERS" flag:"tls-peers" yaml:"tls.peers" usage:"roles of certificates of other CAs: NAME=ROLE or NAME=ROLE/ID; NAME is the common name or a DNS name in the certificate, such as control.example.com=scheduler"`
	TLSLegacyNames    bool              `env:"PERSYS_TLS_LEGACY_NAMES" flag:"tls-legacy-names" yaml:"tls.legacy_names" default:"false" usage:"certificates of other CAs with the name of a legacy v1 program (persys-scheduler, persys-gateway, compute-agent, persysctl, …) get the role of that program"`
	Join              string            `env:"PERSYS_GATEWAY_JOIN,PERSYS_JOIN" flag:"join" yaml:"join" secret:"true" usage:"join token: the first start gets a certificate with it and stores it in the state folder"`
	Name              string            `env:"PERSYS_GATEWAY_NAME" flag:"name" yaml:"name" usage:"name of this gateway in the certificate of the join token; default: host name"`
	StateDir          string            `env:"PERSYS_GATEWAY_STATE_DIR" flag:"state-dir" yaml:"state_dir" usage:"folder of the certificate that this gateway gets with the join token, and of its list of webhook deliveries; default /var/lib/persys/gateway, or below XDG_STATE_HOME for users"`
	RequireClientCert bool              `env:"PERSYS_GATEWAY_REQUIRE_CLIENT_CERT" yaml:"tls.require_client_cert" default:"false" usage:"refuse TLS connections of clients without a certificate; if false, such clients need a bearer token"`

	OIDCIssuer     string            `env:"PERSYS_GATEWAY_OIDC_ISSUER" yaml:"auth.oidc.issuer" usage:"URL of an OpenID Connect provider whose tokens are accepted"`
	OIDCAudience   string            `env:"PERSYS_GATEWAY_OIDC_AUDIENCE" yaml:"auth.oidc.audience" usage:"client id that a token must name as its audience"`
	OIDCClaim      string            `env:"PERSYS_GATEWAY_OIDC_ROLES_CLAIM" yaml:"auth.oidc.roles_claim" default:"groups" usage:"claim that names the caller's groups"`
	OIDCRoles      map[string]string `env:"PERSYS_GATEWAY_OIDC_ROLES" yaml:"auth.oidc.roles" usage:"group=viewer|operator|admin, comma separated"`
	OIDCNamespaces map[string]string `env:"PERSYS_GATEWAY_OIDC_NAMESPACES" yaml:"auth.oidc.namespaces" usage:"namespaces of the groups in a token: group=namespace, group=one+another or group=all, comma separated; group * is every caller. A caller who gets no namespace here and is no admin may do nothing"`

	LimitCalls       int `env:"PERSYS_GATEWAY_LIMIT_CALLS" yaml:"limit.calls" default:"1000" min:"0" max:"10000000" usage:"requests per second of one host, with bursts of twice as many; 0 = no limit"`
	LimitConcurrent  int `env:"PERSYS_GATEWAY_LIMIT_CONCURRENT" yaml:"limit.concurrent" default:"512" min:"0" max:"1000000" usage:"concurrent requests of one host, streams included; 0 = no limit"`
	LimitConnections int `env:"PERSYS_GATEWAY_LIMIT_CONNECTIONS" yaml:"limit.connections" default:"8192" min:"0" max:"1000000" usage:"connections to each listener; 0 = no limit"`
	LimitPerHost     int `env:"PERSYS_GATEWAY_LIMIT_CONNECTIONS_PER_HOST" yaml:"limit.connections_per_host" default:"512" min:"0" max:"1000000" usage:"connections to each listener from one address; 0 = no limit"`

	WebhookPath    string            `yaml:"webhook.public_path" default:"/webhooks/github" usage:"path of the webhook for deliveries of GitHub, on the public listener"`
	WebhookSecret  string            `env:"PERSYS_GATEWAY_GITHUB_WEBHOOK_SECRET" yaml:"github.default_secret" secret:"true" usage:"secret that webhook deliveries are signed with"`
	WebhookSecrets map[string]string `yaml:"webhook.repository_secrets" secret:"true" usage:"secrets of single repositories, by owner/name"`
	WebhookForward string            `env:"PERSYS_GATEWAY_WEBHOOK_FORWARD_URL" yaml:"forgery.webhook_forward_url" usage:"URL that accepted deliveries are posted to; without it they are refused"`
	ReplayTTL      time.Duration     `yaml:"webhook.replay_ttl" default:"5m" min:"1s" max:"24h" usage:"time for which a delivery is refused a second time, also after a restart"`
	ForwardRetries int               `yaml:"webhook.forward_retries" default:"5" min:"1" max:"100" usage:"retries of a forwarded delivery"`
	ForwardBackoff time.Duration     `yaml:"webhook.forward_base_backoff" default:"1s" min:"10ms" max:"10m" usage:"first pause between retries; it doubles"`

	OTLPEndpoint string `env:"PERSYS_GATEWAY_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT,OTEL_EXPORTER_JAEGER_ENDPOINT" yaml:"telemetry.otlp_endpoint" usage:"receiver of traces (OTLP over HTTP), host:port or URL; empty = no traces"`
	OTLPInsecure bool   `env:"OTEL_EXPORTER_OTLP_INSECURE" yaml:"telemetry.otlp_insecure" default:"true" usage:"plain HTTP for an OTLP endpoint without a scheme"`

	LogLevel  string `env:"PERSYS_LOG_LEVEL,LOG_LEVEL" flag:"log-level" yaml:"log.level" oneof:"debug,info,warn,error" default:"info" usage:"lowest level that is logged"`
	LogFormat string `env:"LOG_FORMAT" flag:"log-format" yaml:"log_format" oneof:"text,json" default:"text" usage:"text or json"`

	Vault   vaultSettings
	Ignored ignored // settings that are accepted and have no effect
}

// ignored holds the settings of legacy v1 gateways that have no effect here.
type ignored struct {
	TLSEnabled  bool   `yaml:"tls.enabled" default:"true" usage:"ignored: only insecure turns TLS off"`
	MongoURI    string `env:"PERSYS_GATEWAY_MONGO_URI" yaml:"database.mongo_uri" secret:"true" usage:"ignored: no database is needed"`
	DBName      string `env:"PERSYS_GATEWAY_DB_NAME" yaml:"database.name" usage:"ignored"`
	Collections string `yaml:"database.collections" kind:"yaml" usage:"ignored"`
	GRPCAddr    string `yaml:"app.grpc_addr" usage:"ignored"`
	Storage     string `yaml:"app.storage" kind:"yaml" usage:"ignored"`
	Metadata    string `yaml:"app.metadata" kind:"yaml" usage:"ignored"`
	Redirect    string `yaml:"app.oauth_redirect_url" usage:"ignored"`
	HealthPath  string `yaml:"scheduler.health_path" usage:"ignored"`
	Interval    string `yaml:"scheduler.discovery_interval" usage:"ignored: addresses are looked up again after their TTL"`
	Map         string `yaml:"scheduler.repository_cluster_map" kind:"yaml" usage:"ignored: the receiver of webhooks chooses the cluster"`
	WebhookURL  string `yaml:"github.webhook_url" usage:"ignored"`
	GitHubAuth  string `yaml:"github.auth" kind:"yaml" usage:"ignored"`
	GitHubID    string `env:"PERSYS_GATEWAY_GITHUB_CLIENT_ID" usage:"ignored"`
	GitHubKey   string `env:"PERSYS_GATEWAY_GITHUB_CLIENT_SECRET" secret:"true" usage:"ignored"`
	Forgery     string `env:"PERSYS_GATEWAY_FORGERY_GRPC_ADDR" yaml:"forgery.grpc_addr" usage:"ignored"`
	ForgeryName string `env:"PERSYS_GATEWAY_FORGERY_GRPC_SERVER_NAME" yaml:"forgery.grpc_server_name" usage:"ignored"`
	Loki        string `yaml:"log.loki_endpoint" usage:"ignored"`
}

// publicTLS reports whether the public listener uses TLS. On the listener's default port the contract
// (contract/gateway-rest.md) requires plain HTTP.
func (c *Config) publicTLS() bool {
	switch c.PublicTLS {
	case "true":
		return true
	case "false":
		return false
	}
	_, port, err := net.SplitHostPort(c.PublicAddr)
	return !c.Insecure && (err != nil || port != "8585")
}

// clusterFile is the content of the YAML file that lists the gateway's clusters.
type clusterFile struct {
	Scheduler struct {
		Default  string            `yaml:"default_cluster_id"`
		Map      map[string]string `yaml:"repository_cluster_map"`
		Clusters []clusterEntry    `yaml:"clusters"`
	} `yaml:"scheduler"`
}

type clusterEntry struct {
	ID         string `yaml:"id"`
	Name       string `yaml:"name"`
	Strategy   string `yaml:"routing_strategy"`
	Discovery  string `yaml:"discovery"`
	Schedulers []struct {
		ID      string `yaml:"id"`
		Address string `yaml:"address"`
		Leader  bool   `yaml:"is_leader"`
	} `yaml:"schedulers"`
}

const maxClusterFile = 1 << 20

// complete fills in the defaults that depend on other settings.
func (c *Config) complete() error {
	host := ""
	if c.Insecure {
		host = "127.0.0.1"
	}
	c.HTTPAddr = cmp.Or(c.HTTPAddr, host+":8551")
	c.PublicAddr = cmp.Or(c.PublicAddr, host+":8585")
	return nil
}

// limits returns the limits of each listener. A quarter of the connections may come from one /24 or /64 network, so that
// nobody with many addresses in one network takes all.
func (c *Config) limits() limits.Limits {
	out := limits.Limits{Calls: c.LimitCalls, Concurrent: c.LimitConcurrent, Connections: c.LimitConnections, PerHost: c.LimitPerHost}
	if c.LimitConnections > 0 {
		out.PerNetwork = max(1, c.LimitConnections/4)
	}
	return out
}

// clusters returns the clusters that this gateway serves and the id of the default cluster. They come from the first of
// these sources that names clusters: the cluster file, the main file, the discovery domain, the scheduler addresses. A
// default cluster that the environment sets must be one of these clusters. The file of a legacy v1 gateway may name a
// default cluster that does not exist; then first is "" and gateway.New chooses the default.
func (c *Config) clusters(log *slog.Logger) (all []gateway.Cluster, first string, err error) {
	all, first, err = c.listed()
	if err != nil || c.DefaultCluster != "" {
		return all, c.DefaultCluster, err
	}
	if first != "" && len(all) > 0 && !slices.ContainsFunc(all, func(g gateway.Cluster) bool { return g.ID == first }) {
		log.Warn("scheduler.default_cluster_id does not name a configured cluster; the first configured cluster is the default", "cluster", first)
		first = ""
	}
	return all, first, nil
}

// listed returns the clusters from the first source that names clusters (see clusters), and the id of the
// default cluster if a file names one.
func (c *Config) listed() (all []gateway.Cluster, first string, err error) {
	var entries []clusterEntry
	if err := strict([]byte(c.Clusters), &entries); err != nil {
		return nil, "", fmt.Errorf("scheduler.clusters: %w", err)
	}
	file, err := readClusterFile(c.ClusterFile)
	if err != nil {
		return nil, "", err
	}
	if len(file.Scheduler.Clusters) > 0 {
		entries = file.Scheduler.Clusters
	}
	first = cmp.Or(file.Scheduler.Default, c.FileDefault)
	for _, e := range entries {
		g := gateway.Cluster{ID: e.ID, Name: e.Name, Strategy: e.Strategy, Discovery: e.Discovery}
		for _, s := range e.Schedulers {
			g.Schedulers = append(g.Schedulers, gateway.Scheduler{ID: s.ID, Address: s.Address, Leader: s.Leader})
		}
		all = append(all, g)
	}
	if len(all) > 0 {
		return all, first, nil
	}
	if c.DiscoveryDomain != "" {
		return []gateway.Cluster{{ID: "cluster-discovered", Discovery: c.byDNS()}}, first, nil
	}
	addrs := c.Schedulers
	if len(addrs) == 0 && c.Discovery == "" && c.Insecure {
		addrs = []string{"127.0.0.1:8085"}
	}
	if len(addrs) == 0 && c.Discovery == "" {
		return nil, first, nil // no cluster is configured: gateway.New returns an error later
	}
	g := gateway.Cluster{ID: "default", Discovery: c.Discovery}
	for _, a := range addrs {
		g.Schedulers = append(g.Schedulers, gateway.Scheduler{ID: a, Address: a})
	}
	return []gateway.Cluster{g}, first, nil
}

// byDNS returns the schedulers of the discovery domain from its SRV records. If there are no SRV records,
// it looks up the same host names as legacy v1 gateways, in the same order (contract/gateway-rest.md).
func (c *Config) byDNS() string {
	service := strings.TrimPrefix(c.DiscoveryService, "_")
	hosts := []string{service + "." + c.DiscoveryDomain}
	for _, name := range []string{dial.DefaultService + "." + c.DiscoveryDomain, service, dial.DefaultService, dial.DefaultService + ".local"} {
		if !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
	}
	name := "srv://" + c.DiscoveryDomain + "?service=" + service + "&hosts=" + strings.Join(hosts, ",")
	if c.DNSAddr != "" {
		name += "&dns=" + c.DNSAddr
	}
	return name
}

func readClusterFile(path string) (f clusterFile, err error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("PERSYS_GATEWAY_CLUSTER_CONFIG: %w", err)
	}
	if st.Size() > maxClusterFile {
		return f, fmt.Errorf("PERSYS_GATEWAY_CLUSTER_CONFIG %q: %d bytes, at most %d", path, st.Size(), maxClusterFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return f, fmt.Errorf("PERSYS_GATEWAY_CLUSTER_CONFIG: %w", err)
	}
	if err := strict(data, &f); err != nil {
		return f, fmt.Errorf("PERSYS_GATEWAY_CLUSTER_CONFIG %q: %w", path, err)
	}
	return f, nil
}

// strict decodes YAML into a struct and returns an error for unknown keys. Data that contains only comments sets no
// field.
func strict(data []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(into); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
