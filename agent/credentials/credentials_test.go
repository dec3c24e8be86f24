package credentials_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/pkg/authconfig"

	"github.com/persys/compute/agent/credentials"
)

const file = `
registries:
  registry.example.com: {username: robot, password: hunter2}
git:
  team: {username: bot, password: hunter3, hosts: [git.example.com, "127.0.0.1:3000", "https://Code.example.com/"]}
  other: {username: bot2, password: hunter4, hosts: [git.example.com]}
`

func store(t *testing.T, text string, mode os.FileMode) *credentials.Store {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "credentials.yaml")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte("docker:hunter5"))
	config := fmt.Sprintf(`{"auths": {"private.example.com": {"auth": %q}, "registry.example.com": {"auth": %q}, "https://index.docker.io/v1/": {"auth": %q}}}`, auth, auth, auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return &credentials.Store{File: path, Docker: dir}
}

func TestRegistry(t *testing.T) {
	s := store(t, file, 0o600)
	for _, c := range []struct{ name, ref, user, password string }{
		{"the file comes before Docker's configuration", "registry.example.com/a/b:v1", "robot", "hunter2"},
		{"Docker's configuration is next", "private.example.com/a@sha256:" + strings.Repeat("0", 64), "docker", "hunter5"},
		{"a short name means Docker Hub", "busybox", "docker", "hunter5"},
		{"no entry", "elsewhere.example.com/a", "", ""},
		{"the port is part of the host", "registry.example.com:5000/a", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := s.Registry(c.ref)
			if err != nil {
				t.Fatal(err)
			}
			if got == "" {
				if c.user != "" {
					t.Fatal("no credentials")
				}
				return
			}
			auth, err := authconfig.Decode(got)
			if err != nil {
				t.Fatal(err)
			}
			if auth.Username != c.user || auth.Password != c.password {
				t.Errorf("%s %s, want %s %s", auth.Username, auth.Password, c.user, c.password)
			}
		})
	}
	for _, name := range []string{"docker.io", "https://index.docker.io/v1/", "index.docker.io"} {
		got, err := store(t, "registries: {'"+name+"': {username: robot, password: hunter2}, 'https://Registry.example.com/v2/': {username: robot, password: hunter2}}\n", 0o600).Registry("busybox")
		if auth, _ := authconfig.Decode(got); err != nil || auth.Username != "robot" {
			t.Errorf("the hub under the name %s: %v, %v", name, auth, err)
		}
	}
	none, err := (&credentials.Store{}).Registry("registry.example.com/a")
	if err != nil || none != "" {
		t.Errorf("the zero value finds %q, %v", none, err)
	}
}

func TestGit(t *testing.T) {
	s := store(t, file, 0o600)
	for _, c := range []struct{ name, entry, host, user, fault string }{
		{"by name", "team", "git.example.com", "bot", ""},
		{"by host", "", "127.0.0.1:3000", "bot", ""},
		{"a host without entry", "", "elsewhere.example.com", "", ""},
		{"a host with two entries", "", "git.example.com", "", `name one of ["other" "team"]`},
		{"a name without entry", "nobody", "git.example.com", "", "no entry git.nobody"},
		{"by an address", "team", "code.example.com", "bot", ""},
		{"an entry is not used for another host", "team", "evil.example.com", "", "not for host evil.example.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			user, password, err := s.Git(c.entry, c.host)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) || user+password != "" {
					t.Errorf("%q, %v; want %q", user, err, c.fault)
				}
				return
			}
			if err != nil || user != c.user || (password == "") != (c.user == "") {
				t.Errorf("%q, %v; want %q", user, err, c.user)
			}
		})
	}
}

func TestFaultsTellNoSecret(t *testing.T) {
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"readable by others", file, 0o640, "chmod 600"},
		{"an unknown key", "registries:\n  a: {username: u, password: hunter2, token: hunter3}\n", 0o600, "line 2"},
		{"no YAML", "registries: [hunter2", 0o600, "not understood"},
		{"no hosts", "git: {team: {username: u, password: hunter2}}", 0o600, "git.team.hosts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := store(t, c.text, c.mode).Check()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("%v; want %q and no secret", err, c.want)
			}
		})
	}
	for _, text := range []string{"", "\n", "# nothing yet\n"} {
		if err := store(t, text, 0o600).Check(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
