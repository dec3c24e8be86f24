package spec

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

func TestReferencesToObjectsAreChecked(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"secrets: [a/b]", "f:4:13: container.secrets[0]: must be the name of a secret"},
		{"secrets: [a, a]", "container.secrets[1].target: is already mounted by spec.container.secrets[0].target"},
		{"secrets: [{source: a, target: /x/}]", "container.secrets[0].target: must be the path of a file"},
		{"configs: [{source: a, target: etc/x}]", "container.configs[0].target: must be an absolute path"},
		{"secrets: [{source: a, uid: root}]", "container.secrets[0].uid: must be a number"},
		{"secrets: [{source: a, mode: 01777}]", "container.secrets[0].mode: must be 0 to 0777"},
		{"secrets: [{source: a, mode: 0999}]", "f:4:31: container.secrets[0].mode: must be permission bits"},
		{"configs: [{source: a, target: /data/x}]\n  volumes: ['/srv:/data/x']", "is already mounted by spec.container.volumes[0].container_path"},
		{"env: {A: x}\n  env_secrets: {A: a}", "f:5:17: container.env_secrets.A: is set by spec.container.env too"},
		{"env_configs: {A: a}\n  env_secrets: {A: b}", "container.env_configs.A: is set by spec.container.env_secrets.A too"},
		{"env_secrets: {A=B: a}", "container.env_secrets.A=B: names must be 1 to 256"},
		{"secrets: [a]\n  on_change: reload", "container.on_change: must be restart, nothing or a signal"},
		{"secrets: [{source: a, on_change: signal}]", "container.secrets[0].on_change: must be restart, nothing or a signal"},
		{"secrets: [{source: a, on_change: signal HOP}]", "container.secrets[0].on_change: must be restart, nothing or a signal"},
		{"secrets: [{source: a, on_change: nothing}]\n  env_secrets: {T: a}", "uses secret a with another on_change than"},
		{"secrets: [a]\n  env_secrets: {T: b}\n  on_change: signal SIGHUP", "cannot be a signal, because the environment of a running container does not change"},
		{"on_change: nothing", "container.on_change: needs secrets or configs"},
	} {
		_, err := Parse("f", []byte("id: a\ncontainer:\n  image: x\n  "+c.words+"\n"), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("a container with %q returned error %v, want an error that contains %s", c.words, err, c.want)
		}
	}
}

func TestPutsListTheirObjects(t *testing.T) {
	req := parseOne(t, "id: web\ncount: 2\nupdate: {}\ncontainer:\n  image: x\n  secrets: [b, {source: a, target: x, mode: 0400}]\n  configs: [a]\n  env_secrets: {T: b}\n")
	prepared, err := Prepare(req, nil)
	if err != nil {
		t.Fatal(err)
	}
	puts := prepared.Command.GetPutWorkloads()
	for _, p := range puts.GetWorkloads() {
		var names []string
		for _, u := range p.GetObjects() {
			names = append(names, u.GetKind()+"/"+u.GetName())
		}
		if got := strings.Join(names, " "); got != "config/a secret/a secret/b" {
			t.Errorf("the command for workload %s lists the objects %s, want config a and secrets a and b", p.GetId(), got)
		}
		if p.GetUpdate() == nil {
			t.Errorf("the command for workload %s has no update policy, which the group needs when an object gets a new version", p.GetId())
		}
	}
	s, err := Unseal("web-0", puts.GetWorkloads()[0].GetSpec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := s.GetContainer()
	if f := c.GetSecrets()[1]; f.GetTarget() != "/run/secrets/x" || f.GetMode() != 0o400 || f.GetUid() != "0" {
		t.Errorf("the second secret is normalised to %v, want the path /run/secrets/x, mode 0400 and uid 0", f)
	}
	if f := c.GetConfigs()[0]; f.GetTarget() != "/a" || f.GetMode() != 0o444 {
		t.Errorf("the config is normalised to %v, want the path /a and mode 0444", f)
	}
	out := &agentv1.ContainerSpec{}
	order := func(c *agentv1.ContainerSpec) *agentv1.WorkloadSpec {
		return &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: c}}
	}
	if err := AddObjects(order(out), s, func(kind, name string) (ObjectValue, error) {
		return ObjectValue{Data: []byte(kind + name + "\n")}, nil
	}); err != nil {
		t.Fatal(err)
	}
	if out.GetEnv()["T"] != "secretb" || string(out.GetMemoryFiles()[2].GetData()) != "configa\n" {
		t.Errorf("the order for the agent is %v, want the values of all objects", out)
	}
	for value, want := range map[string]string{"a\x00b": "bytes that an environment variable cannot have", strings.Repeat("x", 200<<10): "use it as a file", strings.Repeat("x", 1<<20): "more than 2097152 bytes together"} {
		err := AddObjects(order(&agentv1.ContainerSpec{}), s, func(string, string) (ObjectValue, error) { return ObjectValue{Data: []byte(value)}, nil })
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), value) {
			t.Errorf("AddObjects with a value of %d bytes returned %v, want an error with %q and without the value", len(value), err, want)
		}
	}
}

func TestObjectsOfAStack(t *testing.T) {
	mode := uint32(0o400)
	loaded := &LoadedStack{Objects: []*controlv1.StackObject{
		{Service: "db", Kind: "secret", File: &controlv1.ObjectFile{Source: "pw", Target: "/run/secrets/pw", Uid: "7", Gid: "8", Mode: &mode}},
		{Service: "web", Kind: "config", File: &controlv1.ObjectFile{Source: "site", Target: "/site", Uid: "0", Gid: "0", Mode: &mode}},
	}}
	req := &controlv1.ApplyWorkloadRequest{WorkloadId: "shop", Spec: &controlv1.WorkloadSpec{Type: TypeCompose, Workload: &controlv1.WorkloadSpec_Compose{
		Compose: &controlv1.ComposeSpec{InlineYaml: "services: {db: {image: a}, web: {image: b}}", Objects: []*controlv1.StackObject{{Service: "forged", Kind: "secret"}}},
	}}}
	key := testKey(t)
	prepared, err := PrepareWith(req, key, Defaults{Stack: func() (*LoadedStack, error) { return loaded, nil }})
	if err != nil {
		t.Fatal(err)
	}
	put := prepared.Command.GetPutWorkloads().GetWorkloads()[0]
	var uses []string
	for _, u := range put.GetObjects() {
		uses = append(uses, u.GetKind()+" "+u.GetName())
	}
	if got := strings.Join(uses, ", "); got != "config site, secret pw" {
		t.Errorf("the stack uses the objects %s, want only the secrets and configs that its Compose file declares as external", got)
	}
	s, err := Unseal("shop", put.GetSpec(), key)
	if err != nil {
		t.Fatal(err)
	}
	order := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{}}}
	if err := AddObjects(order, s, func(kind, name string) (ObjectValue, error) {
		return ObjectValue{Data: []byte(name), Version: 3}, nil
	}); err != nil {
		t.Fatal(err)
	}
	want := &agentv1.MemoryFile{Service: "db", Target: "/run/secrets/pw", Uid: 7, Gid: 8, Mode: mode, Data: []byte("pw"), ValueId: "secret/pw/3"}
	if files := order.GetCompose().GetMemoryFiles(); len(files) != 2 || !proto.Equal(files[0], want) {
		t.Errorf("the order to the agent has the files %v; the first must be %v", files, want)
	}
	err = UnknownObjects(s, func(kind, _ string) bool { return kind == "config" })
	if err == nil || !strings.Contains(err.Error(), "services.db.secrets: secret pw does not exist in this namespace: persysctl secret put pw") {
		t.Errorf("UnknownObjects for a stack with an unknown secret returned %v, want an error with the command that creates the secret", err)
	}
	loaded.Objects[0].File.Gid = "9"
	if again, _ := PrepareWith(req, key, Defaults{Stack: func() (*LoadedStack, error) { return loaded, nil }}); again.Content == prepared.Content {
		t.Error("another group (gid) of a secret's file must change the content hash, but does not")
	}
}

// TestOnChange: a secret without its own on_change takes that of the container. Specifications that mean the same have
// the same content hash, whichever way they write on_change.
func TestOnChange(t *testing.T) {
	prepared := func(words string) Prepared {
		t.Helper()
		p, err := Prepare(parseOne(t, "id: web\ncontainer:\n  image: a\n  "+words+"\n"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	uses := func(p Prepared) (out string) {
		for _, u := range p.Command.GetPutWorkloads().GetWorkloads()[0].GetObjects() {
			out += fmt.Sprintf("%s %v %q; ", u.GetName(), u.GetKeep(), u.GetSignal())
		}
		return out
	}
	mixed := prepared("secrets: [a, {source: b, on_change: restart}, {source: c, on_change: nothing}]\n  on_change: signal hup\n")
	if got, want := uses(mixed), `a true "SIGHUP"; b false ""; c true ""; `; got != want {
		t.Errorf("the workload uses the objects %s, want %s", got, want)
	}
	s, err := Unseal("web", mixed.Command.GetPutWorkloads().GetWorkloads()[0].GetSpec(), nil)
	if err != nil {
		t.Fatal(err)
	}
	order := &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Container{Container: &agentv1.ContainerSpec{}}}
	if err := AddObjects(order, s, func(string, string) (ObjectValue, error) { return ObjectValue{}, nil }); err != nil {
		t.Fatal(err)
	}
	if files := order.GetContainer().GetMemoryFiles(); files[0].GetSignal() != "SIGHUP" || files[1].GetSignal() != "" || files[2].GetSignal() != "" {
		t.Errorf("the order has the files %v, want the signal SIGHUP for secret a only", files)
	}
	if again := prepared("secrets: [{source: a, on_change: 'signal SIGHUP'}, {source: b, on_change: ''}, {source: c, on_change: nothing}]\n"); uses(again) != uses(mixed) {
		t.Errorf("two spellings of the same on_change give the object uses %s and %s, want the same", uses(again), uses(mixed))
	}
	if one, other := prepared("secrets: [{source: a, on_change: 'signal SIGHUP'}]\n  on_change: signal SIGHUP"), prepared("secrets: [a]\n  on_change: Signal HUP"); one.Content != other.Content {
		t.Error("two spellings of the same on_change have different content hashes, want the same")
	}
	if prepared("secrets: [a]").Content == prepared("secrets: [{source: a, on_change: nothing}]").Content {
		t.Error("another on_change must change the content hash, but does not")
	}
}
