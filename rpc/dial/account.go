package dial

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// accountTokenPrefix begins the bearer tokens of accounts. No token of an OIDC issuer begins with it.
const accountTokenPrefix = "persys~"

// AccountToken returns the bearer token of an account: persys~NAME~SECRET. Names contain no tilde.
func AccountToken(name string, secret []byte) string {
	return accountTokenPrefix + name + "~" + base64.RawURLEncoding.EncodeToString(secret)
}

// AccountOfToken returns the account that a bearer token names, if the token has the form of AccountToken. It does not
// verify the token.
func AccountOfToken(token string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(token, accountTokenPrefix)
	if !ok || len(token) > 512 {
		return "", false
	}
	name, secret, ok := strings.Cut(rest, "~")
	return name, ok && name != "" && secret != ""
}

// IsAccountToken reports whether a bearer token begins like the token of an account. Such a token may still be
// malformed.
func IsAccountToken(token string) bool { return strings.HasPrefix(token, accountTokenPrefix) }

// consoleTokenPrefix begins the one-time codes and the tokens of sessions at the web console. No token of an OIDC issuer
// begins with it.
const consoleTokenPrefix = "persys-console~" //nolint:gosec // the public beginning of a token, not a secret

// ConsoleToken returns the one-time code or the token of a session at the web console: persys-console~ID~SECRET.
func ConsoleToken(id string, secret []byte) string {
	return consoleTokenPrefix + id + "~" + base64.RawURLEncoding.EncodeToString(secret)
}

// ConsoleOfToken returns the session that a code or a token names, if the code or token has the form of
// ConsoleToken. It does not verify the token.
func ConsoleOfToken(token string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(token, consoleTokenPrefix)
	if !ok || len(token) > 512 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", false
	}
	id, secret, ok := strings.Cut(rest, "~")
	return id, ok && id != "" && secret != ""
}

// IsConsoleToken reports whether a token begins like the token of a session at the web console.
func IsConsoleToken(token string) bool { return strings.HasPrefix(token, consoleTokenPrefix) }

// Bounds of KeyGroups.
const (
	maxGroups     = 256
	maxGroupsSize = 12 << 10
)

// EncodeGroups encodes the names of groups as the value of the metadata key KeyGroups.
func EncodeGroups(groups []string) (string, error) {
	parts := make([]string, len(groups))
	for i, g := range groups {
		parts[i] = url.QueryEscape(g)
	}
	text := strings.Join(parts, ",")
	if len(groups) > maxGroups || len(text) > maxGroupsSize {
		return "", fmt.Errorf("%d groups of %d bytes, limits %d and %d", len(groups), len(text), maxGroups, maxGroupsSize)
	}
	return text, nil
}

// DecodeGroups decodes the value of the metadata key KeyGroups to the names of groups.
func DecodeGroups(text string) ([]string, error) {
	if len(text) > maxGroupsSize {
		return nil, fmt.Errorf("%d bytes, limit %d", len(text), maxGroupsSize)
	}
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		g, err := url.QueryUnescape(part)
		if err != nil {
			return nil, err
		}
		if g != "" {
			out = append(out, g)
		}
	}
	if len(out) > maxGroups {
		return nil, fmt.Errorf("%d groups, limit %d", len(out), maxGroups)
	}
	return out, nil
}

// SecureIssuer reports whether the address of an OIDC issuer is a URL that begins with https://, or with
// http:// and a loopback host. The check is needed because the keys that verify tokens are read from this URL.
func SecureIssuer(issuer string) bool {
	u, err := url.Parse(issuer)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && Loopback(u.Hostname()))
}

// Loopback reports whether a host name always means this machine.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
