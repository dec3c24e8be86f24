package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/persys/compute/child"
	"github.com/persys/compute/engine"
)

func TestMain(m *testing.M) {
	child.Serve(Task)
	goleak.VerifyTestMain(m)
}

// source returns a stack with one Compose file and further files, which are given as name, text, name, text….
func source(text string, more ...string) Source {
	s := Source{Project: "p", Compose: []string{"compose.yaml"}, Files: map[string][]byte{"compose.yaml": []byte(text)}}
	for i := 0; i+1 < len(more); i += 2 {
		s.Files[more[i]] = []byte(more[i+1])
	}
	return s
}

func load1(t *testing.T, src Source) (*types.Project, error) {
	t.Helper()
	return NewLoader(Options{}).Load(t.Context(), src)
}

// loadHere loads a stack as load1 does, but in this process, because starting a child process takes a second
// under the race detector.
func loadHere(t *testing.T, src Source) (*types.Project, error) {
	t.Helper()
	out, err := loadedHere(t, src)
	if err != nil {
		return nil, err
	}
	return bind(src, out)
}

func loadedHere(t *testing.T, src Source) (*loaded, error) {
	t.Helper()
	dir, done, err := src.onDisk()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	out, err := load(t.Context(), src, dir)
	if err != nil {
		return nil, err
	}
	return out.answer(src)
}

func TestFaultsNameTheirLine(t *testing.T) {
	service := func(lines string) string { return "services:\n  web:\n    image: a:1\n" + lines }
	for _, c := range []struct {
		name, text string
		line       int
		want       string
	}{
		{"a required variable is not set", "services:\n  web:\n    image: a:${TAG:?give a tag}\n", 3, "needs the variable TAG, which is not set or empty (give a tag); set it in the file .env"},
		{"a variable has a wrong syntax", service("    command: \"${\"\n"), 4, "is no valid use of a variable"},
		{"a key is set twice", "services:\n  web:\n    image: a\n    tty: true\n    image: b\n", 5, `mapping key "image" already defined at line 3`},
		{"one mapping has two merge keys", "x-a: &a {tty: true}\nx-b: &b {init: true}\nservices:\n  web:\n    <<: *a\n    <<: *b\n    image: c\n", 6, `mapping key "<<" already defined at line 5`},
		{"a line is indented with a tab", "services:\n\tweb: {}\n", 2, "is not valid YAML"},
		{"a range of host ports in the short form goes backwards", service("    ports: [\"9002-9000:80\"]\n"), 4, "invalid hostPort: 9002-9000"},
		{"a range of host ports in the long form goes backwards", service("    ports:\n      - {target: 80, published: \"9002-9000\"}\n"), 5, "is backwards"},
		{"several replicas have one host port", service("    ports: [\"8080:80\"]\n    scale: 2\n"), 4, "is for one container, and the service has 2 replicas"},
		{"a range has fewer host ports than the service has replicas", service("    ports: [\"8080-8081:80\"]\n    deploy: {replicas: 3}\n"), 4, "give a range of 3 ports"},
		{"two services publish the same host port", service("    ports: [\"8080:80\"]\n  api:\n    image: b\n    ports: [\"127.0.0.1:8080:81\"]\n"), 4, "is also published by service api"},
		{"two services have the same container_name", service("    container_name: same\n  api:\n    image: b\n    container_name: same\n"), 4, `"same" is also the container_name of service api`},
		{"a service with several replicas has a container_name", service("    container_name: fixed\n    scale: 3\n"), 4, "is one name for several containers (scale)"},
		{"mem_limit is below the engine's minimum", service("    mem_limit: 4m\n"), 4, "an engine takes at least 6 MiB"},
		{"the memory limit in deploy is below the engine's minimum", service("    deploy:\n      resources:\n        limits: {memory: 1000b}\n"), 6, "an engine takes at least 6 MiB"},
		{"the CPU limit is below the engine's minimum", service("    cpus: 0.001\n"), 4, "at least 0.01"},
		{"the memory reservation is above the limit", service("    mem_limit: 8m\n    mem_reservation: 9m\n"), 5, "is more than mem_limit"},
		{"an environment value is longer than Linux allows", service("    environment:\n      A: b\n      BIG: " + strings.Repeat("x", 140_000) + "\n"), 6, "Linux takes at most 131071"},
		{"a word of a command is longer than Linux allows", service("    command: [" + strings.Repeat("x", 140_000) + "]\n"), 4, "Linux takes at most 131071"},
		{"Latin-1", service("    environment: {A: \"caf\xe9\"}\n"), 4, "column 26: is not UTF-8: byte 0xe9"},
		{"UTF-16", "\xff\xfes\x00", 1, "is UTF-16"},
		{"UTF-16 without a byte order mark", "s\x00e\x00", 1, "column 2: contains a NUL byte"},
		{"an image in upper case", "services:\n  web:\n    image: Team/Web:1\n", 3, `did you mean "team/web:1"?`},
		{"an invalid image reference", "services:\n  web:\n    image: \"a b\"\n", 3, "is no image reference"},
		{"a service with build and no image", "services:\n  web:\n    build: .\n", 3, "nodes build no images"},
		{"an unknown key", service("    imagine: 1\n"), 4, "additional properties 'imagine' not allowed"},
		{"an undefined volume", service("    volumes: [\"data:/d\"]\n"), 4, "declare it under the top-level key volumes"},
		{"an undefined dependency", service("    depends_on: [db]\n"), 4, "depends on undefined service"},
		{"services depend on each other in a circle", service("    depends_on: [api]\n  api:\n    image: b\n    depends_on: [web]\n"), 7, "dependency cycle detected"},
		{"a wrong duration", service("    healthcheck: {interval: often}\n"), 4, "write a duration with its unit"},
		{"a size of over 8 EiB", service("    mem_limit: 9000000t\n"), 4, "is negative or too large"},
		{"a wrong size", service("    mem_limit: lots\n"), 4, "write bytes with a unit"},
		{"a stop_grace_period over the limit", service("    stop_grace_period: 1h\n"), 4, "is 1h0m0s, and no cluster waits longer than 10m for a container to stop: write 10m or less"},
		{"an unknown signal", service("    stop_signal: SIGTREM\n"), 4, `must be a signal of Linux, such as SIGTERM, SIGQUIT or 15, got "SIGTREM"`},
		{"no service of the stack is enabled", service("    profiles: [debug]\n"), 1, "no service is enabled"},
		{"every service of the stack has 0 replicas", service("    scale: 0\n"), 1, "every service has 0 replicas"},
		{"a value has a wrong type", "services:\n  web:\n    image: a\n    extends: {file: 3, service: x}\n", 0, ""},
		{"a document that is a list", "- a\n", 1, "is not valid YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := source(c.text)
			src.MaxStopGrace = 10 * time.Minute
			_, err := loadHere(t, src)
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("Load returned error %v, want Faults", err)
			}
			if f := faults[0]; f.Line != c.line || !strings.Contains(f.Rule, c.want) {
				t.Errorf("the first fault that Load returned is on line %d: %s\nwant a fault on line %d with %s", f.Line, f.String(), c.line, c.want)
			}
		})
	}
}

func TestValidStacksAreLoaded(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"a range of host ports for as many replicas", "services: {web: {image: a, scale: 3, ports: [\"8080-8082:80\"]}}"},
		{"the same host port on two addresses", "services: {web: {image: a, ports: [\"127.0.0.1:80:80\"]}, api: {image: a, ports: [\"127.0.0.2:80:80\"]}}"},
		{"the same host port with two protocols", "services: {web: {image: a, ports: [\"53:53/udp\", \"53:53/tcp\"]}}"},
		{"the smallest memory limit that engines accept", "services: {web: {image: a, mem_limit: 6m}}"},
		{"the longest environment value that Linux allows", "services: {web: {image: a, environment: {K: " + strings.Repeat("x", engine.MaxArg-2) + "}}}"},
		{"a missing optional env_file", "services: {web: {image: a, env_file: [{path: no.env, required: false}]}}"},
		{"a missing env_file of a disabled service", "services: {web: {image: a}, dbg: {image: a, profiles: [x], env_file: no.env}}"},
		{"a Compose file with a byte order mark", "\ufeffservices: {web: {image: a}}"},
		{"a bind mount of an absolute path", "services: {web: {image: a, volumes: [\"/srv:/srv\"]}}"},
		{"seccomp switched off", "services: {web: {image: a, security_opt: [\"seccomp:unconfined\"]}}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := load1(t, source(c.text)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHostFilesAreOutOfReach tries to read a file of the host, in every way in which a Compose file can name
// a file. Each load must fail without reading the file.
func TestHostFilesAreOutOfReach(t *testing.T) {
	const shadow = "/etc/shadow"
	web := func(rest string) string { return "services: {web: {image: a, " + rest + "}}" }
	for _, c := range []struct{ name, text string }{
		{"env_file", web("env_file: FILE")},
		{"env_file in a list", web("env_file: [{path: FILE, required: false}]")},
		{"env_file through a variable", web("env_file: \"${SHADOW}\"")},
		{"label_file", web("label_file: FILE")},
		{"extends", "services: {web: {extends: {file: FILE, service: x}}}"},
		{"extends in an extended file", "services: {web: {extends: {file: sub/base.yaml, service: x}}}"},
		{"extends in an included file", "include: [sub/base.yaml]"},
		{"include", "include: [FILE]\n" + web("tty: true")},
		{"include in upper case", "include: [{PATH: FILE}]\n" + web("tty: true")},
		{"env_file of an include", "include: [{path: ok.yaml, env_file: FILE}]"},
		{"env_file of an include in upper case", "include: [{path: ok.yaml, Env_File: FILE}]"},
		{"project_directory of an include", "include: [{path: ok.yaml, project_directory: FILE}]"},
		{"env_file of a nested include", "include: [sub/nested.yaml]"},
		{"secrets.file", web("secrets: [s]") + "\nsecrets: {s: {file: FILE}}"},
		{"configs.file", web("configs: [s]") + "\nconfigs: {s: {file: FILE}}"},
		{"a seccomp profile", web("security_opt: [\"seccomp:FILE\"]")},
		{"env_file through an alias and a merge", "x-f: &f {env_file: FILE}\nservices: {web: {<<: *f, image: a}}"},
		{"env_file in a second document", web("tty: true") + "\n---\n" + web("env_file: FILE")},
	} {
		for _, way := range []struct{ name, file, want string }{
			{"absolute", shadow, outside},
			{"a path with ..", "../../../../../../../.." + shadow, outside},
			{"a path from the home folder", "~/.ssh/id_ed25519", "~"},
			{"a symbolic link to the file", "link", outside},
			{"a symbolic link to the folder", "dirlink/shadow", outside},
			{"a device as file", "/dev/zero", outside},
			{"a named pipe as file", "fifo", "a named pipe"},
			{"a file that is too large", "big", "bigger than"},
		} {
			t.Run(c.name+"/"+way.name, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "stack")
				write := func(name, text string) {
					path := filepath.Join(dir, name)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
						t.Fatal(err)
					}
				}
				deep := strings.ReplaceAll("services: {x: {image: a, extends: {file: FILE, service: x}}}", "FILE", way.file)
				write("compose.yaml", strings.ReplaceAll(c.text, "FILE", way.file))
				write("ok.yaml", "services: {ok: {image: a}}")
				write("sub/base.yaml", deep)
				write("sub/ok.yaml", "services: {ok: {image: a}}")
				write("sub/nested.yaml", strings.ReplaceAll("include: [{path: ok.yaml, env_file: FILE}]", "FILE", way.file))
				for _, at := range []string{"", "sub"} {
					if err := errors.Join(os.Symlink(shadow, filepath.Join(dir, at, "link")), os.Symlink("/etc", filepath.Join(dir, at, "dirlink")),
						syscall.Mkfifo(filepath.Join(dir, at, "fifo"), 0o644)); err != nil {
						t.Fatal(err)
					}
					write(filepath.Join(at, "big"), strings.Repeat("# x\n", MaxText/4+1))
				}
				load := loadHere
				if way.name == "absolute" {
					load = load1
				}
				p, err := load(t, Source{Project: "p", Folder: dir, Env: map[string]string{"SHADOW": way.file}})
				var faults Faults
				section, _, _ := strings.Cut(c.name, " ")
				switch {
				case section == "project_directory" && (way.name == "a named pipe as file" || way.name == "a file that is too large"), // this path is used as the folder of a project, from which no file can be read
					way.name == "a file that is too large" && (section == "secrets.file" || section == "configs.file"): // these keys read no file: Compose only mounts it
				case !errors.As(err, &faults):
					t.Fatalf("Load must not read a file of the host, but returned project %v and error %v", p, err)
				case !strings.Contains(err.Error(), way.want) && !strings.Contains(err.Error(), "project_directory and env_file only") && !strings.Contains(err.Error(), "must not contain .."):
					t.Errorf("Load of a stack that names a file of the host returned %v\nwant an error that contains %s", err, way.want)
				}
			})
		}
	}
}

// TestChildSeesOnlyTheParentOfItsFolder loads a stack whose Compose file is a symbolic link to a file of the
// host. The load must fail, and the error must not show the content of that file.
func TestChildSeesOnlyTheParentOfItsFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root can change the root directory of a process
	}
	dir := filepath.Join(t.TempDir(), "stack")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "compose.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := load1(t, Source{Project: "p", Folder: dir})
	if err == nil || strings.Contains(err.Error(), "root:") {
		t.Errorf("Load of a link to a file of the host returned %v, want an error without the content of the file", err)
	}
}

// TestSameAsCompose checks that a load in a child process has the same result as a load with compose-go
// itself.
func TestSameAsCompose(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"compose.yaml": `
name: other
x-base: &base {restart: always, labels: {a: "1"}}
include: [sub/inc.yaml]
services:
  web:
    <<: *base
    image: a:${TAG:-1}
    command: echo "a b" $$HOME
    env_file: [one.env, {path: two.env, required: false}, {path: none.env, required: false}]
    label_file: labels
    environment: {EMPTY: "", UNSET:, NUM: 1, FLOAT: 1.50, BOOL: "yes", FROM: "${FROM}"}
    ports: ["8080:80", "127.0.0.1::90/udp", {target: 443, published: "8443", mode: host, name: https}]
    volumes: ["./conf:/conf:ro", "data:/data", {type: tmpfs, target: /t, tmpfs: {size: 1000000}}]
    depends_on: {db: {condition: service_healthy}}
    deploy: {replicas: 1, resources: {limits: {cpus: "0.5", memory: 64m, pids: 10}}}
    healthcheck: {test: ["CMD", "true"], interval: 1m30s, retries: 3}
    ulimits: {nofile: {soft: 10, hard: 20}, nproc: 5}
    sysctls: {net.core.somaxconn: 1024}
    secrets: [token, {source: envsecret, target: /e, mode: 0440}]
    configs: [{source: conf, target: /c}]
    extra_hosts: ["h:1.2.3.4"]
    logging: {driver: json-file, options: {max-size: 1m}}
    stop_grace_period: 5s
    networks: {default: {aliases: [w]}, back: {}}
    x-own: {deep: [1, 2.5, null, "3"]}
  db:
    extends: {file: sub/base.yaml, service: db}
    image: db:2
    scale: 0
  off:
    image: off
    profiles: [debug]
    env_file: nowhere.env
  on: {image: on, profiles: [live]}
volumes: {data: {}, unused: {}}
networks: {back: {internal: true}, default: {driver_opts: {com.docker.network.bridge.name: br7}}}
secrets: {token: {file: ./token}, envsecret: {environment: FROM}}
configs: {conf: {content: "a=${FROM}\n"}}
`,
		"sub/inc.yaml":  "services: {inc: {image: inc, env_file: inc.env, volumes: [\"./d:/d\"]}}",
		"sub/inc.env":   "INC=1\n",
		"sub/base.yaml": "services: {db: {image: db:1, mem_limit: 64m, env_file: inc.env, tmpfs: /t}}",
		"one.env":       "A=1\nB=\"x ${FROM}\"\n",
		"two.env":       "A=2\n# no\nexport C='q $x'\n",
		"labels":        "l=1\na=2\n",
		"token":         "t",
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"FROM": "shell", "COMPOSE_PROFILES": "live"}
	got, err := load1(t, Source{Project: "p", Folder: dir, Env: env, Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	details := types.ConfigDetails{WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}}, Environment: maps.Clone(env)}
	want, err := loader.LoadWithContext(t.Context(), details, loader.WithProfiles([]string{"live"}), loader.WithDiscardEnvFiles, func(o *loader.Options) {
		o.SetProjectName("p", true)
		o.ResolvePaths = true
	})
	if err != nil {
		t.Fatal(err)
	}
	want = want.WithoutUnnecessaryResources()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(types.SecretConfig{}, types.ConfigObjConfig{}, types.FileObjectConfig{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(types.Project{}, "DisabledServices")); diff != "" {
		t.Error(diff)
	}
	if _, ok := got.DisabledServices["off"]; !ok {
		t.Error("the loaded project must have the disabled service, because Compose would otherwise take its containers for orphans")
	}
}

func TestMachineWithoutATemporaryFolder(t *testing.T) {
	t.Setenv("TMPDIR", "/nowhere")
	p, err := load1(t, source("services:\n  web:\n    image: a\n    volumes: [\"./d:/d\"]\n"))
	if err != nil || p.Services["web"].Volumes[0].Source != Root+"/d" {
		t.Errorf("Load returned %v, error %v, want the mount source below Root", p, err)
	}
	if _, err := load1(t, source("services: {web: {image: a, env_file: e}}")); err == nil || !strings.Contains(err.Error(), "is not in the stack's folder") {
		t.Errorf("Load of a missing env_file returned %v, want that it is not in the stack's folder", err)
	}
}

func TestRefsListUsedFiles(t *testing.T) {
	src := source("services:\n  web:\n    image: a\n    env_file: a.env\n    volumes:\n      - ./conf:/conf\n      - ./gone:/gone\n    secrets: [s]\nsecrets: {s: {file: keys/s}}\n",
		"a.env", "A=1\n", "conf/x", "1", "keys/s", "2")
	out, err := NewLoader(Options{}).load(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range out.Refs {
		got = append(got, fmt.Sprintf("%d %s bind=%t secret=%t missing=%t", r.Line, r.Path, r.Bind, r.Secret, r.Missing))
	}
	want := []string{"4 a.env bind=false secret=true missing=false", "6 conf bind=true secret=false missing=false",
		"7 gone bind=true secret=false missing=true", "9 keys/s bind=false secret=true missing=false"}
	if !slices.Equal(got, want) {
		t.Errorf("the references are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLoadRefusesCostlyStacks(t *testing.T) {
	chain := func(n int) string { // services whose depends_on entries form an exponential number of paths
		var b strings.Builder
		b.WriteString("services:\n")
		for i := range n {
			fmt.Fprintf(&b, "  s%03d: {image: a", i)
			if i > 1 {
				fmt.Fprintf(&b, ", depends_on: [s%03d, s%03d]", i-1, i-2)
			}
			b.WriteString("}\n")
		}
		return b.String()
	}
	bomb := "x-a: &a [z, z, z, z, z, z, z, z, z, z]\n"
	for c := 'b'; c < 'k'; c++ {
		p := string(c - 1)
		bomb += fmt.Sprintf("x-%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat("*"+p+", ", 10), ", "))
	}
	many, names := source(""), ""
	for i := range maxFiles + 10 {
		names += fmt.Sprintf("e%d.env, ", i)
		many.Files[fmt.Sprintf("e%d.env", i)] = []byte("K=v\n")
	}
	many.Files["compose.yaml"] = []byte("services: {web: {image: a, env_file: [" + names + "]}}")
	for _, c := range []struct {
		name, want string
		src        Source
	}{
		{"YAML aliases that stand for very many values", "to load", source(bomb + "services: {web: {image: a}}")},
		{"deeply nested lists", "max depth", source("services: {web: {image: a, x-y: " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}}")},
		{"depends_on entries with an exponential number of paths", "to load", source(chain(60))},
		{"files that include each other", "include", source("include: [a.yaml]", "a.yaml", "include: [b.yaml]", "b.yaml", "include: [a.yaml]")},
		{"more files than the maximum", "one file too many", many},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load1(t, c.src)
			var faults Faults
			if !errors.As(err, &faults) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load of a stack that needs too many resources returned %v, want a fault that contains %q", err, c.want)
			}
		})
	}
}

func TestLimitsOfAChild(t *testing.T) {
	const least = 1 << 20
	big := "services: {web: {image: a, command: [" + strings.Repeat("z, ", 100_000) + "]}}"
	for _, c := range []struct {
		name string
		opt  Options
		want string
	}{
		{"memory", Options{Memory: least, CPU: time.Minute, Wall: 10 * time.Minute}, "of memory to load"},
		{"the limit of wall time", Options{Wall: 20 * time.Millisecond}, "to load"},
		{"output", Options{Output: 100, Wall: 10 * time.Minute}, "when aliases"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewLoader(c.opt).Load(t.Context(), source(big))
			var faults Faults
			if !errors.As(err, &faults) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load beyond the limit of its child process returned %v, want a fault that contains %q", err, c.want)
			}
		})
	}
	t.Run("the number of stacks that are loaded at the same time is limited", func(t *testing.T) {
		l := NewLoader(Options{AtOnce: 1, Wait: time.Millisecond})
		release, err := l.turn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var busy *Busy
		if _, err := l.Load(t.Context(), source("services: {}")); !errors.As(err, &busy) {
			t.Errorf("one more Load while AtOnce loads were running returned %v, want *Busy", err)
		}
		release()
	})
	t.Run("the child process ends when the context of its caller ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := NewLoader(Options{}).Load(ctx, source("services: {}")); !errors.Is(err, context.Canceled) {
			t.Errorf("Load after the end of its context returned %v, want Canceled", err)
		}
	})
}

func TestParseEnv(t *testing.T) {
	for _, c := range []struct{ name, text, want, fault string }{
		{"a .env text with a byte order mark", "\ufeffA=1\n", "1", ""},
		{"a .env text with line ends of Windows", "A=1\r\nB=2\r\n", "1", ""},
		{"quotes", "A='1 # no'\n", "1 # no", ""},
		{"a .env text with a line without a key", "A=1\nB C D\n", "", "line 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, err := ParseEnv([]byte(c.text), nil)
			if (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Fatalf("ParseEnv returned error %v, want an error that contains %q, or none if it is empty", err, c.fault)
			}
			if env["A"] != c.want {
				t.Errorf("ParseEnv returned the variables %v, want A=%q", env, c.want)
			}
		})
	}
}

// A service of a job has no restart policy: the schedulers repeat a failed job.
func TestServicesOfAJobHaveNoRestartPolicy(t *testing.T) {
	for lines, line := range map[string]int{
		"    restart: always\n": 4, "    restart: unless-stopped\n": 4, "    restart: on-failure:3\n": 4,
		"    deploy:\n      restart_policy:\n        condition: any\n": 6,
		"    restart: \"no\"\n": 0, "    deploy: {restart_policy: {condition: none}}\n": 0, "    tty: true\n": 0,
	} {
		for _, job := range []bool{true, false} {
			_, err := loadHere(t, Source{Project: "shop", Files: map[string][]byte{"compose.yaml": []byte("services:\n  web:\n    image: a:1\n" + lines)}, Job: job})
			var faults Faults
			errors.As(err, &faults)
			want := job && line > 0
			if (err != nil) != want || want && (len(faults) != 1 || faults[0].Line != line || !strings.Contains(faults[0].Rule, "must be no or absent in a job")) {
				t.Errorf("a service with %q, in a stack that is a job: %t: the load returned %v; want a fault in line %d only if the stack is a job", lines, job, err, line)
			}
		}
	}
}
