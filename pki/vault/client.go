package vault

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

// callFor is the timeout of one login to Vault together with the request that follows the login.
const callFor = 20 * time.Second

// Access is the address of Vault and the credentials with which this program logs in.
type Access struct {
	Addr             string
	Auth             string // method of the login: token or approle
	Token            string
	RoleID, SecretID string
	// Settings is the prefix of the names of these settings, for error messages; default PERSYS_VAULT_. With
	// another prefix the names of the AppRole settings lack APPROLE_, as the gateway's do (contract/env.md).
	Settings string
}

func (a Access) setting(name string) string {
	if a.Settings == "" {
		return "PERSYS_VAULT_" + name
	}
	return a.Settings + strings.TrimPrefix(name, "APPROLE_")
}

// Check returns an error if a setting is invalid. The error names the setting.
func (a Access) Check() error {
	u, err := url.Parse(a.Addr)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%s %q must be a URL such as https://vault.example.com:8200", a.setting("ADDR"), a.Addr)
	}
	switch a.Auth {
	case "token":
		if a.Token == "" {
			return fmt.Errorf("%s is token, but %s is not set", a.setting("AUTH_METHOD"), a.setting("TOKEN"))
		}
	case "approle":
		if a.RoleID == "" || a.SecretID == "" {
			return fmt.Errorf("%s is approle, but %s or %s is not set", a.setting("AUTH_METHOD"), a.setting("APPROLE_ROLE_ID"), a.setting("APPROLE_SECRET_ID"))
		}
	default:
		return fmt.Errorf("%s %q must be token or approle", a.setting("AUTH_METHOD"), a.Auth)
	}
	return nil
}

// client returns a Vault client that has not logged in.
func (a Access) client() (*api.Client, error) {
	cfg := api.DefaultConfig()
	if cfg.Error != nil {
		return nil, fmt.Errorf("vault: %w", cfg.Error)
	}
	cfg.Address = a.Addr
	cfg.Timeout = callFor / 2
	cfg.MaxRetries = 1
	c, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("vault: %w", err)
	}
	c.ClearToken() // ignore VAULT_TOKEN: the token comes only from the settings of this program
	return c, nil
}

// login authenticates the client. It is called before every request, because an AppRole token is valid for an
// hour and requests for certificates are about a day apart.
func (a Access) login(ctx context.Context, c *api.Client) error {
	if a.Auth == "token" {
		c.SetToken(a.Token)
		if _, err := c.Auth().Token().LookupSelfWithContext(ctx); err != nil {
			return fmt.Errorf("vault: %s: %w", a.setting("TOKEN"), brief(err))
		}
		return nil
	}
	s, err := c.Logical().WriteWithContext(ctx, "auth/approle/login", map[string]any{"role_id": a.RoleID, "secret_id": a.SecretID})
	if err != nil {
		return fmt.Errorf("vault: login with %s: %w", a.setting("APPROLE_ROLE_ID"), brief(err))
	}
	if s == nil || s.Auth == nil || s.Auth.ClientToken == "" {
		return errors.New("vault: the login with an AppRole gave no token")
	}
	c.SetToken(s.Auth.ClientToken)
	return nil
}

// write logs in and then writes data to a path of Vault. It returns an error if the answer has no data.
func (a Access) write(ctx context.Context, path string, data map[string]any) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	if err := a.login(ctx, c); err != nil {
		return nil, err
	}
	s, err := c.Logical().WriteWithContext(ctx, path, data)
	if err != nil {
		return nil, fmt.Errorf("vault: %s: %w", path, brief(err))
	}
	if s == nil || s.Data == nil {
		return nil, fmt.Errorf("vault: %s answered without data", path)
	}
	return s.Data, nil
}

// brief returns an error of Vault as a single line of text.
func brief(err error) error {
	var answer *api.ResponseError
	if errors.As(err, &answer) {
		return fmt.Errorf("it answered %d: %s", answer.StatusCode, strings.Join(answer.Errors, "; "))
	}
	return err
}

// text returns a string field of an answer of Vault.
func text(data map[string]any, key string) (string, error) {
	s, ok := data[key].(string)
	if !ok || s == "" {
		return "", fmt.Errorf("vault: the answer holds no %s", key)
	}
	return s, nil
}
