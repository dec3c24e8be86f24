package persysctl

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/gofrs/flock"
	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/rpc/dial"
)

// login holds the data that `persysctl login` stores for one gateway: the ID token, which is the bearer token
// of the user's calls, and the data to renew it.
type login struct {
	Issuer       string    `json:"issuer"`
	ClientID     string    `json:"client_id"`
	IDToken      string    `json:"id_token"`
	RefreshToken string    `json:"refresh_token,omitempty"`
	Expiry       time.Time `json:"expiry"`
}

const (
	loginLimit   = 15 * time.Minute // time for a person to confirm a login
	issuerLimit  = 20 * time.Second // time limit of one request to the issuer or the gateway
	renewBefore  = 30 * time.Second // a token is renewed this long before it ends
	lockRetry    = 20 * time.Millisecond
	maxLoginSize = 64 << 10 // bytes
)

func (c *cli) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use: "login", Short: "Log in at the OIDC provider of a gateway, with a browser on any machine", Args: args(0, 0),
		Long: `Log in at the OIDC provider of a gateway (the device flow of RFC 8628). The command prints an
address and a code. Open the address in a browser on any machine, and confirm the code. The
token is stored for this gateway, readable by you only, and renewed as long as the provider
allows. persysctl logout deletes it.`,
		Example: "  persysctl --server https://gateway.example:8551 login",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.loadGateway(); err != nil {
				return err
			}
			return c.login(cmd.Context())
		},
	}
}

func (c *cli) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Delete the token that persysctl login stored for a gateway", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.loadGateway(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), issuerLimit)
			defer cancel()
			unlock, err := c.lockLogins(ctx)
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			defer unlock()
			switch err := os.Remove(c.loginPath()); {
			case errors.Is(err, fs.ErrNotExist):
				c.empty("You are not logged in at "+c.settings.Server+".", "")
				return nil
			case err != nil:
				return failf(exitFailed, "", "%v", err)
			}
			c.say(c.settings.Server, screen.Good, "logged out")
			return nil
		},
	}
}

func (c *cli) loadGateway() error {
	if err := c.load(); err != nil {
		return err
	}
	if !contexts.Gateway(c.settings.Server) {
		return failf(exitUsage, "persysctl --server https://GATEWAY:8551 login", "--server %s is a scheduler; only gateways take the tokens of a login", c.settings.Server)
	}
	return nil
}

// loginPath returns the path of the file for the login at the gateway in use, in the folder of contexts.yaml;
// "" without a home folder.
func (c *cli) loginPath() string {
	at := contexts.Path(c.environ, c.home)
	if at == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.TrimRight(c.settings.Server, "/")))
	return filepath.Join(filepath.Dir(at), "logins", hex.EncodeToString(sum[:8])+".json")
}

// storedLogin returns the login at the gateway in use; nil if there is none.
func (c *cli) storedLogin() (*login, error) {
	path := c.loginPath()
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	l := &login{}
	if err == nil {
		err = json.Unmarshal(data, l)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; log in again with persysctl login", path, err)
	}
	return l, nil
}

func (c *cli) saveLogin(l *login) error {
	path := c.loginPath()
	if path == "" {
		return errors.New("there is no home folder for the login; set HOME or XDG_CONFIG_HOME")
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return contexts.Write(path, data)
}

// lockLogins waits until no other process renews, stores or deletes a login of this user. An OIDC provider accepts a
// refresh token only once. If two processes used the same refresh token, the provider would end the login.
func (c *cli) lockLogins(ctx context.Context) (unlock func(), err error) {
	at := contexts.Path(c.environ, c.home)
	if at == "" {
		return func() {}, nil // without a home folder there is no stored login
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(filepath.Dir(at), "logins.lock"), flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("wait for another persysctl that uses %s: %w", lock.Path(), err)
	}
	return func() { _ = lock.Close() }, nil
}

func (c *cli) login(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()
	l, err := c.askGateway(ctx)
	if err != nil {
		return err
	}
	provider, config, err := l.provider(ctx)
	if err != nil {
		return failf(exitUnavailable, "", "the OIDC provider: %v", err)
	}
	if config.Endpoint.DeviceAuthURL == "" {
		return failf(exitFailed, "persysctl --token-file FILE auth whoami", "the OIDC provider %s offers no device flow; get a token in another way", l.Issuer)
	}
	code, err := config.DeviceAuth(ctx)
	if err != nil {
		return failf(exitFailed, "", "the OIDC provider gave no code: %v", err)
	}
	fmt.Fprintf(c.err, "Open %s\nand confirm the code %s\n", screen.Clean(code.VerificationURI), c.errPaint.Paint(screen.Bold, screen.Clean(code.UserCode)))
	if code.VerificationURIComplete != "" {
		fmt.Fprintf(c.err, "or open %s\n", screen.Clean(code.VerificationURIComplete))
	}
	token, err := config.DeviceAccessToken(ctx, code)
	if err != nil {
		return failf(exitFailed, "persysctl login", "the login was not confirmed: %v", err)
	}
	if err := l.take(ctx, provider, token); err != nil {
		return failf(exitFailed, "persysctl login", "%v", err)
	}
	unlock, err := c.lockLogins(ctx)
	if err == nil {
		defer unlock()
		err = c.saveLogin(l)
	}
	if err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	c.say(c.settings.Server, screen.Good, "logged in")
	c.empty("", "persysctl auth whoami")
	return nil
}

// askGateway asks the gateway for its OIDC provider.
func (c *cli) askGateway(ctx context.Context) (*login, error) {
	ctx, cancel := context.WithTimeout(ctx, issuerLimit)
	defer cancel()
	u, err := url.Parse(c.settings.Server)
	if err != nil || u.Hostname() == "" {
		return nil, usagef("--server %q: must be http(s)://HOST[:PORT]", c.settings.Server)
	}
	var cfg *tls.Config
	if u.Scheme == "https" {
		if cfg, err = c.gatewayTLS(u.Hostname(), true); err != nil {
			return nil, err
		}
	} else if !c.settings.Insecure && !dial.Loopback(u.Hostname()) {
		return nil, usagef("--server %s: a login needs https://, because the answer of the gateway names the provider", c.settings.Server)
	}
	transport := &http.Transport{TLSClientConfig: cfg}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("auth/oidc").String(), nil)
	if err != nil {
		return nil, usagef("--server: %v", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, failf(exitUnavailable, "", "the gateway: %v", err)
	}
	defer resp.Body.Close()
	l := &login{}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxLoginSize)).Decode(l)
	if resp.StatusCode != http.StatusOK || err != nil || l.Issuer == "" || l.ClientID == "" {
		return nil, failf(exitFailed, "persysctl join TOKEN", "the gateway %s names no OIDC provider (auth.oidc.issuer): use a certificate, or a token file", c.settings.Server)
	}
	if !dial.SecureIssuer(l.Issuer) {
		return nil, failf(exitFailed, "", "the gateway names the OIDC provider %q, which is not an https:// address", l.Issuer)
	}
	return l, nil
}

// provider reads the configuration of the issuer.
func (l *login) provider(ctx context.Context) (*oidc.Provider, *oauth2.Config, error) {
	p, err := oidc.NewProvider(ctx, l.Issuer)
	if err != nil {
		return nil, nil, err
	}
	var offers struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err := p.Claims(&offers); err != nil {
		return nil, nil, err
	}
	config := &oauth2.Config{ClientID: l.ClientID, Endpoint: p.Endpoint(), Scopes: []string{oidc.ScopeOpenID}}
	for _, s := range []string{oidc.ScopeOfflineAccess, "groups"} {
		if slices.Contains(offers.Scopes, s) {
			config.Scopes = append(config.Scopes, s)
		}
	}
	return p, config, nil
}

// take verifies the ID token in an answer of the issuer, and stores the token and its expiry in l.
func (l *login) take(ctx context.Context, p *oidc.Provider, t *oauth2.Token) error {
	raw, _ := t.Extra("id_token").(string)
	if raw == "" {
		return errors.New("the OIDC provider gave no ID token")
	}
	id, err := p.VerifierContext(ctx, &oidc.Config{ClientID: l.ClientID}).Verify(ctx, raw)
	if err != nil {
		return fmt.Errorf("the ID token of the OIDC provider: %w", err)
	}
	l.IDToken, l.Expiry = raw, id.Expiry
	if t.RefreshToken != "" {
		l.RefreshToken = t.RefreshToken
	}
	return nil
}

// loginToken returns the token of a login, renewed if it is about to end.
func (c *cli) loginToken() (string, error) {
	c.loginMu.Lock()
	defer c.loginMu.Unlock()
	if l, err := c.storedLogin(); err == nil && l != nil && time.Until(l.Expiry) > renewBefore {
		return l.IDToken, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), issuerLimit)
	defer cancel()
	unlock, err := c.lockLogins(ctx)
	if err != nil {
		return "", fmt.Errorf("the login could not be renewed: %w", err)
	}
	defer unlock()
	// Another process may have renewed or deleted the login while this process waited for the lock.
	l, err := c.storedLogin()
	switch {
	case err != nil:
		return "", err
	case l == nil:
		return "", errors.New("you have logged out meanwhile: persysctl login")
	case time.Until(l.Expiry) > renewBefore:
		return l.IDToken, nil
	case l.RefreshToken == "":
		return "", fmt.Errorf("the login at %s ended at %s: persysctl login", c.settings.Server, l.Expiry.UTC().Format(time.RFC3339))
	}
	p, config, err := l.provider(ctx)
	if err != nil {
		return "", fmt.Errorf("the login could not be renewed: %w", err)
	}
	t, err := config.TokenSource(ctx, &oauth2.Token{RefreshToken: l.RefreshToken}).Token()
	if err == nil {
		err = l.take(ctx, p, t)
	}
	if err != nil {
		return "", fmt.Errorf("the login could not be renewed, log in again with persysctl login: %w", err)
	}
	return l.IDToken, c.saveLogin(l)
}
