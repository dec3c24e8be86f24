package spec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec/quantity"
)

func isGit(c *controlv1.ComposeSpec) bool {
	return strings.EqualFold(strings.TrimSpace(c.GetSourceType()), sourceGit)
}

// plainCompose returns the text of a Compose file. Some clients send it as base64, which it decodes: a
// Compose file always contains a colon, and base64 never does.
func plainCompose(text string) string {
	packed := strings.Join(strings.Fields(text), "")
	if packed == "" || strings.ContainsRune(packed, ':') {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(packed)
	if err != nil || !utf8.Valid(raw) {
		return text
	}
	return string(raw)
}

// InlineStack returns the text of an inline Compose file, "" for a Git source.
func InlineStack(c *controlv1.ComposeSpec) string {
	if c == nil || isGit(c) {
		return ""
	}
	return plainCompose(c.GetInlineYaml())
}

// composeServices checks that a text is a Compose file, and returns its services.
func composeServices(text string) (*node, error) {
	c := chunk{text: text}
	root, err := c.tree()
	if err != nil {
		var at FieldError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("line %d: %s", at.Line, at.Rule)
		}
		return nil, err
	}
	if root.kind != mapping {
		return nil, fmt.Errorf("must be a Compose file: a mapping with services")
	}
	for _, e := range root.own() {
		if e.key == "services" {
			if e.value.kind != mapping || len(e.value.entries) == 0 {
				return nil, fmt.Errorf("line %d: services must name at least one service", e.line)
			}
			return e.value, nil
		}
	}
	return nil, fmt.Errorf("must be a Compose file: it has no services")
}

// enabledServices returns the services of an inline Compose file that are enabled by its profiles.
func enabledServices(c *controlv1.ComposeSpec) []*node {
	services, err := composeServices(c.GetInlineYaml())
	if err != nil {
		return nil
	}
	enabled := map[string]bool{}
	for p := range strings.SplitSeq(c.GetEnv()["COMPOSE_PROFILES"], ",") {
		enabled[strings.TrimSpace(p)] = true
	}
	var out []*node
	for _, e := range services.own() {
		if composeEnabled(e.value.at("profiles"), enabled) {
			out = append(out, e.value)
		}
	}
	return out
}

// composePorts returns the host ports and port names of the enabled services of an inline Compose file. It skips
// entries whose host port is known only when the engine starts the service: variables, and ranges of host ports.
func composePorts(c *controlv1.ComposeSpec) []*controlv1.Port {
	var out []*controlv1.Port
	for _, service := range enabledServices(c) {
		for _, e := range service.own() {
			if e.key != "ports" {
				continue
			}
			for _, item := range e.value.items {
				if len(out) >= maxEntriesOf {
					return out
				}
				out = append(out, composePort(item)...)
			}
		}
	}
	return out
}

func composePort(n *node) []*controlv1.Port {
	published, protocol, name, address, target := "", "", "", "", int32(0)
	if n.kind == mapping {
		for _, e := range n.own() {
			switch e.key {
			case "published":
				published = e.value.text
			case "protocol":
				protocol = e.value.text
			case "name":
				name = e.value.text
			case "host_ip":
				address = e.value.text
			case "target":
				if v, err := strconv.ParseUint(strings.TrimSpace(e.value.text), 10, 16); err == nil {
					target = int32(v)
				}
			}
		}
	} else {
		var text string
		text, protocol, _ = strings.Cut(n.text, "/")
		// The form of the text is [address:]host:container. An IPv6 address is in brackets.
		cut := strings.LastIndexByte(text, ':')
		if cut < 0 {
			return nil
		}
		published = text[:cut]
		if at := strings.LastIndexByte(published, ':'); at >= 0 {
			published, address = published[at+1:], strings.Trim(published[:at], "[]")
		}
	}
	return ComposePort(published, target, protocol, name, address)
}

// ComposePort returns the host ports, with their name, that an entry of `ports` in a Compose file claims. It returns
// none for an entry whose host port is missing or not a number, such as a variable.
func ComposePort(published string, target int32, protocol, name, address string) []*controlv1.Port {
	address = hostAddress(address)
	low, high, isRange := strings.Cut(published, "-")
	first, err := strconv.ParseUint(strings.TrimSpace(low), 10, 16)
	if err != nil || first == 0 {
		if published == "" && name != "" { // keep only the name: the engine chooses the host port
			return []*controlv1.Port{{ContainerPort: target, Protocol: protocolOf(protocol), Name: name}}
		}
		return nil
	}
	last := first
	if isRange {
		if last, err = strconv.ParseUint(strings.TrimSpace(high), 10, 16); err != nil || last < first || last-first > maxEntriesOf {
			return nil
		}
	}
	var out []*controlv1.Port
	for p := first; p <= last; p++ {
		out = append(out, &controlv1.Port{HostPort: int32(p), ContainerPort: target, Protocol: protocolOf(protocol), Name: name, Address: address})
	}
	return out
}

// hostAddress returns the canonical form of an address at which a port is published. It returns "" for "all
// addresses", and for a text that is no IP address, such as a variable.
func hostAddress(text string) string {
	a, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil || a.IsUnspecified() {
		return ""
	}
	return a.Unmap().WithZone("").String()
}

// composeLimits returns the sum of the limits of the enabled services of an inline Compose file, in
// millicores and MiB, for all of their replicas. It ignores limits that contain variables.
func composeLimits(c *controlv1.ComposeSpec) (cpu, memory int64) {
	for _, service := range enabledServices(c) {
		copies := int64(1)
		for _, n := range []*node{service.at("deploy", "replicas"), service.at("scale")} {
			if n != nil {
				if v, err := strconv.ParseInt(n.text, 10, 32); err == nil && v >= 0 {
					copies = v
				}
			}
		}
		limits := service.at("deploy", "resources", "limits")
		for _, n := range []*node{limits.at("cpus"), service.at("cpus")} {
			if v, err := quantity.CPU(textOf(n)); err == nil && v > 0 {
				cpu += min(v, maxComposeLimit/max(copies, 1)) * copies
				break
			}
		}
		for _, n := range []*node{limits.at("memory"), service.at("mem_limit")} {
			text := textOf(n)
			if _, err := strconv.ParseUint(text, 10, 63); err == nil {
				text += "b" // a number without a unit is in bytes
			}
			if v, err := quantity.Size(text, mib, "512M"); err == nil && v > 0 {
				memory += min(v, maxComposeLimit/max(copies, 1)) * copies
				break
			}
		}
	}
	return min(cpu, maxComposeLimit), min(memory, maxComposeLimit)
}

// maxComposeLimit is the maximum sum of limits, so that the sum cannot overflow.
const maxComposeLimit = 1 << 40

func composeEnabled(profiles *node, enabled map[string]bool) bool {
	if profiles == nil || len(profiles.items) == 0 {
		return true
	}
	for _, p := range profiles.items {
		if p.text == "*" || enabled["*"] || enabled[p.text] {
			return true
		}
	}
	return false
}

// at returns the YAML value at a path of keys; nil if there is none.
func (n *node) at(keys ...string) *node {
	for _, key := range keys {
		if n == nil || n.kind != mapping {
			return nil
		}
		var next *node
		for _, e := range n.own() {
			if e.key == key {
				next = e.value
			}
		}
		n = next
	}
	return n
}

func textOf(n *node) string {
	if n == nil || n.kind != scalar {
		return ""
	}
	return n.text
}

// splitGit cuts the credentials out of a repository URL. The part before the @ is secret if it contains a password, or
// if the scheme is http(s), where a user name without a password is a token. The user of an ssh URL and of
// git@host:path is not secret.
func splitGit(repo string) (before, secret, after string) {
	u, err := url.Parse(repo)
	if err != nil || u.User == nil || u.Host == "" {
		return repo, "", ""
	}
	if _, password := u.User.Password(); !password && u.Scheme != "http" && u.Scheme != "https" {
		return repo, "", ""
	}
	scheme := strings.Index(repo, "://")
	if scheme < 0 {
		return repo, "", ""
	}
	rest := repo[scheme+3:]
	authority := rest
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority = rest[:end]
	}
	host := strings.LastIndexByte(authority, '@')
	if host <= 0 {
		return repo, "", ""
	}
	return repo[:scheme+3], rest[:host], rest[host:]
}
