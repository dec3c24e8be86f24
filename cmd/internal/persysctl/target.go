package persysctl

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/restconn"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// choose selects the cluster to which the command connects, after the settings are loaded. The first of these
// that is set decides:
//
//   - --context
//   - an address from a flag or the environment
//   - PERSYS_CONTEXT, then the current context
//   - the configuration file of the legacy v1 CLI
//   - the default address
//
// The certificates and the token of a context are used only for the address of the context.
func (c *cli) choose() error {
	s := &c.settings
	given := func(field string) bool { return c.loader.Set(field) && !c.fromFile(field) }
	// The legacy v1 CLI prefers API_ENDPOINT to GRPC_ENDPOINT unless TRANSPORT is grpc.
	own := given("Server") && !(strings.HasPrefix(c.loader.Source("Server"), "GRPC_ENDPOINT") && given("APIEndpoint") && s.Transport != "grpc")
	name := c.contextName
	switch {
	case name != "" && strings.HasPrefix(c.loader.Source("Server"), "--"):
		return usagef("--context %s and --server %s both name a cluster: give one of them", name, s.Server)
	case name != "":
		return c.useContext(name, "--context")
	case own:
		return nil
	case given("APIEndpoint") && s.Transport != "grpc":
		s.Server = s.APIEndpoint
		return c.checkEndpoint()
	}
	if v, ok := c.environ("PERSYS_CONTEXT"); ok && strings.TrimSpace(v) != "" {
		return c.useContext(strings.TrimSpace(v), "PERSYS_CONTEXT")
	}
	file, err := contexts.Load(contexts.Path(c.environ, c.home))
	if err != nil {
		return usagef("%v", err)
	}
	switch {
	case file.Current != "":
		return c.useContext(file.Current, "the current context")
	case s.Transport == "http" && s.APIEndpoint == "":
		return usagef("transport http needs api_endpoint (API_ENDPOINT), the address of a gateway")
	case s.Transport != "grpc" && s.APIEndpoint != "":
		s.Server = s.APIEndpoint
		return c.checkEndpoint()
	}
	return nil
}

func (c *cli) checkEndpoint() error {
	if !contexts.Gateway(c.settings.Server) {
		return usagef("%s: must begin with http:// or https://, got %q", c.loader.Source("APIEndpoint"), c.settings.Server)
	}
	return nil
}

// fromFile reports whether a setting comes from the configuration file.
func (c *cli) fromFile(field string) bool {
	return c.configUsed != "" && strings.HasPrefix(c.loader.Source(field), c.configUsed+":")
}

// useContext copies the fields of a context to the settings. Flags and environment variables override all fields except
// the address. by is the setting that selected the context.
func (c *cli) useContext(name, by string) error {
	file, err := contexts.Load(contexts.Path(c.environ, c.home))
	if err != nil {
		return usagef("%v", err)
	}
	ctx, ok := file.Get(name)
	if !ok {
		return failf(exitUsage, "persysctl context list", "%s: context %q does not exist", by, name)
	}
	s := &c.settings
	lay := func(field string, to *string, v string) {
		if v != "" && (!c.loader.Set(field) || c.fromFile(field)) {
			*to = v
		}
	}
	s.Server, c.context = ctx.Server, name
	if !c.loader.Set("Insecure") || c.fromFile("Insecure") {
		s.Insecure = ctx.Insecure
	}
	lay("CA", &s.CA, ctx.CA)
	lay("Cert", &s.Cert, ctx.Cert)
	lay("Key", &s.Key, ctx.Key)
	lay("TokenFile", &s.TokenFile, ctx.TokenFile)
	lay("ClusterID", &s.ClusterID, ctx.ClusterID)
	lay("Namespace", &s.Namespace, ctx.Namespace)
	return nil
}

// token returns the bearer token for a gateway. It reads the file at each call, because tokens are
// short-lived.
func (c *cli) token() (string, error) {
	switch {
	case c.settings.Token != "":
		return c.settings.Token, nil
	case c.settings.TokenFile == "":
		return c.loginToken()
	}
	data, err := c.readFile(c.settings.TokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("%s is empty", c.settings.TokenFile)
	}
	return token, nil
}

// connectGateway prepares a connection that turns each call into a request to a gateway.
func (c *cli) connectGateway(ctx context.Context) error {
	u, err := url.Parse(c.settings.Server)
	if err != nil || u.Hostname() == "" {
		return usagef("--server %q: must be http(s)://HOST[:PORT]", c.settings.Server)
	}
	withToken := c.settings.Token != "" || c.settings.TokenFile != ""
	// If a flag or the environment names a certificate for this call, the certificate is used instead of a stored
	// login.
	certificate := c.settings.Cert != "" && c.loader.Set("Cert") && !c.fromFile("Cert")
	if !withToken && !certificate {
		l, err := c.storedLogin()
		if err != nil {
			return usagef("%v", err)
		}
		withToken = l != nil
	}
	opt := restconn.Options{
		URL: c.settings.Server, Cluster: c.settings.ClusterID, UserAgent: "persysctl/" + c.version, CallTimeout: c.timeout(),
	}
	if withToken {
		opt.Token = c.token
	}
	switch {
	case u.Scheme == "http" && withToken && !c.settings.Insecure && !dial.Loopback(u.Hostname()):
		return usagef("--server %s: a bearer token is not sent in plain text; use https://, or --insecure to send it anyway", c.settings.Server)
	case u.Scheme == "https":
		if opt.TLS, err = c.gatewayTLS(u.Hostname(), withToken); err != nil {
			return err
		}
	}
	if opt.Wrap, err = c.traceHTTP(ctx); err != nil {
		return usagef("%v", err)
	}
	conn, err := restconn.New(opt)
	if err != nil {
		return usagef("--server: %v", err)
	}
	c.use(conn)
	c.keepIdentity(ctx)
	return nil
}

// gatewayTLS returns the TLS configuration for a gateway, with the user's certificate if there is one. If the user has
// a token (withToken), no client certificate is needed, and the gateway's certificate may come from a public CA.
func (c *cli) gatewayTLS(host string, withToken bool) (*tls.Config, error) {
	files, err := c.certificates(c.log())
	var f *failure
	switch {
	case err == nil:
		c.files = files
		cfg := files.ClientConfig(pki.Peer{Hosts: []string{host}, Role: pki.RoleGateway})
		if withToken && c.settings.CA+c.settings.Cert+c.settings.Key == "" {
			orPublic(cfg, host, c.public) // the CA in ~/.persys may belong to another cluster
		}
		return cfg, nil
	case !withToken && errors.As(err, &f) && c.settings.Cert == "":
		f.text = "no certificate and no token for the gateway: set --tls-ca, --tls-cert and --tls-key, or PERSYS_TOKEN (PERSYS_TOKEN_FILE), or log in with persysctl login"
		f.hint = ""
		return nil, f
	case !withToken, c.settings.Cert != "" || c.settings.Key != "":
		return nil, err
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.settings.CA != "" {
		pem, err := os.ReadFile(c.settings.CA)
		if err != nil {
			return nil, usagef("--tls-ca (PERSYS_TLS_CA): %v", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usagef("--tls-ca (PERSYS_TLS_CA): %s holds no certificate", c.settings.CA)
		}
	}
	return cfg, nil
}

// orPublic makes cfg also accept a certificate for the name host that one of the public CAs in roots has
// signed.
func orPublic(cfg *tls.Config, host string, roots *x509.CertPool) {
	own := cfg.VerifyConnection
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		err := own(state)
		if err == nil || len(state.PeerCertificates) == 0 {
			return err
		}
		o := x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			o.Intermediates.AddCert(c)
		}
		if _, public := state.PeerCertificates[0].Verify(o); public == nil {
			return nil
		}
		return err
	}
}

// traceHTTP does the same as startTrace for a connection to a gateway: it sends the trace span in the W3C header
// Traceparent.
func (c *cli) traceHTTP(ctx context.Context) (func(http.RoundTripper) http.RoundTripper, error) {
	if _, err := c.startTrace(ctx, c.log()); err != nil || c.trace.span == nil {
		return nil, err
	}
	span := c.trace.span.SpanContext()
	parent := fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Traceparent", parent)
			return next.RoundTrip(r)
		})
	}, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// exists returns an error if there is no file at path.
func exists(path string) error {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist", path)
	}
	return err
}

// connectionFrom returns the name of the setting that selected the cluster.
func (c *cli) connectionFrom() string {
	if c.context != "" {
		return "context " + c.context
	}
	if contexts.Gateway(c.settings.Server) && c.settings.Server == c.settings.APIEndpoint {
		return c.loader.Source("APIEndpoint")
	}
	return cmp.Or(c.loader.Source("Server"), "default")
}
