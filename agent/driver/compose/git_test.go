package compose_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/testbed"
)

// repository is a Git repository for tests: a folder with a working tree.
type repository struct {
	*testing.T
	dir  string
	repo *git.Repository
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "stack")
	repo, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{InitOptions: git.InitOptions{DefaultBranch: plumbing.Main}})
	if err != nil {
		t.Fatal(err)
	}
	return &repository{T: t, dir: dir, repo: repo}
}

// commit writes files and returns the commit's id.
func (r *repository) commit(files map[string]string) string {
	r.Helper()
	tree, err := r.repo.Worktree()
	if err != nil {
		r.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			r.Fatal(err)
		}
		if strings.HasPrefix(text, "-> ") {
			err = os.Symlink(text[3:], path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			r.Fatal(err)
		}
		if _, err := tree.Add(name); err != nil {
			r.Fatal(err)
		}
	}
	hash, err := tree.Commit("a change", &git.CommitOptions{Author: &object.Signature{Name: "test", Email: "test@localhost", When: time.Unix(1, 0)}})
	if err != nil {
		r.Fatal(err)
	}
	return hash.String()
}

// serve serves the repository over HTTP with the program git http-backend. Clients must send r's password.
func (r *repository) serve() string {
	r.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	testbed.Need(r, "git", err)
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.dir), "GIT_HTTP_EXPORT_ALL=1"},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if user, password, _ := req.BasicAuth(); user != "robot" || password != "hunter2" {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, req)
	}))
	r.Cleanup(srv.Close)
	return srv.URL + "/stack/.git"
}

func stackFile(image string) string {
	return "services:\n  app:\n    image: " + image + "\n    command: [serve]\n    env_file: app.env\n    environment: {FROM_ENV: \"${NAME}\"}\n    volumes: [\"./conf:/conf:ro\"]\n"
}

func TestGitSourceIsPinnedToItsCommit(t *testing.T) {
	for _, c := range []struct {
		name   string
		source func(r *repository) string
	}{
		{"file", func(r *repository) string { return "file://" + r.dir }},
		{"http", func(r *repository) string { return r.serve() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked string
			b := newBench(t, func(o *compose.Options) {
				o.GitCredentials = func(_, name, host string) (string, string, error) {
					asked = name
					return "robot", "hunter2", nil
				}
			})
			r := newRepository(t)
			first := r.commit(map[string]string{"compose.yaml": stackFile(b.image), "app.env": "VERSION=1\n", "conf/a": "1", ".env": "NAME=repo\n"})
			source := c.source(r)
			git := &agentv1.ComposeSpec{SourceType: "git", GitRepo: source, GitRef: "main", GitCredentials: "team"}
			spec := b.spec("git-"+c.name, body(git))
			b.ensure(spec)
			o := b.await(spec.ID, driver.Running)
			if o.Metadata["compose.git_commit"] != first || o.Metadata["compose.git_repo"] != source {
				t.Errorf("the stack runs commit %q of repository %q, want commit %q", o.Metadata["compose.git_commit"], o.Metadata["compose.git_repo"], first)
			}
			if c.name == "http" && asked != "team" {
				t.Errorf("the driver requested the Git credentials %q, want those with the name team", asked)
			}
			if env := b.environment(spec.ID, "app"); env["VERSION"] != "1" || env["FROM_ENV"] != "repo" {
				t.Errorf("environment %v", env)
			}
			second := r.commit(map[string]string{"app.env": "VERSION=2\n"})
			app := b.containerOf(spec.ID, "app")
			// The branch gets a new commit without a new order for the workload. The stack keeps the commit
			// that it was deployed from, even if the driver has to create a container again.
			if err := b.d.Halt(b.ctx, spec.ID, 0); err != nil {
				t.Fatal(err)
			}
			b.ensure(spec)
			if again := b.containerOf(spec.ID, "app"); again != app {
				t.Error("the container was replaced, although only the branch has a new commit and no order arrived")
			}
			spec.Content, git.Env = "c1:git-2", map[string]string{"NAME": "mine"}
			b.ensure(spec)
			if o = b.await(spec.ID, driver.Running); o.Metadata["compose.git_commit"] != second {
				t.Errorf("after an order with new content the stack runs commit %q, want %q, the newest of the branch", o.Metadata["compose.git_commit"], second)
			}
			if env := b.environment(spec.ID, "app"); env["VERSION"] != "2" || env["FROM_ENV"] != "mine" {
				t.Errorf("environment %v", env)
			}
			spec.Content, git.GitRef = "c1:git-3", first
			b.ensure(spec)
			if o = b.await(spec.ID, driver.Running); o.Metadata["compose.git_commit"] != first {
				t.Errorf("the order names the first commit by its id, but the stack runs commit %q", o.Metadata["compose.git_commit"])
			}
			old, err := filepath.Glob(filepath.Join(b.dir, string(spec.ID), "git-*"))
			if err != nil || len(old) != 1 {
				t.Errorf("the project folder has the commit folders %v (error %v), want only that of the running commit", old, err)
			}
		})
	}
}

// An update that does not change the commit keeps the folder of the files that containers mount. So services
// whose configuration did not change keep their containers.
func TestAnUpdateLeavesTheFilesOfItsCommit(t *testing.T) {
	b := newBench(t)
	r := newRepository(t)
	commit := r.commit(map[string]string{"compose.yaml": stackFile(b.image), "app.env": "VERSION=1\n", "conf/a": "1"})
	git := &agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + r.dir, GitRef: "main"}
	spec := b.spec("git-same", body(git))
	b.ensure(spec)
	app := b.containerOf(spec.ID, "app")
	written := filepath.Join(b.dir, string(spec.ID), "git-"+commit, "conf", "written")
	if err := os.WriteFile(written, []byte("by a container"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec.Content, git.Env = "c1:git-same-2", map[string]string{"OTHER": "thing"}
	b.ensure(spec)
	if again := b.containerOf(spec.ID, "app"); again != app {
		t.Fatal("the update replaced the container, so the test cannot check that the container keeps its mounted files")
	}
	if _, err := os.Stat(written); err != nil {
		t.Error(err)
	}
}

// Containers may have written to their mounted folder, so the driver loads the stack from a separate,
// clean copy of the commit.
func TestAStackIsReadFromItsCommitAlone(t *testing.T) {
	b := newBench(t)
	r := newRepository(t)
	commit := r.commit(map[string]string{
		"compose.yaml": "include: [more/compose.yaml]\n" + stackFile(b.image) + "    configs: [one]\n    secrets: [two]\n" +
			"  other:\n    image: " + b.image + "\n    command: [serve]\n    volumes: [\"own:/own\"]\n" +
			"volumes: {own: {driver: local, driver_opts: {type: none, o: bind, device: ./conf}}}\n" +
			"configs: {one: {file: ./conf/a}}\nsecrets: {two: {file: ./conf/b}}\n",
		"more/compose.yaml": "services: {extra: {image: '" + b.image + "', command: [serve], volumes: ['.:/here']}}\n",
		"app.env":           "VERSION=1\n", "conf/a": "1", "conf/b": "2", ".env": "NAME=repo\n",
	})
	git := &agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + r.dir, GitRef: "main"}
	spec := b.spec("git-own", body(git))
	b.ensure(spec)
	folder := filepath.Join(b.dir, string(spec.ID), "git-"+commit)
	// Secrets and configs are mounted read-only from the clean copy of the commit that the stack is loaded
	// from.
	kept := filepath.Join(b.dir, string(spec.ID), "commit-"+commit)
	bound := 0
	for _, service := range []string{"app", "extra", "other"} {
		in, err := b.cli.ContainerInspect(b.ctx, b.containerOf(spec.ID, service), client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range in.Container.Mounts {
			from := m.Source
			if m.Name != "" {
				v, err := b.cli.VolumeInspect(b.ctx, m.Name, client.VolumeInspectOptions{})
				if err != nil {
					t.Fatal(err)
				}
				from = v.Volume.Options["device"]
			}
			if bound++; !strings.HasPrefix(from, folder) && (m.RW || !strings.HasPrefix(from, kept)) {
				t.Errorf("service %s has %s mounted from %s, which is not below %s or is writable", service, from, m.Destination, folder)
			}
		}
	}
	if bound != 5 {
		t.Errorf("the containers of the stack have %d bind mounts, want 5", bound)
	}
	for name, text := range map[string]string{
		".env": "NAME=container\nCOMPOSE_FILE=other.yaml\n", "app.env": "VERSION=9\n",
		"compose.yaml":          stackFile(b.image) + "    privileged: true\n",
		"compose.override.yaml": "services: {app: {privileged: true}}\n",
		"other.yaml":            stackFile(b.image) + "    privileged: true\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	app := b.containerOf(spec.ID, "app")
	spec.Content, git.Env = "c1:git-own-2", map[string]string{"OTHER": "thing"}
	b.ensure(spec)
	if again := b.containerOf(spec.ID, "app"); again != app {
		t.Error("a file that a container wrote into its mounted folder changed the loaded stack: Ensure replaced the container")
	}
	if env := b.environment(spec.ID, "app"); env["VERSION"] != "1" || env["FROM_ENV"] != "repo" {
		t.Errorf("environment %v", env)
	}
}

// A container of the stack replaces a file that another service mounts by a symbolic link to a file of the
// host. Ensure refuses to mount the link.
func TestALinkThatAContainerMadeIsNotMounted(t *testing.T) {
	b := newBench(t)
	text := "services:\n  app:\n    image: " + b.image + "\n    command: [serve]\n    volumes: [\"./data/x:/x\"]\n"
	spec := b.spec("planted", body(&agentv1.ComposeSpec{ComposeYaml: text}))
	data := filepath.Join(b.dir, compose.ProjectName(spec.ID), "files", "data")
	if err := errors.Join(os.MkdirAll(data, 0o700), os.Symlink("/etc/shadow", filepath.Join(data, "x"))); err != nil {
		t.Fatal(err)
	}
	err := b.d.Ensure(b.ctx, spec)
	if driver.ClassOf(err) != driver.InvalidSpecification || !strings.Contains(err.Error(), "leads out of the stack's folder") {
		t.Errorf("a bind mount through a link out of the stack's folder returned %v, want a refusal", err)
	}
}

// A stack that never started has no containers. Garbage finds its project folder by the record in it, which
// the driver writes before all other files.
func TestStackThatNeverStartedLeavesNoFiles(t *testing.T) {
	b := newBench(t)
	r := newRepository(t)
	r.commit(map[string]string{"compose.yaml": "services: {app: {image: 'persys/none:v1', pull_policy: never}}"})
	spec := b.spec("never", body(&agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + r.dir}))
	folder := filepath.Join(b.dir, string(spec.ID))
	no := func(driver.ID) bool { return false }
	for _, c := range []struct {
		name   string
		remove func() error
	}{
		{"the folder is removed when the workload is deleted", func() error { return b.d.Remove(b.ctx, spec.ID) }},
		{"removal as garbage", func() error {
			found, err := b.d.Garbage(b.ctx, driver.GarbageQuery{Wanted: no, Busy: no})
			if err != nil || len(found) != 1 || found[0].Kind != driver.Project || found[0].Workload != spec.ID {
				return fmt.Errorf("Garbage returned %v, %v; want the project's folder", found, err)
			}
			return b.d.Collect(b.ctx, found[0])
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := b.d.Ensure(b.ctx, spec); driver.ClassOf(err) != driver.ImageNotOnNode {
				t.Fatalf("Ensure of a stack whose image is missing returned %v; want class %s", err, driver.ImageNotOnNode)
			}
			if files, err := filepath.Glob(filepath.Join(folder, "git-*", "compose.yaml")); err != nil || len(files) != 1 {
				t.Fatalf("the files of the commit in the project's folder are %v, error %v; want one compose.yaml", files, err)
			}
			if err := c.remove(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the project's folder of the stack that never started was not removed: %v", err)
			}
		})
	}
}

// The method claim does not replace an existing record (the file that names the owner) of a project folder. The
// record may belong to a running stack whose update cannot be fetched, or to another agent that uses the same
// parent folder.
func TestAFailedUpdateKeepsTheRecord(t *testing.T) {
	b := newBench(t)
	spec := b.spec("kept", b.one("serve", 1))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	path := filepath.Join(b.dir, string(spec.ID), "stack.json")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	missing := spec
	missing.Content, missing.Body = "c1:missing", inline("services: {app: {image: 'persys/none:v1', pull_policy: never}}")
	fails := func(d *compose.Driver, spec driver.Spec) {
		t.Helper()
		if err := d.Ensure(b.ctx, spec); driver.ClassOf(err) != driver.ImageNotOnNode {
			t.Fatalf("Ensure of an update whose image is missing returned %v; want class %s", err, driver.ImageNotOnNode)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
			t.Errorf("the failed update changed the record of the stack from %s to %s (error %v), want no change", before, after, err)
		}
	}
	fails(b.d, missing)
	if o := b.observed(spec.ID); o.Content != spec.Content {
		t.Errorf("the stack has content %q, want the content %q from before the failed update", o.Content, spec.Content)
	}
	if _, err := b.cli.ContainerRemove(b.ctx, b.containerOf(spec.ID, "app"), client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	missing.NodeID = "node-b"
	fails(b.driver(t, "node-b", b.dir), missing)
}

func TestInvalidGitSourcesAreRefused(t *testing.T) {
	b := newBench(t, func(o *compose.Options) {
		o.GitCredentials = func(_, name, host string) (string, string, error) { return "robot", "wrong", nil }
	})
	r := newRepository(t)
	r.commit(map[string]string{"other.yaml": "services: {}", "away": "-> /etc/hostname"})
	around := newRepository(t)
	around.commit(map[string]string{"other.yaml": "services: {}", "here": "-> .", "sub/up": "-> ../here/.."})
	inside := newRepository(t)
	inside.commit(map[string]string{"other.yaml": "services: {}"})
	for _, c := range []struct {
		name  string
		spec  *agentv1.ComposeSpec
		class driver.Class
		want  string
	}{
		{"a Git source with a branch that does not exist", &agentv1.ComposeSpec{GitRepo: "file://" + r.dir, GitRef: "nothing"}, driver.InvalidSpecification, `no branch, tag or commit "nothing"`},
		{"a repository without a Compose file", &agentv1.ComposeSpec{GitRepo: "file://" + inside.dir}, driver.InvalidSpecification, "COMPOSE_FILE"},
		{"a Compose file outside of the repository", &agentv1.ComposeSpec{GitRepo: "file://" + inside.dir, Env: map[string]string{"COMPOSE_FILE": "../x"}}, driver.InvalidSpecification, "leads out of the stack's folder"},
		{"a repository with a symbolic link that points outside", &agentv1.ComposeSpec{GitRepo: "file://" + r.dir}, driver.InvalidSpecification, "leads outside"},
		{"a repository with a symbolic link that leads outside through another link", &agentv1.ComposeSpec{GitRepo: "file://" + around.dir}, driver.InvalidSpecification, "sub/up leads outside"},
		{"a repository for which the password is wrong", &agentv1.ComposeSpec{GitRepo: r.serve()}, driver.ImagePullAuthFailed, "compose.git_repo http://127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.SourceType = "git"
			err := b.d.Ensure(b.ctx, b.spec("gitbad", body(c.spec)))
			if driver.ClassOf(err) != c.class || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Ensure returned %v; want class %s and %q", err, c.class, c.want)
			}
		})
	}
}

// Schedulers do not read a stack in a Git repository, so the driver removes the labels of agents and Compose that such a
// stack sets, also those of other files of the stack.
func TestReservedLabelsOfAGitStackAreRemoved(t *testing.T) {
	b, r := newBench(t), newRepository(t)
	r.commit(map[string]string{
		"compose.yaml": "include: [more.yaml]\nservices:\n  app:\n    extends: {file: base.yaml, service: base}\n    image: " + b.image + "\n    command: [serve]\n    label_file: labels\n",
		"base.yaml":    "services:\n  base:\n    labels: {persys.base: x, persys.namespace: bank, team: blue}\n",
		"more.yaml":    "services:\n  more:\n    image: " + b.image + "\n    command: [serve]\n    labels: {persys.more: x, com.docker.compose.oneoff: 'True', team: blue}\n",
		"labels":       "persys.file=x\n",
	})
	spec := b.spec("reserved", body(&agentv1.ComposeSpec{SourceType: "git", GitRepo: "file://" + r.dir, GitRef: "main"}))
	b.ensure(spec)
	b.await(spec.ID, driver.Running)
	for _, service := range []string{"app", "more"} {
		res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(spec.ID, service), client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		labels := res.Container.Config.Labels
		for _, key := range []string{"persys.base", "persys.more", "persys.file"} {
			if _, set := labels[key]; set {
				t.Errorf("service %q has the reserved label %q, which the stack sets", service, key)
			}
		}
		if labels[driver.LabelNamespace] == "bank" || labels["com.docker.compose.oneoff"] != "False" || labels["team"] != "blue" {
			t.Errorf("service %q has the labels %v, want the labels of the agent, and the label \"team\" of the stack", service, labels)
		}
	}
}
