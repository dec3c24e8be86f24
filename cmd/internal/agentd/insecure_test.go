package agentd

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/persys/compute/config"
)

// Without TLS an agent listens on the loopback address unless a setting names another address.
func TestInsecureBindsToLoopback(t *testing.T) {
	for _, tt := range []struct {
		insecure   bool
		told, want string
	}{{true, "", "127.0.0.1"}, {true, "192.0.2.7", "192.0.2.7"}, {false, "", "0.0.0.0"}} {
		c := Config{NodeID: "n", StatePath: "x", Insecure: tt.insecure, GRPCAddr: tt.told}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(c.GRPCAddr, tt.want) {
			t.Errorf("insecure %t, bind address %q: the agent binds to %q, want %q", tt.insecure, tt.told, c.GRPCAddr, tt.want)
		}
	}
}

// An agent without TLS logs a warning with its listen address. The test uses both settings that turn TLS off.
func TestPlaintextIsLogged(t *testing.T) {
	for _, tt := range []struct {
		name          string
		insecure, tls bool
		told          string // the address that the agent's warning must contain
		want          []string
	}{
		{name: "insecure", insecure: true, tls: true, want: []string{"-insecure", "bind=127.0.0.1"}},
		{name: "no TLS", want: []string{"PERSYS_TLS_ENABLED=false", "bind=0.0.0.0"}},
		{name: "no TLS, with another bind address", told: "127.0.0.2", want: []string{"PERSYS_TLS_ENABLED=false", "bind=127.0.0.2"}},
		{name: "with -insecure and without TLS there is one warning", insecure: true, want: []string{"-insecure"}},
		{name: "TLS", tls: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var cfg Config
			if err := config.Defaults(&cfg); err != nil {
				t.Fatal(err)
			}
			cfg.NodeID, cfg.StatePath, cfg.Standalone = "n", filepath.Join(t.TempDir(), "state.db"), true
			cfg.Insecure, cfg.TLSEnabled, cfg.GRPCAddr = tt.insecure, tt.tls, tt.told
			cfg.GRPCPort, cfg.MetricsPort, cfg.DockerHost, cfg.VM = 0, 0, "", false
			// The agent logs the listen address before it reads the certificate. This test has no certificate, so a
			// start without -insecure fails after it has logged this line.
			cfg.TLSCert = filepath.Join(t.TempDir(), "none.crt")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var out bytes.Buffer
			err := Run(ctx, cfg, "test", slog.New(slog.NewTextHandler(&out, nil)))
			if !tt.insecure && err == nil {
				t.Error("the agent runs without a certificate")
			}
			warnings := strings.Count(out.String(), "plaintext")
			if warnings != min(len(tt.want), 1) {
				t.Errorf("the agent logged %d warnings:\n%s", warnings, out.String())
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the log lacks %q:\n%s", want, out.String())
				}
			}
		})
	}
}
