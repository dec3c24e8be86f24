// Package gatewayd builds a gateway from settings: TLS, the connection to the schedulers and the two
// listeners. Main runs one; `persys dev` runs one beside its schedulers. Package gateway is the part
// that can be embedded: an http.Handler.
package gatewayd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/persys/compute/gateway"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/rpc/limits"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/telemetry"
)

// Time and size limits of one HTTP connection. Calls have their own deadlines; streams have none.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = time.Minute // time limit for writing an answer, added to the deadline of the call
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	graceful      = 5 * time.Second
)

// Server is a gateway with open ports.
type Server struct {
	gw      *gateway.Gateway
	api     *http.Server
	public  *http.Server
	apiLis  net.Listener
	pubLis  net.Listener // public listener; nil if there is none
	log     *slog.Logger
	cleanup []func()
	keep    []func(context.Context) // loops that renew the certificate, the list of revocations and the keys of the token issuer
}

// Start opens the listeners of a gateway. Errors name the invalid setting. The caller must call Run next.
func Start(ctx context.Context, cfg Config, version string, log *slog.Logger) (_ *Server, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Server{log: log}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	fromVault, err := cfg.vault(ctx, log)
	if err != nil {
		return nil, err
	}
	keeps := false
	if fromVault != nil {
		s.keep = append(s.keep, fromVault.Run)
	} else if keeps, err = cfg.identity(ctx, log); err != nil {
		return nil, err
	}
	mapping, err := pki.PeerMapping(cfg.TLSLegacyNames, cfg.TLSPeers)
	if err != nil {
		return nil, err
	}
	var files *pki.Files
	if cfg.Insecure {
		log.Warn("running with -insecure: plaintext, and every caller may do everything", "bind", cfg.HTTPAddr)
	} else if files, err = pki.LoadFiles(pki.FilesConfig{
		CA: cfg.TLSCA, Cert: cfg.TLSCert, Key: cfg.TLSKey, Mapping: mapping, Log: log,
		Settings: pki.Settings{CA: "PERSYS_GATEWAY_TLS_CA_PATH", Cert: "PERSYS_GATEWAY_TLS_CERT_PATH", Key: "PERSYS_GATEWAY_TLS_KEY_PATH"},
	}); err != nil {
		return nil, err
	}
	clusters, first, err := cfg.clusters(log)
	if err != nil {
		return nil, err
	}
	if files != nil {
		keeper, err := s.keeper(ctx, &cfg, keeps, files, clusters)
		if err != nil {
			return nil, err
		}
		if keeper != nil {
			s.keep = append(s.keep, keeper.Run)
		}
	}
	traces, err := telemetry.StartTraces(ctx, telemetry.TraceConfig{
		Endpoint: cfg.OTLPEndpoint, Insecure: cfg.OTLPInsecure, Service: "persys-gateway", Version: version, Log: log,
	})
	if err != nil {
		return nil, err
	}
	s.cleanup = append(s.cleanup, func() {
		flush, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := traces.Close(flush); err != nil {
			log.Debug("the last traces were not sent", "err", err)
		}
	})
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	schema, err := spec.Schema()
	if err != nil {
		return nil, err
	}
	opt := gateway.Options{
		Clusters: clusters, Default: first, TLS: files, ProbeInterval: cfg.ProbeInterval, CallTimeout: cfg.CallTimeout,
		ProxyScheduler: cfg.ProxyScheduler, ProxyEnabled: cfg.ProxyEnabled, Schema: schema, Limits: cfg.limits(), Registry: reg, Log: log,
		Dial: func(ctx context.Context, o dial.Options) (*dial.Conn, error) {
			o.TLS, o.Insecure, o.Log, o.CallTimeout = files, cfg.Insecure, log, cfg.CallTimeout
			o.UserAgent = "persys-gateway/" + version
			o.Extra = append(o.Extra, traces.DialOptions()...)
			return dial.Dial(ctx, o)
		},
		Webhook: gateway.Webhook{
			Path: cfg.WebhookPath, Secret: cfg.WebhookSecret, Secrets: cfg.WebhookSecrets, ReplayTTL: cfg.ReplayTTL,
			Forward: cfg.WebhookForward, Retries: cfg.ForwardRetries, Backoff: cfg.ForwardBackoff, File: cfg.deliveryFile(log),
		},
	}
	if cfg.OIDCIssuer != "" {
		opt.Tokens, err = gateway.NewTokens(ctx, gateway.TokenOptions{
			Issuer: cfg.OIDCIssuer, Audience: cfg.OIDCAudience, Claim: cfg.OIDCClaim, Roles: cfg.OIDCRoles,
			Namespaces: cfg.OIDCNamespaces, Log: log,
		})
		if err != nil {
			return nil, err
		}
		s.keep = append(s.keep, opt.Tokens.Run)
	}
	if s.gw, err = gateway.New(ctx, opt); err != nil {
		return nil, err
	}
	s.cleanup = append(s.cleanup, s.gw.Close)
	s.api = server(traces.Handler("api", s.gw.Handler()), cfg.CallTimeout, log)
	s.public = server(traces.Handler("public", s.gw.Public()), cfg.CallTimeout, log)
	if s.apiLis, err = s.listen(ctx, "PERSYS_GATEWAY_HTTP_ADDR", cfg.HTTPAddr); err != nil {
		return nil, err
	}
	s.apiLis = limits.Listen(s.apiLis, cfg.limits(), nil)
	protos := []string{"h2", "http/1.1"}
	if files != nil {
		s.apiLis = tls.NewListener(s.apiLis, files.ServerConfig(pki.ServerOptions{NextProtos: protos, Optional: !cfg.RequireClientCert}))
	}
	if cfg.PublicAddr != "none" {
		if s.pubLis, err = s.listen(ctx, "PERSYS_GATEWAY_PUBLIC_ADDR", cfg.PublicAddr); err != nil {
			return nil, err
		}
		s.pubLis = limits.Listen(s.pubLis, cfg.limits(), nil)
		if cfg.publicTLS() {
			if files == nil {
				return nil, errors.New("PERSYS_GATEWAY_PUBLIC_TLS is true, but -insecure loads no certificates")
			}
			s.pubLis = tls.NewListener(s.pubLis, files.ServerConfig(pki.ServerOptions{NextProtos: protos, Optional: true}))
		}
	}
	return s, nil
}

// server makes an HTTP server. Its write timeout is longer than a call's deadline, so that the server does not close
// a connection before the call's answer is sent.
func server(h http.Handler, call time.Duration, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout + call,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func (s *Server) listen(ctx context.Context, setting, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", setting, addr, err)
	}
	s.cleanup = append(s.cleanup, func() { _ = l.Close() }) // http.Server.Close closes the listener too
	return l, nil
}

func (s *Server) close() {
	for i := len(s.cleanup) - 1; i >= 0; i-- {
		s.cleanup[i]()
	}
	s.cleanup = nil
}

// Addr is the address of the API listener.
func (s *Server) Addr() string { return s.apiLis.Addr().String() }

// PublicAddr is the address of the public listener; "" if there is none.
func (s *Server) PublicAddr() string {
	if s.pubLis == nil {
		return ""
	}
	return s.pubLis.Addr().String()
}

// Run serves until ctx ends. Then running calls have a few seconds to end.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running := 2 + len(s.keep)
	ended := make(chan error, running+1)
	for _, keep := range s.keep {
		go func() { keep(ctx); ended <- nil }()
	}
	go func() { s.gw.Run(ctx); ended <- nil }()
	go func() { ended <- s.api.Serve(s.apiLis) }()
	if s.pubLis != nil {
		running++
		go func() { ended <- s.public.Serve(s.pubLis) }()
	}
	s.log.Info("gateway is up", "api", s.Addr(), "public", s.PublicAddr())
	var err error
	select {
	case err = <-ended:
		running--
	case <-ctx.Done():
	}
	stop()
	down, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
	defer cancel()
	for _, srv := range []*http.Server{s.api, s.public} {
		if srv.Shutdown(down) != nil {
			_ = srv.Close() // Close ends the streams, which do not end by themselves
		}
	}
	for ; running > 0; running-- {
		if e := <-ended; err == nil {
			err = e
		}
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
