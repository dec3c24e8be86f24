package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/config"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// settings configure the connection. The YAML keys and the environment variables without the prefix PERSYS_ have the
// names that the legacy v1 CLI uses (contract/gateway-rest.md).
type settings struct {
	Server     string `env:"PERSYS_SCHEDULER_ADDR,PERSYS_SERVER,GRPC_ENDPOINT" flag:"server" short:"s" yaml:"grpc_endpoint" default:"127.0.0.1:8085" usage:"schedulers: HOST[:PORT],… or srv://NAME[?dns=HOST:PORT]; or a gateway: http(s)://HOST[:PORT]"`
	Insecure   bool   `env:"PERSYS_INSECURE,PERSYS_SCHEDULER_INSECURE,GRPC_INSECURE" flag:"insecure" yaml:"grpc_insecure" usage:"connect in plain text, without TLS"`
	CA         string `env:"PERSYS_TLS_CA,CA_CERT_PATH" flag:"tls-ca" yaml:"ca_cert_path" usage:"CA certificate (default ~/.persys/ca.pem)"`
	Cert       string `env:"PERSYS_TLS_CERT,CERT_PATH" flag:"tls-cert" yaml:"cert_path" usage:"client certificate (default ~/.persys/persysctl.pem)"`
	Key        string `env:"PERSYS_TLS_KEY,KEY_PATH" flag:"tls-key" yaml:"key_path" usage:"private key of the client certificate (default ~/.persys/persysctl-key.pem)"`
	RPCTimeout int    `env:"PERSYS_RPC_TIMEOUT_SECONDS,RPC_TIMEOUT_SECONDS" flag:"rpc-timeout-seconds" yaml:"rpc_timeout_seconds" default:"20" min:"1" max:"600" usage:"time limit of one call, in seconds"`

	Token     string `env:"PERSYS_TOKEN" secret:"true" usage:"bearer token for a gateway"`
	TokenFile string `flag:"token-file" usage:"file with a bearer token for a gateway, read at every call"`
	Namespace string `env:"PERSYS_NAMESPACE" flag:"namespace" short:"n" usage:"namespace for workloads whose file names none, and for lists; * lists all"`
	ClusterID string `env:"PERSYS_GATEWAY_CLUSTER_ID" flag:"cluster-id" usage:"id of the cluster behind a gateway (default: the gateway's default)"`

	// Settings of the legacy v1 CLI, which connects to a gateway by default.
	APIEndpoint string `env:"API_ENDPOINT" yaml:"api_endpoint" usage:"address of a gateway; --server http(s)://… is the same"`
	Transport   string `env:"TRANSPORT" yaml:"transport" oneof:"http,grpc" usage:"kind of the server that the legacy v1 CLI calls: http uses the setting api_endpoint, grpc uses grpc_endpoint"`

	OTLPEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT" yaml:"otlp_endpoint" usage:"receiver of traces by OTLP over HTTP, host:port or URL; empty = no traces"`
	OTLPInsecure bool   `env:"OTEL_EXPORTER_OTLP_INSECURE" yaml:"otlp_insecure" default:"true" usage:"plain HTTP to an OTLP endpoint without a scheme"`

	Other otherKeys
}

// otherKeys are keys that a configuration file of the legacy v1 CLI may contain and that have no effect here, because
// persysctl reads certificates from files and never calls agents.
type otherKeys struct {
	GRPCTarget         string `yaml:"grpc_target"`
	Verbose            string `yaml:"verbose"`
	VaultEnabled       string `yaml:"vault_enabled"`
	VaultAddr          string `yaml:"vault_addr"`
	VaultAuthMethod    string `yaml:"vault_auth_method"`
	VaultToken         string `yaml:"vault_token" secret:"true"`
	VaultRoleID        string `yaml:"vault_approle_role_id"`
	VaultSecretID      string `yaml:"vault_approle_secret_id" secret:"true"`
	VaultPKIMount      string `yaml:"vault_pki_mount"`
	VaultPKIRole       string `yaml:"vault_pki_role"`
	VaultCertTTL       string `yaml:"vault_cert_ttl"`
	VaultServiceName   string `yaml:"vault_service_name"`
	VaultServiceDomain string `yaml:"vault_service_domain"`
	VaultRetryInterval string `yaml:"vault_retry_interval"`
	CFSSLAPIURL        string `yaml:"cfssl_api_url"`
	CommonName         string `yaml:"common_name"`
	Organization       string `yaml:"organization"`
	PrivateKey         string `yaml:"private_key" secret:"true"`
}

// load reads the settings. The caller must parse the flags before.
func (c *cli) load() error {
	sources := config.Sources{Environ: c.environ, ReadFile: c.readFile}
	path, must := c.configFile, c.configFile != ""
	if !must {
		if v, ok := c.environ("PERSYS_CONFIG"); ok && strings.TrimSpace(v) != "" {
			path, must = v, true
		} else if c.home != "" {
			path = filepath.Join(c.home, ".persys", "config.yaml")
		}
	}
	if path != "" {
		var err error
		if sources, err = sources.WithYAML(path, must); err != nil {
			return usagef("%v", err)
		}
	}
	if err := c.loader.Load(sources); err != nil {
		return usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	c.configUsed = sources.YAMLName
	return c.choose()
}

// unreachableAfter is how long a call tries again while no scheduler can be reached. It is short because a
// user waits for the answer.
const unreachableAfter = 2 * time.Second

// link is a connection to schedulers or to a gateway.
type link interface {
	grpc.ClientConnInterface
	io.Closer
}

func (c *cli) use(conn link) {
	c.conn = conn
	c.control = controlv1.NewAgentControlClient(conn)
	c.cluster = clusterv1.NewClusterClient(conn)
	c.trust = clusterv1.NewTrustClient(conn)
}

// connect prepares the connection to schedulers or a gateway. It sends nothing; the first call does.
func (c *cli) connect(ctx context.Context) error {
	if c.conn != nil {
		return nil
	}
	if err := c.load(); err != nil {
		return err
	}
	if contexts.Gateway(c.settings.Server) {
		return c.connectGateway(ctx)
	}
	if strings.HasPrefix(c.loader.Source("TokenFile"), "-") {
		return usagef("--token-file is for a gateway (--server http(s)://…); schedulers take certificates")
	}
	opt := dial.Options{Discovery: c.settings.Server, UserAgent: "persysctl/" + c.version, CallTimeout: c.timeout(), UnreachableAfter: unreachableAfter, Log: c.log()}
	if c.settings.Insecure {
		opt.Insecure = true
	} else {
		files, err := c.certificates(opt.Log)
		if err != nil {
			return err
		}
		opt.TLS, c.files = files, files
	}
	extra, err := c.startTrace(ctx, opt.Log)
	if err != nil {
		return usagef("%v", err)
	}
	opt.Extra = extra
	conn, err := dial.Dial(ctx, opt)
	if err != nil {
		return usagef("--server: %v", err)
	}
	c.direct = conn
	c.use(conn)
	c.keepIdentity(ctx)
	return nil
}

func (c *cli) certificates(log *slog.Logger) (*pki.Files, error) {
	cfg := pki.FilesConfig{
		CA: c.settings.CA, Cert: c.settings.Cert, Key: c.settings.Key, Log: log,
		Settings: pki.Settings{
			CA: "--tls-ca (PERSYS_TLS_CA)", Cert: "--tls-cert (PERSYS_TLS_CERT)", Key: "--tls-key (PERSYS_TLS_KEY)", Insecure: "--insecure",
		},
	}
	given := cfg.CA+cfg.Cert+cfg.Key != ""
	if p, ok := c.joined(); ok && !given {
		cfg.CA, cfg.Cert, cfg.Key, given = p.CA, p.Cert, p.Key, true
	}
	for _, p := range []struct {
		to   *string
		name string
	}{{&cfg.CA, "ca.pem"}, {&cfg.Cert, "persysctl.pem"}, {&cfg.Key, "persysctl-key.pem"}} {
		if *p.to == "" && c.home != "" {
			*p.to = filepath.Join(c.home, ".persys", p.name)
		}
	}
	if _, err := os.Stat(cfg.Cert); !given && errors.Is(err, fs.ErrNotExist) {
		return nil, failf(exitUsage, "persysctl --insecure …   if the scheduler runs with -insecure",
			"no TLS certificates: set --tls-ca, --tls-cert and --tls-key (PERSYS_TLS_CA, PERSYS_TLS_CERT, PERSYS_TLS_KEY), or --insecure")
	}
	files, err := pki.LoadFiles(cfg)
	if err != nil {
		return nil, usagef("%v", err)
	}
	if k := (pki.IdentityStore{Dir: filepath.Dir(cfg.Cert)}); k.Paths().Cert == cfg.Cert && k.Paths().Key == cfg.Key && files.Identity().Role == pki.RoleUser {
		c.identity = &k
	}
	if end := files.Leaf().NotAfter; c.identity != nil && c.now().After(end) {
		return nil, expired(files.Identity(), *c.identity, end)
	}
	return files, nil
}

// expired is the error for a user whose certificate has expired.
func expired(id pki.Identity, k pki.IdentityStore, end time.Time) *failure {
	return failf(exitFailed, "persysctl join TOKEN",
		"the certificate of %s/%s in %s expired at %s: ask an admin for a token (%s), and join with it",
		id.Role, id.ID, k.Dir, end.UTC().Format(time.RFC3339), id.TokenCommand())
}

func (c *cli) log() *slog.Logger {
	if !c.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *cli) close() {
	defer c.endTrace()
	if c.stop != nil {
		c.stop()
	}
	if c.conn != nil {
		// all calls have ended, so an error of Close is harmless
		_ = c.conn.Close()
		c.conn = nil
	}
}

// timeout is the time limit of one call.
func (c *cli) timeout() time.Duration {
	if c.settings.RPCTimeout <= 0 {
		return 20 * time.Second
	}
	return time.Duration(c.settings.RPCTimeout) * time.Second
}

// call makes one unary call with the deadline that the user has set, or the default deadline.
func call[Req, Resp any](ctx context.Context, c *cli, do func(context.Context, Req, ...callOption) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	return do(ctx, req)
}

// read makes a call that changes nothing. Its error is a *failure.
func read[Req, Resp any](ctx context.Context, c *cli, do func(context.Context, Req, ...callOption) (Resp, error), req Req) (Resp, error) {
	resp, err := call(ctx, c, do, req)
	if err != nil {
		return resp, c.explain(err, false)
	}
	if s, ok := any(resp).(interface {
		GetStale() bool
		GetAgeMs() int64
	}); ok && s.GetStale() {
		c.noteStale(time.Duration(s.GetAgeMs()) * time.Millisecond)
	}
	return resp, nil
}

// change makes a call that changes something. Its error is a *failure. The connection adds a request id to
// the call and may repeat the call with that id, so the change happens at most once. Calls with dial.Once are
// not repeated, because the scheduler stores no answer under their request id.
func change[Req, Resp any](ctx context.Context, c *cli, do func(context.Context, Req, ...callOption) (Resp, error), req Req) (Resp, error) {
	resp, err := call(ctx, c, do, req)
	if err != nil {
		return resp, c.explain(err, true)
	}
	return resp, nil
}

// noteStale prints a note, once per command, that an answer may be outdated by the duration age, because a
// replica gave it without the leader's confirmation.
func (c *cli) noteStale(age time.Duration) {
	if c.staleNoted {
		return
	}
	c.staleNoted = true
	text := "stale, " + screen.Span(age) + " old"
	if !c.stale {
		text += ": there is no leader to confirm it"
	}
	fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, text))
}

// level returns the read level of calls: stale if the user has given --stale, otherwise unspecified, so that the
// scheduler decides.
func (c *cli) level() controlv1.ReadLevel {
	if c.stale {
		return controlv1.ReadLevel_READ_LEVEL_STALE
	}
	return controlv1.ReadLevel_READ_LEVEL_UNSPECIFIED
}
