package stack

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// folderWith makes a folder with files, which are given as path, text, path, text…. If a text is "->TARGET",
// it makes a symbolic link to TARGET.
func folderWith(t *testing.T, name string, files ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	for i := 0; i+1 < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(files[i+1], "->"); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(files[i+1]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func local(t *testing.T, dir string) Local {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return Local{Dir: dir, File: "compose.yaml", Text: text}
}

// packHere does what Pack does, but loads the stack in this process, which is faster.
func packHere(t *testing.T, in Local) (*Packed, error) {
	t.Helper()
	src, vars, err := in.source()
	if err != nil {
		return nil, err
	}
	out, err := loadedHere(t, src)
	if err != nil {
		return nil, err
	}
	return in.packed(vars, out)
}

func pack(t *testing.T, in Local) *Packed {
	t.Helper()
	p, err := packHere(t, in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestNamesAndVariables checks that Pack gives a stack the same name and variables as `docker compose -f FILE`.
func TestNamesAndVariables(t *testing.T) {
	const app = "services: {app: {image: \"a:${TAG:-none}\", command: \"${WHO:-}\"}}\n"
	for _, c := range []struct {
		name, text string
		files      []string
		in         Local
		want       string // expected name of the stack
		env        map[string]string
		fromShell  []string
	}{
		{name: "a stack has the name of its folder", text: app, want: "myshop2"},
		{name: "the key name replaces the folder's name", text: "name: shop\n" + app, want: "shop"},
		{name: "the key name of the Compose file uses variables", text: "name: ${STACK:-case}-x\n" + app, want: "case-x"},
		{name: "the key name of the Compose file uses variables of the shell", text: "name: ${STACK:-case}-x\n" + app, in: Local{Shell: map[string]string{"STACK": "s"}},
			want: "s-x", env: map[string]string{"STACK": "s"}, fromShell: []string{"STACK"}},
		{name: "COMPOSE_PROJECT_NAME in .env sets the name of the stack", text: "name: shop\n" + app, files: []string{".env", "COMPOSE_PROJECT_NAME=other\n"}, want: "other"},
		{name: "COMPOSE_PROJECT_NAME in the shell takes precedence over .env", text: app, files: []string{".env", "COMPOSE_PROJECT_NAME=other\n"},
			in: Local{Shell: map[string]string{"COMPOSE_PROJECT_NAME": "third"}}, want: "third"},
		{name: "--name", text: "name: shop\n" + app, in: Local{Name: "Own.Name", Shell: map[string]string{"COMPOSE_PROJECT_NAME": "third"}}, want: "Own.Name"},
		{name: ".env", text: app, files: []string{".env", "TAG=1\nUNUSED=x\n"}, want: "myshop2", env: map[string]string{"TAG": "1"}},
		{name: "a byte order mark in .env is skipped", text: app, files: []string{".env", "\ufeffTAG=1\n"}, want: "myshop2", env: map[string]string{"TAG": "1"}},
		{name: "the shell takes precedence over .env", text: app, files: []string{".env", "TAG=1\nWHO=me\n"}, in: Local{Shell: map[string]string{"TAG": "2", "WHO": "me", "PATH": "x"}},
			want: "myshop2", env: map[string]string{"TAG": "2", "WHO": "me"}, fromShell: []string{"TAG"}},
		{name: ".env uses variables of the shell", text: app, files: []string{".env", "TAG=v$N\n"}, in: Local{Shell: map[string]string{"N": "7"}},
			want: "myshop2", env: map[string]string{"TAG": "v7"}},
		{name: "files given with --env-file replace .env", text: app, files: []string{".env", "TAG=1\nWHO=a\n", "prod.env", "TAG=3\n", "more.env", "WHO=b$TAG\n"},
			in: Local{EnvFiles: []string{"DIR/prod.env", "DIR/more.env"}}, want: "myshop2", env: map[string]string{"TAG": "3", "WHO": "b3"}},
		{name: "COMPOSE_ENV_FILES", text: app, files: []string{".env", "TAG=1\n", "prod.env", "TAG=3\n"},
			in: Local{Shell: map[string]string{"COMPOSE_ENV_FILES": "DIR/prod.env"}}, want: "myshop2", env: map[string]string{"TAG": "3"}},
		{name: "COMPOSE_DISABLE_ENV_FILE", text: app, files: []string{".env", "TAG=1\n"},
			in: Local{Shell: map[string]string{"COMPOSE_DISABLE_ENV_FILE": "1"}}, want: "myshop2"},
		{name: "COMPOSE_PROFILES", text: app, files: []string{".env", "COMPOSE_PROFILES=a,b\n"}, want: "myshop2", env: map[string]string{"COMPOSE_PROFILES": "a,b"}},
		{name: "a service lists a variable without a value, which the shell sets", text: "services: {app: {image: a, environment: [WHO, OWN=1]}}", in: Local{Shell: map[string]string{"WHO": "me", "OWN": "2"}},
			want: "myshop2", env: map[string]string{"WHO": "me"}, fromShell: []string{"WHO"}},
		{name: "a variable in env_file", text: "services: {app: {image: a, env_file: e}}", files: []string{"e", "A=$WHO\n"}, in: Local{Shell: map[string]string{"WHO": "me"}},
			want: "myshop2", env: map[string]string{"WHO": "me"}, fromShell: []string{"WHO"}},
		{name: "a secret whose value is a variable of the shell", text: "services: {app: {image: a, secrets: [s]}}\nsecrets: {s: {environment: WHO}}", in: Local{Shell: map[string]string{"WHO": "me"}},
			want: "myshop2", env: map[string]string{"WHO": "me"}, fromShell: []string{"WHO"}},
		{name: "the variables of a specification take the place of those of files and shell", text: app, files: []string{".env", "TAG=1\n"}, in: Local{Name: "x", Env: map[string]string{"WHO": "me"}, Shell: map[string]string{"TAG": "2"}},
			want: "x", env: map[string]string{"WHO": "me"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folderWith(t, "My Shop.2", append(c.files, "compose.yaml", c.text)...)
			in := c.in
			in.Dir, in.File, in.Text = dir, "compose.yaml", []byte(c.text)
			in.EnvFiles = slices.Clone(in.EnvFiles)
			for i, f := range in.EnvFiles {
				in.EnvFiles[i] = strings.Replace(f, "DIR", dir, 1)
			}
			if in.Shell != nil {
				in.Shell = maps.Clone(in.Shell)
				for k, v := range in.Shell {
					in.Shell[k] = strings.Replace(v, "DIR", dir, 1)
				}
			}
			p := pack(t, in)
			if c.env == nil {
				c.env = map[string]string{}
			}
			if p.Name != c.want {
				t.Errorf("the packed stack has the name %q, want %q", p.Name, c.want)
			}
			if diff := cmp.Diff(c.env, p.Env); diff != "" {
				t.Error(diff)
			}
			if !slices.Equal(p.FromShell, c.fromShell) {
				t.Errorf("the variables for which the shell overrides the files (FromShell) are %v, want %v", p.FromShell, c.fromShell)
			}
		})
	}
}

// TestNameOfTheWorkingFolder checks that a stack in the folder "." gets the name of the working folder.
func TestNameOfTheWorkingFolder(t *testing.T) {
	t.Chdir(folderWith(t, "shop", "compose.yaml", "services: {a: {image: b}}\n"))
	if p := pack(t, local(t, ".")); p.Name != "shop" {
		t.Errorf("the stack in the working folder has the name %q, want shop", p.Name)
	}
}

func TestPackReturnsWarnings(t *testing.T) {
	p, err := NewLoader(Options{}).Pack(t.Context(), local(t, folderWith(t, "p", "compose.yaml", "services:\n  app:\n    image: a\n    command: \"$WHO ${WHO} ${OK:-}\"\n    healthcheck: {test: \"true\", start_period: 9s, start_interval: 1s}\n")))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{`The "WHO" variable is not set. Defaulting to a blank string.`,
		"compose.yaml:5: services.app.healthcheck.start_interval: is left out by engines before Docker 25, which check every interval during the start period too"}; !slices.Equal(p.Warnings, want) {
		t.Errorf("Pack returned warnings %q, want %q", p.Warnings, want)
	}
}

func TestPackReportsFaults(t *testing.T) {
	const app = "services: {app: {image: a}}\n"
	for _, c := range []struct {
		name  string
		files []string
		in    Local
		want  string
	}{
		{".env has a line that is no KEY=VALUE", []string{"compose.yaml", app, ".env", "A=1\nB=\"x\n"}, Local{}, ".env:3: must consist of KEY=VALUE lines"},
		{".env has a byte of Latin-1", []string{"compose.yaml", app, ".env", "A=caf\xe9\n"}, Local{}, ".env:1: column 6: is not UTF-8"},
		{"a file given with --env-file does not exist", []string{"compose.yaml", app}, Local{EnvFiles: []string{"/nowhere/x.env"}}, "/nowhere/x.env: does not exist"},
		{"COMPOSE_PROJECT_NAME is no valid project name", []string{"compose.yaml", app, ".env", "COMPOSE_PROJECT_NAME=My.Shop\n"}, Local{}, `COMPOSE_PROJECT_NAME: "My.Shop" cannot be the name of a Compose project: want lower-case letters, digits, - and _, beginning with a letter or digit; try myshop`},
		{"the key name is no valid project name", []string{"compose.yaml", app + "name: ${A:-B C}\n"}, Local{}, `compose.yaml:2: name: "B C" cannot be the name of a Compose project`},
		{"the key name uses a required variable that is not set", []string{"compose.yaml", "name: ${A:?give it}\n" + app}, Local{}, "compose.yaml:1: name: "},
		{"the stack mounts a file above its folder", []string{"compose.yaml", "services:\n  app:\n    image: a\n    volumes: [\"../x:/x\"]\n"}, Local{},
			`compose.yaml:4: services.app.volumes.0: "../x" leads out of the stack's folder`},
		{"a mounted folder has a symbolic link that leads out of the stack's folder", []string{"compose.yaml", "services:\n  app:\n    image: a\n    volumes: [\"./conf:/x\"]\n", "conf/a", "->/etc/passwd"}, Local{},
			`compose.yaml:4: services.app.volumes.0: "conf/a" is a symbolic link that leads out of the stack's folder`},
		{"the stack mounts a file that does not exist", []string{"compose.yaml", "services:\n  app:\n    image: a\n    volumes:\n    - ./data:/data\n    - ./no.conf:/x\n"}, Local{},
			`compose.yaml:6: services.app.volumes.1: "./no.conf" is not in the stack's folder`},
		{"the stack mounts read-only a folder that does not exist", []string{"compose.yaml", "services:\n  app:\n    image: a\n    volumes: [\"./html:/x:ro\"]\n"}, Local{},
			`compose.yaml:4: services.app.volumes.0: "./html" is not in the stack's folder`},
		{"a device", []string{"compose.yaml", "services:\n  app:\n    image: a\n    volumes: [\"./d:/x\"]\n", "d/null", "->/dev/null"}, Local{},
			`compose.yaml:4: services.app.volumes.0: "d/null" is a symbolic link that leads out of the stack's folder`},
		{"the file of env_file does not exist", []string{"compose.yaml", "services:\n  app:\n    image: a\n    env_file: no.env\n"}, Local{},
			`compose.yaml:4: services.app.env_file: "no.env" is not in the stack's folder`},
		{"an included file uses a file that does not exist", []string{"compose.yaml", "include: [b/c.yaml]\n" + app, "b/c.yaml", "services:\n  web:\n    image: a\n    env_file: no.env\n"}, Local{},
			`b/c.yaml:4: services.web.env_file: "no.env" is not in the stack's folder`},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := local(t, folderWith(t, "p", c.files...))
			in.EnvFiles = c.in.EnvFiles
			_, err := packHere(t, in)
			var faults Faults
			if !errors.As(err, &faults) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Pack returned error %v\nwant an error that contains %s", err, c.want)
			}
		})
	}
}

// TestPackCollectsUsedFiles checks that Pack packs the files that a stack uses, and no others.
func TestPackCollectsUsedFiles(t *testing.T) {
	for _, c := range []struct {
		name        string
		files       []string
		want, empty []string
	}{
		{"the files of every key that can name a file are packed", []string{
			"compose.yaml", `include: [inc/more.yaml]
services:
  app:
    extends: {file: base/common.yaml, service: base}
    image: a
    env_file: [web.env, {path: none.env, required: false}]
    label_file: labels
    security_opt: ["seccomp=seccomp.json"]
    volumes: ["./conf:/conf", "./one.conf:/one", "data:/data", "./fresh:/fresh"]
    secrets: [token]
    configs: [site]
volumes: {data: {}}
secrets: {token: {file: ./secret/token}}
configs: {site: {file: site.conf}}
`,
			"inc/more.yaml", "services: {web: {image: b, volumes: [\"./html:/html\"]}}\n", "inc/.env", "X=1\n", "inc/html/index.html", "hi",
			"base/common.yaml", "services:\n  base: {environment: {A: b}, volumes: [\"./shared:/shared\"]}\n  other: {volumes: [\"./unused:/x\"]}\n",
			"base/shared/s", "1", "base/unused/u", "1",
			"web.env", "A=1\n", "labels", "team=blue\n", "seccomp.json", "{}", "conf/nginx.conf", "x", "conf/d/more.conf", "y", "one.conf", "z",
			"secret/token", "t", "secret/other", "o", "site.conf", "s", "README.md", "no", ".env", "TAG=1\n",
		}, []string{"base/common.yaml", "base/shared/s", "conf/d/more.conf", "conf/nginx.conf", "inc/.env", "inc/html/index.html", "inc/more.yaml",
			"labels", "one.conf", "seccomp.json", "secret/token", "site.conf", "web.env"}, []string{"fresh"}},
		{"an env_file with the name .env is packed", []string{"compose.yaml", "services: {app: {image: a, env_file: .env}}", ".env", "A=1\n"}, []string{".env"}, nil},
		{"with a mount of the whole folder, all its files are packed", []string{"compose.yaml", "services: {app: {image: a, volumes: [\".:/src\"]}}", "a/b", "1"}, []string{"a/b", "compose.yaml"}, nil},
		{"links inside the folder are followed", []string{"compose.yaml", "services: {app: {image: a, volumes: [\"./live:/tls\"]}}", "live/cert", "->../archive/cert1", "archive/cert1", "c"},
			[]string{"live/cert"}, nil},
		{"files that .persysignore lists are not packed", []string{"compose.yaml", "services: {app: {image: a, env_file: e.env, volumes: [\"./data:/data\", \"./conf:/conf\"]}}",
			IgnoreName, "data\n**/*.log\n!conf/keep.log\n*.env\n", "data/db", "big", "conf/a", "1", "conf/x.log", "2", "conf/keep.log", "3", "e.env", "A=1\n"},
			[]string{"conf/a", "conf/keep.log", "e.env"}, []string{"data"}},
		{"a mounted folder without files becomes an empty folder on the node", []string{"compose.yaml", "services: {app: {image: a, volumes: [\"./d:/d\"]}}", "d/e/.persysignore", "", IgnoreName, "**/.persysignore\n"}, nil, []string{"d"}},
		{"files of a service that is not enabled are not packed", []string{"compose.yaml", "services: {app: {image: a}, dbg: {image: a, profiles: [x], volumes: [\"./d:/d\"], env_file: e}}", "d/f", "1", "e", "A=1\n"}, nil, nil},
		{"the file of a secret that no service uses is not packed", []string{"compose.yaml", "services: {app: {image: a}}\nsecrets: {s: {file: s}}\n", "s", "1"}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pack(t, local(t, folderWith(t, "p", c.files...)))
			var got []string
			for _, f := range p.Files {
				got = append(got, f.Path)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if !slices.Equal(p.Empty, c.empty) {
				t.Errorf("Pack says that these bind mounts will be empty folders on the node: %v, want %v", p.Empty, c.empty)
			}
			again := Source{Project: "p", Env: p.Env, Compose: []string{"compose.yaml"}, Files: map[string][]byte{"compose.yaml": []byte(c.files[1])}}
			for _, f := range p.Files {
				again.Files[f.Path] = f.Data
			}
			if _, err := loadHere(t, again); err != nil {
				t.Errorf("the packed stack cannot be loaded: %v", err)
			}
		})
	}
}

func TestTooManyFiles(t *testing.T) {
	const mount = "services:\n  app:\n    image: a\n    volumes: [\"./d:/d\"]\n"
	noise := func(n int) string {
		var b strings.Builder
		for seed := uint32(1); b.Len() < n; {
			seed = seed*1664525 + 1013904223
			b.WriteByte(byte(seed >> 24))
		}
		return b.String()
	}
	many := []string{"compose.yaml", mount}
	for i := range 1001 {
		many = append(many, filepath.Join("d", strings.Repeat("x", i/100+1), noise(1)[:0]+string(rune('a'+i%26))+strings.Repeat("y", i%100)), "")
	}
	for _, c := range []struct {
		name  string
		files []string
		want  string
	}{
		{"a stack whose files have too many bytes", []string{"compose.yaml", mount, "d/big", strings.Repeat("x", 9<<20), "d/small", "x"},
			`needs 2 files of 9.0 MiB, and at most 1000 files of 2.0 MiB can go with a stack; the largest are ./d/big (9.0 MiB), ./d/small (1 bytes); leave files out with .persysignore`},
		{"a stack whose files cannot be compressed to the size of a bundle", []string{"compose.yaml", mount, "d/noise", noise(700 << 10)}, "needs files of 700 KiB (700 KiB compressed), and at most 512 KiB compressed"},
		{"a stack with too many files", many, "needs 1001 files of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := packHere(t, local(t, folderWith(t, "p", c.files...)))
			var faults Faults
			if !errors.As(err, &faults) || !strings.Contains(err.Error(), c.want) || faults[0].Line != 4 {
				t.Errorf("Pack returned error %v\nwant a fault in line 4 with %s", err, c.want)
			}
		})
	}
}
