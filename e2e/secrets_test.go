package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	engines "github.com/moby/moby/api/types/container"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// TestSecretsAndConfigs puts a secret and a config, and runs a group that uses them as files and as
// environment variables. A new version of the secret must reach the members one after the other. The value
// exists only in the containers and in files on a file system in memory. When the last workload that uses the
// secret is deleted, these files must be removed.
func TestSecretsAndConfigs(t *testing.T) {
	const first, second, third, variable = "f1rst-c4nary", "s3cond-c4nary", "th1rd-c4nary", "v4riable-c4nary"
	e, image := theEngine(t)
	etcd := etcdPart(t)
	kv := etcdClient(t, etcd)
	debug := map[string]string{"LOG_LEVEL": "debug", "LOG_FORMAT": "json"}
	c := start(t, harness.Options{Binaries: raced(t), Schedulers: 1, TLS: true, SchedulerEnv: mirrored(etcd, debug), AgentEnv: debug})
	id := onDocker(t, e, c)
	got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{}))

	files := t.TempDir() // the test does not search this folder, because it holds the values
	write := func(name, text string) string {
		path := filepath.Join(files, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	refused := func(want string, args ...string) string {
		t.Helper()
		res := got[harness.CtlResult](t)(c.Ctl(t.Context(), args...))
		if res.Code == 0 || !strings.Contains(res.Stderr, want) {
			t.Errorf("persysctl %s ended with exit %d, want a refusal with %q\n%s%s", strings.Join(args, " "), res.Code, want, res.Stdout, res.Stderr)
		}
		return res.Stdout + res.Stderr
	}
	spec := func(id, count, more string) string {
		return write(id+".yaml", "id: "+id+"\n"+count+"resources: {cpu: 10m, memory: 16Mi}\n"+more+
			"container:\n  image: "+image+"\n  secrets:\n    - {source: db, target: /etc/db-password, uid: \"1000\", gid: \"1001\", mode: 0400}\n"+
			"  configs: [site]\n  env_secrets: {TOKEN: token}\n")
	}
	web := spec("web", "count: 2\nupdate: {min_healthy_time: 1s, healthy_deadline: 2m}\n", "")

	refused(`web.yaml:8:16: container.secrets[0].source: secret does not exist in this namespace: persysctl secret put db`, "apply", "-f", web)
	ctl(t, c, "secret", "put", "db", "--from-file", write("db", first))
	ctl(t, c, "secret", "put", "token", "--from-file", write("token", variable+"\n"))
	ctl(t, c, "config", "put", "site", "--from-literal", "color=blue")
	large := write("large", strings.Repeat("x", 2<<20))
	refused("has more than 524288 bytes", "secret", "put", "db", "--from-file", large)
	ctl(t, c, "apply", "-f", web, "--wait", "--timeout", "2m")

	ctl(t, c, "namespace", "set", "shop")
	refused("secret does not exist in this namespace", "apply", "-f", spec("other", "", "namespace: shop\n"))

	type inspected struct {
		State  struct{ Pid int }
		Mounts []struct{ Source, Destination string }
	}
	// look returns the content of the file with the secret in the container of a member, and the path at which
	// this file lies on the machine.
	look := func(member string) (value, source string) {
		t.Helper()
		all := got[[]string](t)(containerIDs(t.Context(), e, id, member))
		if len(all) != 1 {
			t.Fatalf("%s has %d containers, want 1", member, len(all))
		}
		raw := got[[]byte](t)(exec.CommandContext(t.Context(), "docker", "inspect", all[0]).Output())
		for _, v := range []string{first, second, third, "color=blue"} {
			if strings.Contains(string(raw), v) {
				t.Errorf("docker inspect shows the value %s", v)
			}
		}
		var list []inspected
		must(t, json.Unmarshal(raw, &list))
		root := fmt.Sprintf("/proc/%d/root", list[0].State.Pid)
		if site := got[[]byte](t)(os.ReadFile(root + "/site")); string(site) != "color=blue" {
			t.Errorf("the config in %s is %q", member, site)
		}
		path := root + "/etc/db-password"
		info := got[os.FileInfo](t)(os.Stat(path))
		owner := info.Sys().(*syscall.Stat_t)
		if info.Mode() != 0o400 || owner.Uid != 1000 || owner.Gid != 1001 {
			t.Errorf("the secret in %s has mode %s and owner %d:%d, want 0400 and 1000:1001", member, info.Mode(), owner.Uid, owner.Gid)
		}
		for _, m := range list[0].Mounts {
			if m.Destination == "/etc/db-password" {
				source = m.Source
			}
		}
		env := strings.Join(got[[]string](t)(e.Environment(t.Context(), all[0])), " ")
		if !strings.Contains(env, "TOKEN="+variable) || strings.Contains(env, variable+"\n") {
			t.Errorf("the environment of %s is %q", member, env)
		}
		return string(got[[]byte](t)(os.ReadFile(path))), source
	}
	value, source := look("web-0")
	if value != first {
		t.Errorf("the container has %q, want the first value", value)
	}
	if memory := strings.HasPrefix(source, "/run/") || strings.HasPrefix(source, "/dev/shm/"); !memory {
		t.Errorf("the file is at %s, want a folder in memory", source)
	}

	// Put two more versions, the second one while the members are still being updated to the first one. In the
	// end all members must have the newest version.
	if out := ctl(t, c, "secret", "put", "db", "--from-file", write("db", second)); !strings.Contains(out, "db version 2") || !strings.Contains(out, "web-0, web-1 updated to the new version") {
		t.Errorf("the answer to a new version is %q", out)
	}
	ctl(t, c, "secret", "put", "db", "--from-file", write("db", third))
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "2m")
	for _, member := range []string{"web-0", "web-1"} {
		must(t, testbed.Poll(t.Context(), settle, member+" with the newest value", func(context.Context) error {
			if ids, err := containerIDs(t.Context(), e, id, member); err != nil || len(ids) != 1 {
				return fmt.Errorf("containers %v, %w", ids, err)
			}
			if v, _ := look(member); v != third {
				return fmt.Errorf("the container has the secret %q", v)
			}
			return nil
		}))
	}
	if _, err := os.Stat(source); !os.IsNotExist(err) {
		t.Errorf("the file with the former value is still there: %v", err)
	}

	refused("is used by web-0, web-1", "secret", "rm", "db")
	refused("only with --show", "secret", "get", "db")
	if out := ctl(t, c, "secret", "get", "db", "--show", "--version", "2"); out != second {
		t.Errorf("secret get --show returned %q", out)
	}
	if out := ctl(t, c, "audit", "-o", "json"); !strings.Contains(out, "SecretShown") || !strings.Contains(out, "db version 2") {
		t.Errorf("the audit log does not have the call: %s", out)
	}
	var shown strings.Builder
	for _, args := range [][]string{
		{"secret", "list", "-o", "json"}, {"secret", "history", "db", "-o", "json"}, {"config", "list"}, {"plan", "-f", web, "-o", "json"}, {"get", "web-0", "-o", "yaml"},
		{"history", "web-0"}, {"events", "-o", "json"}, {"audit", "-o", "json"}, {"backup", "create", filepath.Join(c.Dir, "backup")},
	} {
		shown.WriteString(ctl(t, c, args...))
	}
	if !strings.Contains(shown.String(), `"db"`) {
		t.Errorf("no command or answer lists the secret: %s", shown.String())
	}
	for _, v := range []string{first, second, third, variable} {
		for _, s := range []string{v, base64.StdEncoding.EncodeToString([]byte(v))[:12]} {
			if strings.Contains(shown.String(), s) {
				t.Errorf("a command shows %s:\n%s", v, shown.String())
			}
			if found := got[string](t)(containsText(c.Dir, s)); found != "" {
				t.Errorf("%s holds the value %s", found, v)
			}
			for k, have := range got[map[string]string](t)(allKeys(t.Context(), kv)) {
				if strings.Contains(have, s) {
					t.Errorf("etcd: %s holds the value %s", k, v)
				}
			}
		}
	}

	stackUsesSecret(t, e, c, id, image, write)
	signalsOnChange(t, e, c, id, image, write)
	_, source = look("web-0")
	ctl(t, c, "delete", "web", "--wait", "--timeout", "2m")
	must(t, testbed.Poll(t.Context(), settle, "the end of the files", func(context.Context) error {
		if _, err := os.Stat(filepath.Dir(filepath.Dir(source))); !os.IsNotExist(err) {
			return fmt.Errorf("%s: %w", source, err)
		}
		return nil
	}))
	ctl(t, c, "secret", "rm", "db")
}

// stackUsesSecret runs a Compose stack of which one service uses the secret db. A new version of the secret
// recreates only the container of this service. An update of the other service recreates only the container
// of that service.
func stackUsesSecret(t *testing.T, e *harness.Engine, c *harness.Cluster, id, image string, write func(name, text string) string) {
	t.Helper()
	text := func(name, more string) string {
		return write(name, "name: shop\nservices:\n  db: {image: "+image+", secrets: [{source: pw, uid: \"1000\", gid: \"1001\", mode: 0400}]}\n"+
			"  front: {image: "+image+", configs: [own]"+more+"}\nsecrets: {pw: {external: true, name: db}}\nconfigs: {own: {content: inline}}\n")
	}
	file := text("shop.yaml", "")
	if out := ctl(t, c, "compose", "check", file, "-o", "json"); !strings.Contains(out, "secrets.pw") || !strings.Contains(out, "persysctl secret put db") {
		t.Errorf("persysctl compose check prints %s", out)
	}
	unknown := write("unknown.yaml", "name: shop\nservices: {db: {image: "+image+", secrets: [nope]}}\nsecrets: {nope: {external: true}}\n")
	if res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "apply", "-f", unknown)); res.Code == 0 || !strings.Contains(res.Stderr, "persysctl secret put nope") {
		t.Errorf("a stack with an unknown secret ended with exit %d: %s", res.Code, res.Stderr)
	}
	// containers returns the container of each service, and the secret in the container of db.
	containers := func() (out map[string]string, value string) {
		t.Helper()
		out = map[string]string{}
		for _, ctr := range got[[]engines.Summary](t)(e.Workload(t.Context(), id, "shop")) {
			out[ctr.Labels["com.docker.compose.service"]] = ctr.ID
		}
		if len(out) != 2 {
			t.Fatalf("the stack has the containers %v, want one of db and one of front", out)
		}
		root := func(service string) string {
			return fmt.Sprintf("/proc/%d/root", got[int](t)(e.PID(t.Context(), out[service])))
		}
		if own := got[[]byte](t)(os.ReadFile(root("front") + "/own")); string(own) != "inline" {
			t.Errorf("the inline config is %q", own)
		}
		path := root("db") + "/run/secrets/pw"
		info := got[os.FileInfo](t)(os.Stat(path))
		if owner := info.Sys().(*syscall.Stat_t); info.Mode() != 0o400 || owner.Uid != 1000 || owner.Gid != 1001 {
			t.Errorf("the secret in the stack has mode %s and owner %d:%d, want 0400 and 1000:1001", info.Mode(), owner.Uid, owner.Gid)
		}
		raw := got[[]byte](t)(exec.CommandContext(t.Context(), "docker", "inspect", out["db"]).Output())
		value = string(got[[]byte](t)(os.ReadFile(path)))
		if strings.Contains(string(raw), value) {
			t.Error("docker inspect shows the value of a secret of a stack")
		}
		return out, value
	}
	const next = "st4ck-c4nary"
	ctl(t, c, "apply", "-f", file, "--wait", "--timeout", "2m")
	before, old := containers()
	if out := ctl(t, c, "secret", "put", "db", "--from-file", write("db", next)); !strings.Contains(out, "shop") {
		t.Errorf("the answer to a new version is %q, want the stack in it", out)
	}
	must(t, testbed.Poll(t.Context(), settle, "another container of db", func(ctx context.Context) error {
		all, err := e.Workload(ctx, id, "shop")
		if err != nil || len(all) != 2 || slices.ContainsFunc(all, func(ctr engines.Summary) bool { return ctr.ID == before["db"] || ctr.State != engines.StateRunning }) {
			return fmt.Errorf("containers %v, %w", all, err)
		}
		return nil
	}))
	ctl(t, c, "rollout", "status", "web", "--wait", "--timeout", "2m")
	after, value := containers()
	if value != next || old == next {
		t.Errorf("the stack has %q after the new version, and had %q", value, old)
	}
	if after["db"] == before["db"] || after["front"] != before["front"] {
		t.Errorf("the containers were %v and are %v, want another one of db only", before, after)
	}
	ctl(t, c, "apply", "-f", text("more.yaml", ", environment: {A: b}"), "--wait", "--timeout", "2m")
	if last, _ := containers(); last["db"] != after["db"] || last["front"] == after["front"] {
		t.Errorf("the containers were %v and are %v after a change of front, want another one of front only", after, last)
	}
	if res := got[harness.CtlResult](t)(c.Ctl(t.Context(), "secret", "rm", "db")); res.Code == 0 || !strings.Contains(res.Stderr, "shop") {
		t.Errorf("a secret that a stack uses was deleted: %s", res.Stderr)
	}
	if found := got[string](t)(containsText(c.Dir, next)); found != "" {
		t.Errorf("%s holds the value of the stack", found)
	}
	ctl(t, c, "delete", "shop", "--wait", "--timeout", "2m")
}

// signalsOnChange: with on_change: signal, a new version replaces the value in the running containers of a
// container and of a stack, and signals them. With on_change: nothing, a container gets the new version only
// at its next start.
func signalsOnChange(t *testing.T, e *harness.Engine, c *harness.Cluster, id, image string, write func(name, text string) string) {
	t.Helper()
	put := func(name, value string) { ctl(t, c, "secret", "put", name, "--from-file", write(name, value)) }
	put("live", "l1ve-old-and-longer-c4nary")
	put("calm", "c4lm-old-c4nary")
	ctl(t, c, "apply", "-f", write("live.yaml", "id: live\nresources: {cpu: 10m, memory: 16Mi}\ncontainer:\n  image: "+image+
		"\n  on_change: nothing\n  secrets: [calm, {source: live, mode: 0400, uid: \"1000\", on_change: signal SIGHUP}]\n"), "--wait", "--timeout", "2m")
	ctl(t, c, "apply", "-f", write("both.yaml", "name: both\nservices:\n  a: {image: "+image+", secrets: [live]}\n  b: {image: "+image+"}\nsecrets: {live: {external: true, x-on-change: signal HUP}}\n"), "--wait", "--timeout", "2m")
	// look returns the secrets in the container of a workload, and whether the container got a signal. service is "" for a
	// workload that is no stack.
	look := func(ctx context.Context, workload, service string) (ctr, live, calm string, signalled bool, err error) {
		all, err := e.Workload(ctx, id, workload)
		if err != nil {
			return "", "", "", false, err
		}
		for _, one := range all {
			if one.Labels["com.docker.compose.service"] == service {
				ctr = one.ID
			}
		}
		pid, err := e.PID(ctx, ctr)
		if err != nil {
			return "", "", "", false, err
		}
		read := func(name string) string {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/secrets/%s", pid, name))
			return string(data)
		}
		out, err := exec.CommandContext(ctx, "docker", "logs", ctr).CombinedOutput()
		return ctr, read("live"), read("calm"), strings.Contains(string(out), "SIGHUP"), err
	}
	before := map[string]string{}
	for workload, service := range map[string]string{"live": "", "both": "a"} {
		ctr, live, _, signalled, err := look(t.Context(), workload, service)
		if must(t, err); live != "l1ve-old-and-longer-c4nary" || signalled {
			t.Errorf("workload %s has %q and was signalled: %v", workload, live, signalled)
		}
		before[workload] = ctr
	}
	put("calm", "c4lm-new-c4nary")
	put("live", "l1ve-new-c4nary")
	for workload, service := range map[string]string{"live": "", "both": "a"} {
		must(t, testbed.Poll(t.Context(), settle, workload+" with the new value and a signal", func(ctx context.Context) error {
			ctr, live, calm, signalled, err := look(ctx, workload, service)
			if ctr != before[workload] || calm != "" && calm != "c4lm-old-c4nary" {
				t.Fatalf("%s runs in %s with %q, want container %s and the old value of calm", workload, ctr, calm, before[workload])
			}
			if live != "l1ve-new-c4nary" || !signalled {
				return fmt.Errorf("the container has %q and was signalled: %v (%w)", live, signalled, err)
			}
			return nil
		}))
	}
	if _, _, _, signalled, err := look(t.Context(), "both", "b"); err != nil || signalled {
		t.Errorf("the service without the secret was signalled: %v, %v", signalled, err)
	}
	ctl(t, c, "restart", "live", "--wait", "--timeout", "2m")
	must(t, testbed.Poll(t.Context(), settle, "the new value of calm after a restart", func(ctx context.Context) error {
		_, live, calm, _, err := look(ctx, "live", "")
		if live != "l1ve-new-c4nary" || calm != "c4lm-new-c4nary" {
			return fmt.Errorf("after the restart the container has %q and %q: %w", live, calm, err)
		}
		return nil
	}))
	ctl(t, c, "delete", "live", "both", "--wait", "--timeout", "2m")
}

// containerIDs returns the ids of the containers of a workload.
func containerIDs(ctx context.Context, e *harness.Engine, cluster, workload string) (out []string, err error) {
	all, err := e.Workload(ctx, cluster, workload)
	for _, ctr := range all {
		out = append(out, ctr.ID)
	}
	return out, err
}
