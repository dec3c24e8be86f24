// Package credentials finds the credentials with which an agent pulls images and reads Git repositories.
// They come from a file on the machine, and from the Docker configuration of the agent's user. So they are
// never in a workload, in a message, or in the schedulers' log. Both sources are read at each use: a
// change needs no restart.
//
//	registries:
//	  registry.example.com: {username: robot, password: …}
//	  docker.io: {username: robot, password: …}
//	git:
//	  team:
//	    username: robot
//	    password: …
//	    hosts: [git.example.com]
package credentials

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/types"
	"github.com/goccy/go-yaml"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
)

// Store finds credentials. The zero value finds none.
type Store struct {
	// File is the path of the file; it need not exist. Only its owner may be able to read it.
	File string
	// Docker is the folder of Docker's config.json; empty means none.
	Docker string
}

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

// helperTimeout bounds one credential helper of Docker's configuration.
const helperTimeout = 20 * time.Second

// secret is a text that errors and logs do not show.
type secret string

func (secret) String() string   { return "***" }
func (secret) GoString() string { return "***" }

type login struct {
	Username string   `yaml:"username"`
	Password secret   `yaml:"password"`
	Hosts    []string `yaml:"hosts"`
}

type content struct {
	Registries map[string]login `yaml:"registries"`
	Git        map[string]login `yaml:"git"`
}

func (s *Store) read() (content, error) {
	var out content
	if s.File == "" {
		return out, nil
	}
	f, err := os.Open(s.File)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("PERSYS_CREDENTIALS_FILE: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return out, fmt.Errorf("PERSYS_CREDENTIALS_FILE: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return out, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: must be readable by its owner only, not %#o (chmod 600 %s)", s.File, mode, s.File)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return out, fmt.Errorf("PERSYS_CREDENTIALS_FILE: %w", err)
	}
	if len(raw) > maxFile {
		return out, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: must be at most %d bytes", s.File, maxFile)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return out, nil
	}
	if err := yaml.UnmarshalWithOptions(raw, &out, yaml.Strict()); err != nil {
		// The library's text is left out, because it quotes the lines around the fault.
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return content{}, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: line %d: not understood; it holds registries and git, each a mapping of name to username, password and hosts",
				s.File, at.GetToken().Position.Line)
		}
		return content{}, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: not understood; it holds registries and git", s.File)
	}
	for name, l := range out.Git {
		if len(l.Hosts) == 0 {
			return content{}, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: git.%s.hosts: must name the hosts that may be told", s.File, name)
		}
	}
	return out, nil
}

// hostOf is the host of a name in the file. The name may also be an address, or the name that Docker's
// configuration uses for Docker Hub.
func hostOf(name string) string {
	if _, rest, ok := strings.Cut(name, "://"); ok {
		name = rest
	}
	host, _, _ := strings.Cut(name, "/")
	switch host = strings.ToLower(host); host {
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return "docker.io"
	}
	return host
}

// of is the entry of the file for a registry. An entry with a plain host is preferred.
func (c content) of(host string) (login, bool) {
	if l, ok := c.Registries[host]; ok {
		return l, true
	}
	for _, name := range slices.Sorted(maps.Keys(c.Registries)) {
		if hostOf(name) == strings.ToLower(host) {
			return c.Registries[name], true
		}
	}
	return login{}, false
}

// tells reports whether an entry may be used for a host.
func (l login) tells(host string) bool {
	return slices.ContainsFunc(l.Hosts, func(h string) bool { return hostOf(h) == strings.ToLower(host) })
}

// Check reads the file, so that a fault is reported at the start.
func (s *Store) Check() error {
	_, err := s.read()
	return err
}

// hub is the name in Docker's configuration for Docker Hub, which references without a registry mean.
const hub = "https://index.docker.io/v1/"

// Registry is the X-Registry-Auth value for an image reference; "" for none. The file is asked before
// Docker's configuration.
func (s *Store) Registry(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	host := reference.Domain(named)
	own, err := s.read()
	if err != nil {
		return "", err
	}
	if l, ok := own.of(host); ok {
		return authconfig.Encode(registry.AuthConfig{Username: l.Username, Password: string(l.Password), ServerAddress: host})
	}
	if s.Docker == "" {
		return "", nil
	}
	key := host
	if host == "docker.io" {
		key = hub
	}
	auth, err := s.docker(key)
	if err != nil || auth.Username == "" && auth.Password == "" && auth.IdentityToken == "" && auth.RegistryToken == "" {
		return "", err
	}
	return authconfig.Encode(registry.AuthConfig{
		Username: auth.Username, Password: auth.Password, IdentityToken: auth.IdentityToken, RegistryToken: auth.RegistryToken, ServerAddress: host,
	})
}

// docker asks Docker's configuration, which may run a helper program without a deadline of its own.
func (s *Store) docker(key string) (types.AuthConfig, error) {
	type answer struct {
		auth types.AuthConfig
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		file, err := config.Load(s.Docker)
		if err != nil {
			done <- answer{err: fmt.Errorf("Docker's configuration in %s cannot be read", s.Docker)}
			return
		}
		auth, err := file.GetAuthConfig(key)
		if err != nil {
			err = fmt.Errorf("Docker's credential helper for %s: %w", key, err)
		}
		done <- answer{auth, err}
	}()
	timer := time.NewTimer(helperTimeout)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.auth, a.err
	case <-timer.C:
		return types.AuthConfig{}, fmt.Errorf("Docker's credential helper for %s: no answer within %s", key, helperTimeout)
	}
}

// Git returns user and password for a repository on host. It uses the entry with the name, or, if the name
// is empty, the entry that lists the host. Both are empty if there is none. An entry is used only for its
// own hosts, because the author of a workload chooses the address.
func (s *Store) Git(name, host string) (user, password string, err error) {
	own, err := s.read()
	if err != nil {
		return "", "", err
	}
	if name == "" {
		var found []string
		for n, l := range own.Git {
			if l.tells(host) {
				found = append(found, n)
			}
		}
		slices.Sort(found)
		switch len(found) {
		case 0:
			return "", "", nil
		case 1:
			l := own.Git[found[0]]
			return l.Username, string(l.Password), nil
		}
		return "", "", fmt.Errorf("several entries of PERSYS_CREDENTIALS_FILE are for host %s: name one of %q in compose.git_credentials", host, found)
	}
	l, ok := own.Git[name]
	if !ok {
		return "", "", fmt.Errorf("PERSYS_CREDENTIALS_FILE has no entry git.%s", name)
	}
	if !l.tells(host) {
		return "", "", fmt.Errorf("entry git.%s of PERSYS_CREDENTIALS_FILE is not for host %s", name, host)
	}
	return l.Username, string(l.Password), nil
}
