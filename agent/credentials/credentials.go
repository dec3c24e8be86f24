// Package credentials finds the credentials with which an agent pulls images and reads Git repositories. They
// come from a file on the machine, and from the Docker configuration of the agent's user. So no specification,
// no message and no log entry of the schedulers contains credentials. Both sources are read at each use: a
// change needs no restart.
//
// An entry is for workloads of the default namespace, as is Docker's configuration. The section of a
// namespace holds entries for that namespace, and an entry with shared: true is for every namespace.
//
//	registries:
//	  registry.example.com: {username: robot, password: …}
//	  docker.io: {username: robot, password: …, shared: true}
//	git:
//	  team:
//	    username: robot
//	    password: …
//	    hosts: [git.example.com]
//	namespaces:
//	  shop:
//	    registries:
//	      registry.example.com: {username: shop-robot, password: …}
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

// Store finds credentials in the machine's files. The zero value finds none.
type Store struct {
	// File is the path of the credentials file, which need not exist. Users other than its owner must not be
	// able to read it.
	File string
	// Docker is the folder of Docker's config.json; empty means that Docker's configuration is not read.
	Docker string
}

// maxFile bounds the size of the credentials file, in bytes.
const maxFile = 1 << 20

// helperTimeout bounds one call of a credential helper that Docker's configuration names.
const helperTimeout = 20 * time.Second

// secret is a text that errors and logs do not show.
type secret string

func (secret) String() string   { return "***" }
func (secret) GoString() string { return "***" }

type login struct {
	Username string   `yaml:"username"`
	Password secret   `yaml:"password"`
	Hosts    []string `yaml:"hosts"`
	Shared   bool     `yaml:"shared"`
}

type section struct {
	Registries map[string]login `yaml:"registries"`
	Git        map[string]login `yaml:"git"`
}

type content struct {
	Registries map[string]login   `yaml:"registries"`
	Git        map[string]login   `yaml:"git"`
	Namespaces map[string]section `yaml:"namespaces"`
}

// defaultNamespace is the namespace of a workload without a namespace.
const defaultNamespace = "default"

// in returns the entries of the file that workloads of a namespace may use. An entry of the namespace overrides
// a shared entry of the same name or registry.
func (c content) in(namespace string) section {
	if namespace == "" {
		namespace = defaultNamespace
	}
	own := c.Namespaces[namespace]
	out := section{maps.Clone(own.Registries), maps.Clone(own.Git)}
	if out.Registries == nil {
		out.Registries = map[string]login{}
	}
	if out.Git == nil {
		out.Git = map[string]login{}
	}
	may := func(l login) bool { return l.Shared || namespace == defaultNamespace }
	for name, l := range c.Registries {
		if _, hidden := own.of(hostOf(name)); !hidden && may(l) {
			out.Registries[name] = l
		}
	}
	for name, l := range c.Git {
		if _, hidden := own.Git[name]; !hidden && may(l) {
			out.Git[name] = l
		}
	}
	return out
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
		// The message of the YAML library is left out, because it quotes the lines around the fault, which
		// may contain secrets.
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			return content{}, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: line %d: cannot be parsed; the file may have the keys registries and git, which map names to username, password, hosts and shared, and the key namespaces with the same two keys for each namespace",
				s.File, at.GetToken().Position.Line)
		}
		return content{}, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: cannot be parsed; the file may have the keys registries, git and namespaces", s.File)
	}
	all := map[string]section{"": {out.Registries, out.Git}}
	for namespace, own := range out.Namespaces {
		all["namespaces."+namespace+"."] = own
	}
	for at, own := range all {
		for name, l := range own.Git {
			if len(l.Hosts) == 0 {
				return content{}, fmt.Errorf("PERSYS_CREDENTIALS_FILE %s: %sgit.%s.hosts: must list the hosts to which the credentials may be sent", s.File, at, name)
			}
		}
	}
	return out, nil
}

// hostOf returns the host of a registry, given its name in the file. The name may also be a URL, or the key
// of Docker Hub in Docker's configuration.
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

// of returns the file's entry for a registry host. If several entries name the host, the entry whose name is
// only the host (no URL or path) is used.
func (c section) of(host string) (login, bool) {
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

// tells reports whether the entry lists host, so that its credentials may be sent there.
func (l login) tells(host string) bool {
	return slices.ContainsFunc(l.Hosts, func(h string) bool { return hostOf(h) == strings.ToLower(host) })
}

// Check reads the credentials file, so that a fault is reported when the agent starts.
func (s *Store) Check() error {
	_, err := s.read()
	return err
}

// hub is the key of Docker Hub in Docker's configuration. Image references without a registry refer to Docker
// Hub.
const hub = "https://index.docker.io/v1/"

// Registry returns the X-Registry-Auth value with which to pull an image reference for a workload of a
// namespace ("" is the default one), or "" if there are no credentials. The credentials file has precedence
// over Docker's configuration, which is for the default namespace only.
func (s *Store) Registry(namespace, ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	host := reference.Domain(named)
	file, err := s.read()
	if err != nil {
		return "", err
	}
	own := file.in(namespace)
	if l, ok := own.of(host); ok {
		return authconfig.Encode(registry.AuthConfig{Username: l.Username, Password: string(l.Password), ServerAddress: host})
	}
	if s.Docker == "" || namespace != "" && namespace != defaultNamespace {
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

// docker reads an entry of Docker's configuration. Docker's library may run a credential helper to get the
// entry, and sets no deadline for the helper.
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

// Git returns user and password for a Git repository on host, for a workload of a namespace. It uses the
// entry named name or, if name is empty, the entry that lists the host. User and password are empty if no
// entry matches. An entry is used only for the hosts that it lists, because the author of a workload chooses
// the address.
func (s *Store) Git(namespace, name, host string) (user, password string, err error) {
	file, err := s.read()
	if err != nil {
		return "", "", err
	}
	own := file.in(namespace)
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
		if _, other := file.Git[name]; other {
			return "", "", fmt.Errorf("entry git.%s of PERSYS_CREDENTIALS_FILE is for the default namespace: on the node, add namespaces.%s.git.%s, or shared: true to the entry",
				name, namespace, name)
		}
		return "", "", fmt.Errorf("PERSYS_CREDENTIALS_FILE has no entry git.%s", name)
	}
	if !l.tells(host) {
		return "", "", fmt.Errorf("entry git.%s of PERSYS_CREDENTIALS_FILE is not for host %s", name, host)
	}
	return l.Username, string(l.Password), nil
}
