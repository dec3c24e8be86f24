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

func TestRegistryCredentialsAreFound(t *testing.T) {
	s := store(t, file, 0o600)
	for _, c := range []struct{ name, ref, user, password string }{
		{"the credentials file has precedence over Docker's configuration", "registry.example.com/a/b:v1", "robot", "hunter2"},
		{"Docker's configuration is used if the file has no entry", "private.example.com/a@sha256:" + strings.Repeat("0", 64), "docker", "hunter5"},
		{"an image reference without a registry means Docker Hub", "busybox", "docker", "hunter5"},
		{"a registry without an entry has no credentials", "elsewhere.example.com/a", "", ""},
		{"the port is part of the host", "registry.example.com:5000/a", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := s.Registry("", c.ref)
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
				t.Errorf("the credentials for the image are user %q and password %q, want %q and %q", auth.Username, auth.Password, c.user, c.password)
			}
		})
	}
	for _, name := range []string{"docker.io", "https://index.docker.io/v1/", "index.docker.io"} {
		got, err := store(t, "registries: {'"+name+"': {username: robot, password: hunter2}, 'https://Registry.example.com/v2/': {username: robot, password: hunter2}}\n", 0o600).Registry("", "busybox")
		if auth, _ := authconfig.Decode(got); err != nil || auth.Username != "robot" {
			t.Errorf("the file names Docker Hub %q; for its image \"busybox\" Registry returned %v, error %v; want the credentials in the file", name, auth, err)
		}
	}
	none, err := (&credentials.Store{}).Registry("", "registry.example.com/a")
	if err != nil || none != "" {
		t.Errorf("a Store without file and Docker folder returned the credentials %q, error %v; want none", none, err)
	}
}

func TestGitCredentialsAreFound(t *testing.T) {
	s := store(t, file, 0o600)
	for _, c := range []struct{ name, entry, host, user, fault string }{
		{"named credentials", "team", "git.example.com", "bot", ""},
		{"a workload that names no entry gets the entry for its host", "", "127.0.0.1:3000", "bot", ""},
		{"a host without entry has no credentials", "", "elsewhere.example.com", "", ""},
		{"a workload that names no entry is refused if two entries list its host", "", "git.example.com", "", `name one of ["other" "team"]`},
		{"a workload that names a missing entry is refused", "nobody", "git.example.com", "", "no entry git.nobody"},
		{"a workload gets the entry that it names for a host that the entry lists", "team", "code.example.com", "bot", ""},
		{"an entry is refused for a host that it does not list", "team", "evil.example.com", "", "not for host evil.example.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			user, password, err := s.Git("", c.entry, c.host)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) || user+password != "" {
					t.Errorf("Git returned the user %q and the error %v, want no user and the error %q", user, err, c.fault)
				}
				return
			}
			if err != nil || user != c.user || (password == "") != (c.user == "") {
				t.Errorf("Git returned the user %q and the error %v, want the user %q and no error", user, err, c.user)
			}
		})
	}
}

func TestCredentialsOfNamespaces(t *testing.T) {
	const file = `
registries:
  one.example.com: {username: house, password: p}
  two.example.com: {username: all, password: p, shared: true}
git:
  team: {username: house, password: p, hosts: [git.example.com]}
  mirror: {username: all, password: p, hosts: [mirror.example.com], shared: true}
namespaces:
  shop:
    registries:
      one.example.com: {username: shop, password: p}
      https://Two.example.com/v2/: {username: shop2, password: p}
    git:
      team: {username: shop, password: p, hosts: [git.example.com]}
`
	s := store(t, file, 0o600)
	for _, c := range []struct{ namespace, host, want string }{
		{"", "one.example.com", "house"}, {"default", "one.example.com", "house"}, {"shop", "one.example.com", "shop"}, {"bank", "one.example.com", ""},
		{"", "two.example.com", "all"}, {"shop", "two.example.com", "shop2"}, {"bank", "two.example.com", "all"},
		{"", "private.example.com", "docker"}, {"shop", "private.example.com", ""}, {"Shop", "one.example.com", ""},
	} {
		got, err := s.Registry(c.namespace, c.host+"/a/b:v1")
		user := ""
		if err == nil && got != "" {
			auth, _ := authconfig.Decode(got)
			user = auth.Username
		}
		if err != nil || user != c.want {
			t.Errorf("the credentials of namespace %q for registry %s are %q (error %v), want %q", c.namespace, c.host, user, err, c.want)
		}
	}
	for _, c := range []struct{ namespace, name, host, want, fault string }{
		{"", "team", "git.example.com", "house", ""},
		{"shop", "team", "git.example.com", "shop", ""},
		{"shop", "", "git.example.com", "shop", ""},
		{"bank", "team", "git.example.com", "", "is for the default namespace: on the node, add namespaces.bank.git.team, or shared: true"},
		{"bank", "", "git.example.com", "", ""},
		{"bank", "mirror", "mirror.example.com", "all", ""},
	} {
		user, _, err := s.Git(c.namespace, c.name, c.host)
		if user != c.want || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("the Git credentials of namespace %q named %q for host %s are %q (error %v), want %q %q", c.namespace, c.name, c.host, user, err, c.want, c.fault)
		}
	}
}

func TestFaultsTellNoSecret(t *testing.T) {
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"a credentials file that other users can read is refused", file, 0o640, "chmod 600"},
		{"a credentials file with an unknown key is refused", "registries:\n  a: {username: u, password: hunter2, token: hunter3}\n", 0o600, "line 2"},
		{"no YAML", "registries: [hunter2", 0o600, "cannot be parsed"},
		{"an entry for Git without hosts is refused", "git: {team: {username: u, password: hunter2}}", 0o600, "git.team.hosts"},
		{"an entry for Git without hosts in a namespace is refused", "namespaces: {shop: {git: {team: {username: u, password: hunter2}}}}", 0o600, "namespaces.shop.git.team.hosts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := store(t, c.text, c.mode).Check()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("the error about the credentials file is %v; want an error that contains %q and no secret", err, c.want)
			}
		})
	}
	for _, text := range []string{"", "\n", "# nothing yet\n"} {
		if err := store(t, text, 0o600).Check(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
