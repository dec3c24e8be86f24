package compose_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/stack/bundle"
)

const filesStack = `
include: [more.yaml]
services:
  web:
    extends: {file: base.yaml, service: base}
    env_file: web.env
    label_file: labels
    volumes: ["./conf:/conf:ro", "./one.conf:/one.conf:ro", "./data:/data"]
    configs: [{source: site, target: /site.conf}]
  db:
    image: IMAGE
    command: [serve]
    secrets: [token]
configs: {site: {file: conf/site.conf}}
secrets: {token: {file: ./token}}
`

// withFiles returns an inline stack with the Compose file text and with files, given as a map from path to
// content.
func (b *bench) withFiles(text string, files map[string]string) *agentv1.WorkloadSpec {
	b.Helper()
	var list []bundle.File
	for name, data := range files {
		list = append(list, bundle.File{Path: name, Data: []byte(strings.ReplaceAll(data, "IMAGE", b.image)), Executable: strings.HasSuffix(name, ".sh")})
	}
	archive, err := bundle.Pack(list)
	if err != nil {
		b.Fatal(err)
	}
	return body(&agentv1.ComposeSpec{ComposeYaml: strings.ReplaceAll(text, "IMAGE", b.image), Files: archive, MainFile: "stack.yml"})
}

// in returns the content of a file in the container of a service, "" if there is no such file.
func (b *bench) in(id driver.ID, service, path string) string {
	b.Helper()
	res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(id, service), client.ContainerInspectOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range res.Container.Mounts {
		if rest, ok := strings.CutPrefix(path, m.Destination); ok && (rest == "" || rest[0] == '/') {
			f, err := os.Open(m.Source + rest)
			if err != nil {
				return ""
			}
			defer f.Close()
			data, err := io.ReadAll(f)
			if err != nil {
				b.Fatal(err)
			}
			return string(data)
		}
	}
	return ""
}

// folders lists the subfolders with files in the stack's project folder.
func (b *bench) folders(id driver.ID) (out []string) {
	b.Helper()
	for _, kind := range []string{"mounted-*", "kept-*"} {
		found, err := filepath.Glob(filepath.Join(b.dir, string(id), kind))
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// TestFilesOfAStack: the files of a stack reach its containers. A changed file replaces only the containers
// that use it. If the files get their previous text again, the containers see that text. A delete of the stack
// removes all of them.
func TestFilesOfAStack(t *testing.T) {
	b := newBench(t)
	files := map[string]string{
		"more.yaml": "services: {side: {image: IMAGE, command: [serve]}}\n",
		"base.yaml": "services: {base: {image: IMAGE, command: [serve]}}\n",
		"web.env":   "GREETING=hello\n", "labels": "team=blue\n", "conf/site.conf": "site 1", "conf/run.sh": "#!", "one.conf": "one 1", "token": "secret 1",
	}
	spec := b.spec("files", b.withFiles(filesStack, files))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	look := func(when, site, one, token string) {
		t.Helper()
		for _, c := range []struct{ service, path, want string }{
			{"web", "/conf/site.conf", site}, {"web", "/site.conf", site}, {"web", "/one.conf", one}, {"db", "/run/secrets/token", token},
		} {
			if got := b.in(spec.ID, c.service, c.path); got != c.want {
				t.Errorf("%s: the file %s in the container of service %s contains %q, want %q", when, c.path, c.service, got, c.want)
			}
		}
	}
	look("at first", "site 1", "one 1", "secret 1")
	if got := b.environment(spec.ID, "web")["GREETING"]; got != "hello" {
		t.Errorf("env_file: GREETING=%q", got)
	}
	if b.containerOf(spec.ID, "side") == "" {
		t.Error("the service from the included Compose file does not run")
	}
	if len(b.folders(spec.ID)) != 4 {
		t.Errorf("the stack's project folder has the subfolders %v, want four: two mounts, a config and a secret", b.folders(spec.ID))
	}
	web, db := b.containerOf(spec.ID, "web"), b.containerOf(spec.ID, "db")
	change := func(content string, files map[string]string) {
		t.Helper()
		spec.Content, spec.Revision, spec.Body = content, content, b.withFiles(filesStack, files)
		b.ensure(spec)
		b.await(spec.ID, driver.Running)
	}
	files["token"] = "secret 2"
	change("c1:files-2", files)
	look("with another secret", "site 1", "one 1", "secret 2")
	if b.containerOf(spec.ID, "web") != web || b.containerOf(spec.ID, "db") == db {
		t.Error("a change of the secret of service \"db\" must replace the container of \"db\", and not that of \"web\"")
	}
	if err := os.WriteFile(filepath.Join(b.dir, string(spec.ID), "files", "data", "kept"), []byte("x"), 0o600); err != nil {
		t.Errorf("the update removed the folder \"data\", which a service mounts: %v", err)
	}
	db, files["conf/site.conf"] = b.containerOf(spec.ID, "db"), "site 2"
	change("c1:files-3", files)
	look("with another config", "site 2", "one 1", "secret 2")
	if b.containerOf(spec.ID, "web") == web || b.containerOf(spec.ID, "db") != db {
		t.Error("a change of the config of service \"web\" must replace the container of \"web\", and not that of \"db\"")
	}
	if got := b.in(spec.ID, "web", "/data/kept"); got != "x" {
		t.Errorf("after an update the file that was written into the mounted folder contains %q, want \"x\" as before", got)
	}
	if len(b.folders(spec.ID)) != 4 {
		t.Errorf("the project folder has the subfolders %v, want four, without those of former files", b.folders(spec.ID))
	}
	files["conf/site.conf"], files["token"] = "site 1", "secret 1"
	change("c1:files", files)
	look("with the former files", "site 1", "one 1", "secret 1")
	if err := b.d.Remove(b.ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
	if left := b.folders(spec.ID); len(left) > 0 {
		t.Errorf("after the delete of the stack the subfolders %v of its project folder are left", left)
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	b := newBench(t)
	what := b.yaml("services: {app: {image: IMAGE}}")
	what.GetCompose().Files = []byte("x")
	err := b.d.Ensure(b.ctx, b.spec("damaged", what))
	if driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "compose.files: the archive") {
		t.Errorf("error %v", err)
	}
}
