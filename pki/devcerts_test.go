package pki

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDevCertsAreComplete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	s := setFor(t, dir, DevOptions{Hosts: []string{"10.1.2.3", "sched.example.com"}})
	for _, name := range []string{"scheduler/scheduler-1", "scheduler/scheduler-3", "agent/node-a", "gateway/gateway", "user/admin"} {
		p, ok := s.Leaf[name]
		if !ok {
			t.Errorf("DevCerts returned no files for identity %s: %v", name, s.Leaf)
			continue
		}
		f := load(t, FilesConfig{CA: p.CA, Cert: p.Cert, Key: p.Key})
		id := f.Identity()
		if got := string(id.Role) + "/" + id.ID; got != name || id.Cluster != "dev" || id.Mapped {
			t.Errorf("the certificate of %s has identity %+v, want the name in cluster dev", name, id)
		}
		cert, _, err := readCert(p.Cert)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"localhost", "127.0.0.1", "::1", "10.1.2.3", "sched.example.com"} {
			if err := cert.VerifyHostname(host); (err == nil) != (id.Role != RoleUser) {
				t.Errorf("the certificate of %s must be valid for host %s, but: %v", name, host, err)
			}
		}
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o644)
		switch {
		case d.IsDir():
			want = 0o700
		case strings.HasSuffix(path, "key.pem"):
			want = 0o600
		}
		if st.Mode().Perm() != want {
			t.Errorf("file %s has mode %04o, want %04o", path, st.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDevCertsRenewOnlyStaleLeaves(t *testing.T) {
	dir := t.TempDir()
	c := &clock{}
	opt := DevOptions{Schedulers: []string{"s"}, Agents: []string{"a"}, Now: c.now, Life: 9 * time.Hour}
	all := []string{"agent/a", "scheduler/s"}
	first := setFor(t, dir, opt)
	ca, _ := os.ReadFile(first.CA)
	for _, tc := range []struct {
		name string
		do   func()
		want []string
	}{
		{"nothing is issued if nothing changed", func() {}, nil},
		{"every certificate is renewed when less than a third of its validity is left", func() { c.advance(7 * time.Hour) }, all},
		{"a certificate without its key is issued again", func() { os.Remove(first.Leaf["agent/a"].Key) }, []string{"agent/a"}},
		{"a damaged certificate is issued again", func() { os.WriteFile(first.Leaf["agent/a"].Cert, []byte("x"), 0o644) }, []string{"agent/a"}},
		{"a certificate with the key of another certificate is issued again", func() {
			b, _ := os.ReadFile(first.Leaf["agent/a"].Key)
			os.WriteFile(first.Leaf["scheduler/s"].Key, b, 0o600)
		}, []string{"scheduler/s"}},
		{"another host changes every certificate", func() { opt.Hosts = []string{"10.0.0.1"} }, all},
		{"another cluster changes every certificate", func() { opt.Cluster = "c9" }, all},
		{"one more agent gets a certificate", func() { opt.Agents = append(opt.Agents, "b") }, []string{"agent/b"}},
	} {
		tc.do()
		s := setFor(t, dir, opt)
		if !slices.Equal(s.Issued, tc.want) {
			t.Errorf("case %s: DevCerts issued %v, want %v", tc.name, s.Issued, tc.want)
		}
		if now, _ := os.ReadFile(s.CA); string(now) != string(ca) {
			t.Errorf("case %s: DevCerts must keep the CA, but has replaced it", tc.name)
		}
	}
	c.advance(11 * 365 * 24 * time.Hour)
	if s := setFor(t, dir, opt); len(s.Issued) != 3 {
		t.Errorf("with an expired CA DevCerts issued %v, want all certificates", s.Issued)
	}
	if now, _ := os.ReadFile(first.CA); string(now) == string(ca) {
		t.Error("an expired CA must be replaced, but was kept")
	}
}

func TestDevCertsRefusesWrongOptions(t *testing.T) {
	for _, tc := range []struct {
		name string
		opt  DevOptions
		want string
	}{
		{"an invalid agent id", DevOptions{Agents: []string{"../x"}}, `"../x"`},
		{"an invalid host name", DevOptions{Agents: []string{"a"}, Hosts: []string{"a b"}}, `"a b"`},
		{"an invalid cluster name", DevOptions{Cluster: "a/b"}, `"a/b"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DevCerts(t.TempDir(), tc.opt)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("DevCerts returned %v, want an error that names %s", err, tc.want)
			}
		})
	}
	t.Run("DevCerts refuses the key of another CA", func(t *testing.T) {
		dir := t.TempDir()
		set(t, dir)
		_, other, err := makeKey()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, devCAKey), other, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := DevCerts(dir, DevOptions{}); err == nil || !strings.Contains(err.Error(), "remove both") {
			t.Errorf("DevCerts in a folder with the key of another CA returned %v, want the advice to remove both files", err)
		}
	})
}
