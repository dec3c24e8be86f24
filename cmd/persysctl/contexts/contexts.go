// Package contexts stores named connections to clusters (contexts) in the file contexts.yaml in the XDG
// configuration folder. Only the owner of the file can read it. A context contains the address of a cluster
// and the paths of key and token files, but no secrets.
package contexts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Context is the connection to one cluster.
type Context struct {
	Name string `yaml:"name" json:"name"`
	// Server is HOST[:PORT],… or srv://NAME for schedulers, http(s)://HOST[:PORT]
	// for a gateway.
	Server   string `yaml:"server" json:"server"`
	Insecure bool   `yaml:"insecure,omitempty" json:"insecure,omitempty"`
	CA       string `yaml:"tls_ca,omitempty" json:"tls_ca,omitempty"`
	Cert     string `yaml:"tls_cert,omitempty" json:"tls_cert,omitempty"`
	Key      string `yaml:"tls_key,omitempty" json:"tls_key,omitempty"`
	// ClusterID is the id of one of the clusters behind a gateway; empty selects the gateway's default
	// cluster.
	ClusterID string `yaml:"cluster_id,omitempty" json:"cluster_id,omitempty"`
	// Namespace is the default namespace for lists, and for applied workloads whose file names no
	// namespace.
	Namespace string `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	// TokenFile is the path of a file with a bearer token for a gateway.
	TokenFile string `yaml:"token_file,omitempty" json:"token_file,omitempty"`
}

// Gateway reports whether server is the address of a gateway.
func Gateway(server string) bool {
	return strings.HasPrefix(server, "http://") || strings.HasPrefix(server, "https://")
}

// Transport returns "gateway" or "grpc".
func (c Context) Transport() string {
	if Gateway(c.Server) {
		return "gateway"
	}
	return "grpc"
}

// Security describes how the connection is protected: "plain text", "TLS" or "TLS, token".
func (c Context) Security() string {
	switch {
	case strings.HasPrefix(c.Server, "http://") || !Gateway(c.Server) && c.Insecure:
		return "plain text"
	case c.TokenFile != "":
		return "TLS, token"
	}
	return "TLS"
}

// File is the content of contexts.yaml.
type File struct {
	path     string
	Current  string    `yaml:"current,omitempty"`
	Contexts []Context `yaml:"contexts"`
}

const maxFile = 1 << 20

var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Path is the path of the file: $XDG_CONFIG_HOME/persys/contexts.yaml, by default below ~/.config. It returns
// "" if neither folder is known.
func Path(environ func(string) (string, bool), home string) string {
	// The XDG Base Directory Specification requires that a relative path in this variable is ignored.
	if dir, ok := environ("XDG_CONFIG_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "persys", "contexts.yaml")
	}
	if home == "" {
		return ""
	}
	return filepath.Join(home, ".config", "persys", "contexts.yaml")
}

// Load reads the contexts from the file at path. If the file is missing, it returns a File without contexts.
func Load(path string) (*File, error) {
	f := &File{path: path}
	if path == "" {
		return f, nil
	}
	in, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	seen := map[string]bool{}
	for i, c := range f.Contexts {
		switch {
		case !name.MatchString(c.Name):
			return nil, fmt.Errorf("%s: contexts[%d].name: %s, got %q", path, i, nameRule, c.Name)
		case seen[c.Name]:
			return nil, fmt.Errorf("%s: contexts[%d].name: %q is used twice", path, i, c.Name)
		case c.Server == "":
			return nil, fmt.Errorf("%s: context %q: server must not be empty", path, c.Name)
		}
		seen[c.Name] = true
	}
	if f.Current != "" && !seen[f.Current] {
		return nil, fmt.Errorf("%s: current: context %q does not exist", path, f.Current)
	}
	return f, nil
}

const nameRule = "must be letters, digits, '_', '.' and '-', at most 64, and begin with a letter or digit"

// Get returns the context called name, and whether it exists.
func (f *File) Get(name string) (Context, bool) {
	i := f.index(name)
	if i < 0 {
		return Context{}, false
	}
	return f.Contexts[i], true
}

func (f *File) index(name string) int {
	return slices.IndexFunc(f.Contexts, func(c Context) bool { return c.Name == name })
}

// Names returns the names of the contexts, sorted.
func (f *File) Names() []string {
	out := make([]string, 0, len(f.Contexts))
	for _, c := range f.Contexts {
		out = append(out, c.Name)
	}
	slices.Sort(out)
	return out
}

// Put adds a context or replaces the context of the same name. If it is the only one, it becomes the current
// context.
func (f *File) Put(c Context) error {
	if !name.MatchString(c.Name) {
		return fmt.Errorf("name: %s, got %q", nameRule, c.Name)
	}
	if i := f.index(c.Name); i >= 0 {
		f.Contexts[i] = c
	} else {
		f.Contexts = append(f.Contexts, c)
	}
	slices.SortFunc(f.Contexts, func(a, b Context) int { return strings.Compare(a.Name, b.Name) })
	if len(f.Contexts) == 1 {
		f.Current = c.Name
	}
	return nil
}

// Remove removes a context and reports whether it existed. If it was the current context, there is no current context
// afterwards.
func (f *File) Remove(name string) bool {
	i := f.index(name)
	if i < 0 {
		return false
	}
	f.Contexts = slices.Delete(f.Contexts, i, i+1)
	if f.Current == name {
		f.Current = ""
	}
	return true
}

// Save writes the file atomically.
func (f *File) Save() error {
	if f.path == "" {
		return errors.New("there is no home folder for contexts.yaml; set HOME or XDG_CONFIG_HOME")
	}
	data, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	return Write(f.path, append([]byte("# Clusters of persysctl; `persysctl context` changes them.\n"), data...))
}

// Write replaces a file of the user atomically. The file is readable by its owner only.
func Write(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".persysctl-*") // CreateTemp creates files with mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
