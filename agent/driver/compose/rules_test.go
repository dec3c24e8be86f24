package compose_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
)

// TestRulesJudgeTheLoadedStack: the driver checks the policies against the stack as it is after loading, also
// if the stack comes from Git. No resource of a refused stack is created.
func TestRulesJudgeTheLoadedStack(t *testing.T) {
	b := newBench(t)
	base, _ := policy.Builtin(policy.Baseline)
	signed := policy.Policy{Name: "signed", Kinds: []string{"*"}, Users: []string{"*"}, Images: []string{"*"}, ImageKeys: []string{"no key"}}
	rules := &driver.Rules{Policies: []driver.Rule{{Policy: base, Next: "next step"}}}
	const head = "services:\n  app:\n    image: IMAGE\n    command: [serve]\n"
	for _, tt := range []struct {
		name    string
		files   map[string]string
		refused []string
	}{
		{"a stack may mount its own files", map[string]string{
			"compose.yaml": head + "    volumes: ['./conf:/conf:ro']\n    secrets: [s]\nsecrets: {s: {file: ./secret}}\n", "conf/a": "1", "secret": "s",
		}, nil},
		{"a host path from the environment is refused", map[string]string{"compose.yaml": head + "    volumes: ['${WHERE}:/x']\n", ".env": "WHERE=/etc\n"},
			[]string{"services.app.volumes[0]", "rule host_paths", "next step"}},
		{"rights of a service that the stack extends are refused", map[string]string{"compose.yaml": head + "    extends: {file: base.yaml, service: b}\n", "base.yaml": "services:\n  b:\n    image: x\n    privileged: true\n    pid: host\n"},
			[]string{"services.app.privileged", "rule privileged", "services.app.pid", "rule host_namespaces"}},
		{"a mount of the engine's socket in an included file is refused", map[string]string{"compose.yaml": "include: [more.yaml]\n" + head, "more.yaml": "services:\n  b:\n    image: IMAGE\n    volumes: ['/var/run/docker.sock:/s']\n"},
			[]string{"services.b.volumes[0]", "rule engine_socket"}},
		{"an image whose signature cannot be checked is refused", map[string]string{"compose.yaml": "services: {app: {image: \"x.invalid/y@sha256:" + strings.Repeat("1", 64) + "\"}}\n"}, []string{`policy "signed": image_keys`}},
		{"a device", map[string]string{"compose.yaml": head + "    devices: ['/dev/sda:/dev/sda']\n"}, []string{"rule devices"}},
		{"a volume that is a folder of the host is refused", map[string]string{"compose.yaml": head + "    volumes: ['data:/x']\nvolumes: {data: {driver_opts: {type: none, o: bind, device: /etc}}}\n"},
			[]string{"volumes.data.driver_opts.device", "rule host_paths"}},
	} {
		for _, from := range []string{"inline", "git"} {
			if from == "inline" && len(tt.files) > 1 && tt.files[".env"] == "" {
				continue // the case needs several files, but this test sends an inline stack with one file only
			}
			t.Run(tt.name+" "+from, func(t *testing.T) {
				b := *b
				b.T = t
				for name, text := range tt.files {
					tt.files[name] = strings.ReplaceAll(text, "IMAGE", b.image)
				}
				what := inline(tt.files["compose.yaml"])
				if env := tt.files[".env"]; env != "" {
					what.GetCompose().Env = map[string]string{"WHERE": "/etc"}
				}
				if from == "git" {
					r := newRepository(t)
					r.commit(tt.files)
					what = body(&agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + r.dir, GitRef: "main"})
				}
				spec := b.spec("rules-"+strings.ReplaceAll(tt.name, " ", "-")+"-"+from, what)
				spec.Rules = rules
				if strings.Contains(tt.name, "signature") {
					spec.Rules = &driver.Rules{Policies: []driver.Rule{{Policy: &signed}}}
				}
				err := b.d.Ensure(b.ctx, spec)
				if tt.refused == nil {
					if err != nil {
						t.Fatal(err)
					}
					b.await(spec.ID, driver.Running)
					return
				}
				if driver.ClassOf(err) != driver.InvalidSpecification {
					t.Fatalf("Ensure returned %v, want a refusal by the policy", err)
				}
				for _, word := range tt.refused {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("the error of the refusal lacks %q: %v", word, err)
					}
				}
				if o := b.observed(spec.ID); o.State != driver.Absent {
					t.Errorf("the policies refused the stack, but the engine has it: %+v", o)
				}
			})
		}
	}
}

// TestLogRotationOfAStack: the driver limits the log size of a service that sets no log driver, and
// leaves the settings of a service that sets one.
func TestLogRotationOfAStack(t *testing.T) {
	b := newBench(t, func(o *compose.Options) { o.DaemonConfig = filepath.Join(t.TempDir(), "none") })
	spec := b.spec("rotation", b.yaml("services:\n  a:\n    image: IMAGE\n    command: [serve]\n"+
		"  b:\n    image: IMAGE\n    command: [serve]\n    logging: {driver: json-file, options: {max-size: 1m}}\n"+
		"  c:\n    image: IMAGE\n    command: [serve]\n    logging: {driver: none}\n"))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	for service, want := range map[string]string{"a": "json-file 20m", "b": "json-file 1m", "c": "none "} {
		res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(spec.ID, service), client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if l := res.Container.HostConfig.LogConfig; l.Type+" "+l.Config["max-size"] != want {
			t.Errorf("service %q has the log driver %s with options %v, want %s", service, l.Type, l.Config, want)
		}
	}
}
