package rpc

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	agentv1 "github.com/persys/compute/api/agent/v1"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/sched"
	"github.com/persys/compute/stack"
)

// usesSecret returns a request for a container that uses secret db as a file and config site as a variable.
func usesSecret() *controlv1.ApplyWorkloadRequest {
	r := web("web")
	c := r.GetSpec().GetContainer()
	c.Secrets = []*controlv1.ObjectFile{{Source: "db", Uid: "1000", Mode: new(uint32(0o400))}}
	c.EnvConfigs = map[string]string{"SITE": "site"}
	return r
}

func TestSecretsGoWithTheOrder(t *testing.T) {
	const value = "c4nary"
	for _, protocol := range []uint32{0, 1} {
		g := newGroup(t, 1)
		f := g.agent(t, protocol)
		f.apply = func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
			return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
		}
		k := g.cluster(0)
		resp, err := g.control(0).ApplyWorkload(ctxFor(t), usesSecret())
		ok(t, err)
		for _, want := range []string{"spec.container.secrets[0].source: secret does not exist in this namespace: persysctl secret put db", "spec.container.env_configs.SITE: config does not exist"} {
			if resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), want) {
				t.Errorf("an apply with a secret and a config that do not exist returned %v, want a refusal with %q", resp, want)
			}
		}
		put, err := k.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: "secret", Name: "db", Data: []byte(value)})
		ok(t, err)
		is(t, "version of the secret after the first put", put.GetVersion(), 1)
		ok(t, second(k.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: "config", Name: "site", Data: []byte("blue\n")})))
		o, _ := g.view().Object("default", fsm.KindSecret, "db")
		if bytes.Contains(o.Present().Data, []byte(value)) {
			t.Errorf("the state stores the secret as %s, want a sealed (encrypted) value", o.Present().Data)
		}
		plan, err := k.PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{usesSecret()}})
		ok(t, err)
		is(t, "planned", plan.GetWorkloads()[0].GetAction(), "create")
		g.put(t, usesSecret(), "n")
		plan, err = k.PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{usesSecret()}})
		ok(t, err)
		is(t, "planned action after the apply", plan.GetWorkloads()[0].GetAction(), "unchanged")
		w, _ := g.view().Workload("web")
		ack, err := g.replicas[0].server.agents.Deliver(ctxFor(t), epoch, sched.Order{Op: sched.OpApply, Node: "n", Workload: "web", Generation: w.Generation})
		ok(t, err)
		if protocol == 0 {
			if !ack.Refused || !strings.Contains(ack.Message, "memory_files") || f.applied() != 0 {
				t.Errorf("the order to a legacy v1 agent returned %+v, want a refusal, because the container gets secrets as files", ack)
			}
			continue
		}
		c := f.applies[0].GetSpec().GetContainer()
		file := c.GetMemoryFiles()[0]
		if file.GetTarget() != "/run/secrets/db" || file.GetUid() != 1000 || file.GetMode() != 0o400 || string(file.GetData()) != value || c.GetEnv()["SITE"] != "blue" {
			t.Errorf("the order has the file %v and the environment %v, want the values of the secret and the config", file, c.GetEnv())
		}
		put, err = k.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: "secret", Name: "db", Data: []byte("other")})
		ok(t, err)
		is(t, "workloads that the new version of the secret updates", strings.Join(put.GetWorkloadIds(), " "), "web")
		back, err := k.RollBackObject(ctxFor(t), &clusterv1.RollBackObjectRequest{Kind: "secret", Name: "db"})
		ok(t, err)
		is(t, "version of the secret after a rollback", back.GetVersion(), 3)
		shown, err := k.ShowSecret(ctxFor(t), &clusterv1.GetObjectValueRequest{Name: "db"})
		ok(t, err)
		is(t, "value of the secret after a rollback", string(shown.GetData()), value)
		var audited *fsm.Event
		g.view().EventsBack(func(e *fsm.Event) bool {
			if e.Type == fsm.EventSecretShown {
				audited = e
			}
			return audited == nil
		})
		if audited == nil || audited.In() != "default" || audited.Message != "db version 3" {
			t.Errorf("the audit event of ShowSecret is %+v, want one about version 3 of secret db in namespace default", audited)
		}
		code(t, second(k.DeleteObject(ctxFor(t), &clusterv1.DeleteObjectRequest{Kind: "secret", Name: "db"})), codes.FailedPrecondition)
	}
}

// TestExternalObjectsOfAStack: the services of an inline stack use secrets and configs of the namespace. When a user
// puts a new version of one of them, the stack must get a new revision.
func TestExternalObjectsOfAStack(t *testing.T) {
	const text = "services:\n  db: {image: a, secrets: [{source: pw, uid: \"7\", mode: 0400}]}\n  web: {image: b, configs: [c]}\nsecrets:\n  pw: {external: true, name: db}\nconfigs:\n  c: {content: inline}\n"
	g := newGroup(t, 1, withStacks(stack.Options{}))
	f := g.agent(t, 1)
	f.apply = func(*agentv1.ApplyWorkloadRequest) (*agentv1.ApplyWorkloadResponse, error) {
		return &agentv1.ApplyWorkloadResponse{Applied: true}, nil
	}
	k := g.cluster(0)
	resp, err := g.control(0).ApplyWorkload(ctxFor(t), composeRequest("shop", text))
	ok(t, err)
	if want := "services.db.secrets: secret db does not exist in this namespace: persysctl secret put db"; resp.GetSuccess() || !strings.Contains(resp.GetErrorMessage(), want) {
		t.Fatalf("an apply of a stack with a secret that does not exist returned %v, want a refusal with %q", resp, want)
	}
	put := func(value string) *clusterv1.ObjectResponse {
		t.Helper()
		r, err := k.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: "secret", Name: "db", Data: []byte(value)})
		ok(t, err)
		return r
	}
	order := func() *agentv1.MemoryFile {
		t.Helper()
		w, _ := g.view().Workload("shop")
		ack, err := g.replicas[0].server.agents.Deliver(ctxFor(t), epoch, sched.Order{Op: sched.OpApply, Node: "n", Workload: "shop", Generation: w.Generation})
		ok(t, err)
		if ack.Refused || f.applied() == 0 {
			t.Fatalf("the agent answered the order with %+v, want the order accepted", ack)
		}
		files := f.applies[len(f.applies)-1].GetSpec().GetCompose().GetMemoryFiles()
		if len(files) != 1 {
			t.Fatalf("the order has %d files, want 1", len(files))
		}
		return files[0]
	}
	put("first")
	g.put(t, composeRequest("shop", text), "n")
	file := order()
	if file.GetService() != "db" || file.GetTarget() != "/run/secrets/pw" || file.GetUid() != 7 || file.GetMode() != 0o400 || string(file.GetData()) != "first" || file.GetValueId() != "secret/db/1" {
		t.Errorf("the order has the file %v, want the first version of secret db for service db", file)
	}
	before, _ := g.view().Workload("shop")
	is(t, "workloads that the second version of the secret updates", strings.Join(put("second").GetWorkloadIds(), " "), "shop")
	after, _ := g.view().Workload("shop")
	if before.Content == after.Content {
		t.Error("the content hash of the stack is the same with another version of its secret, want another hash")
	}
	if file = order(); string(file.GetData()) != "second" || file.GetValueId() != "secret/db/2" {
		t.Errorf("the order after the second put of the secret has the file %v, want the second version of the secret", file)
	}
	plan, err := k.PlanWorkloads(ctxFor(t), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{composeRequest("shop", text)}})
	ok(t, err)
	is(t, "planned action of the same stack after the update", plan.GetWorkloads()[0].GetAction(), "unchanged")
	code(t, second(k.DeleteObject(ctxFor(t), &clusterv1.DeleteObjectRequest{Kind: "secret", Name: "db"})), codes.FailedPrecondition)
}

// TestAgentWithoutMemoryFiles: a container gets secrets as files, which must never be on disk. If the agent of its
// node is too old to keep files in memory, the agent must get no order.
func TestAgentWithoutMemoryFiles(t *testing.T) {
	g := newGroup(t, 1)
	f := g.agent(t, 1)
	k := g.cluster(0)
	for _, kind := range []string{"secret", "config"} {
		ok(t, second(k.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: kind, Name: map[string]string{"secret": "db", "config": "site"}[kind], Data: []byte("x")})))
	}
	g.put(t, usesSecret(), "n")
	w, _ := g.view().Workload("web")
	if !w.Demand.MemoryFiles {
		t.Error("the demand of a workload with a secret as a file does not have the field MemoryFiles set")
	}
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "n", Endpoint: f.addr, CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"container"}, Protocol: 1, AgentVersion: "v8",
	}}})
	ack, err := g.replicas[0].server.agents.Deliver(ctxFor(t), epoch, sched.Order{Op: sched.OpApply, Node: "n", Workload: "web", Generation: w.Generation})
	ok(t, err)
	if !ack.Refused || !strings.Contains(ack.Message, "tmpfs") || f.applied() != 0 {
		t.Errorf("the order to an agent that would ignore files in memory returned %+v, want a refusal", ack)
	}
}

// TestRepeatedPutOfASecret: a caller sends the same request id again with another value of the secret. The call must
// be refused. The stored hash of the request must depend on the cluster key, so that it does not reveal the value.
func TestRepeatedPutOfASecret(t *testing.T) {
	g := newGroup(t, 1)
	g.elect(0)
	k := g.cluster(0)
	req := func(value string) *clusterv1.PutObjectRequest {
		return &clusterv1.PutObjectRequest{Kind: "secret", Name: "db", Data: []byte(value), RequestId: "0193f3a0-0000-7000-8000-000000000001"}
	}
	first := req("a")
	first.RequestId = requestID(t)
	r, err := k.PutObject(ctxFor(t), first)
	ok(t, err)
	again := req("a")
	again.RequestId = first.RequestId
	same, err := k.PutObject(ctxFor(t), again)
	ok(t, err)
	is(t, "the version of a repeated request", same.GetVersion(), r.GetVersion())
	other := req("b")
	other.RequestId = first.RequestId
	code(t, second(k.PutObject(ctxFor(t), other)), codes.InvalidArgument)
	var hashes []uint64
	for range 2 {
		key, err := pki.NewKey()
		ok(t, err)
		hashes = append(hashes, objectHash(caller{id: pki.Anonymous()}.subject(), first, key))
	}
	if len(slices.Compact(hashes)) != 2 {
		t.Errorf("the hashes of a request under two cluster keys are %v, want two different hashes", hashes)
	}
	key, err := g.replicas[0].server.cfg.Keys.Key()
	ok(t, err)
	id := uuid.MustParse(first.GetRequestId())
	if r, known := g.view().Receipt(id, objectHash(caller{id: pki.Anonymous()}.subject(), first, key)); !known || r.Kind == fsm.OtherRequest {
		t.Errorf("the receipt must have the keyed hash of the request, but is %+v (found: %v)", r, known)
	}
	if r, _ := g.view().Receipt(id, requestHash(caller{id: pki.Anonymous()}.subject(), clusterv1.Cluster_PutObject_FullMethodName, first)); r.Kind != fsm.OtherRequest {
		t.Errorf("the receipt has a hash of the request that does not depend on the cluster key: %+v", r)
	}
	if h := hashOfCall(ctxFor(t), &call{}, clusterv1.Cluster_PutObject_FullMethodName, first); h != 0 {
		t.Error("a forwarded put of a secret carries a hash of the value that does not depend on the cluster key, want no hash")
	}
	if h := hashOfCall(ctxFor(t), &call{}, clusterv1.Cluster_PutObject_FullMethodName, &clusterv1.PutObjectRequest{Kind: "config"}); h == 0 {
		t.Error("a forwarded put of a config carries no hash of the request, want one")
	}
	code(t, second(k.PutObject(ctxFor(t), &clusterv1.PutObjectRequest{Kind: "config", Name: "c", Data: bytes.Repeat([]byte("x"), fsm.MaxObjectBytes+1)})), codes.InvalidArgument)
}

// TestSecretUnderALostKey: an admin rolls a secret back to a version that was encrypted with a cluster key that is
// lost. The call must be refused, and the error must name this cause.
func TestSecretUnderALostKey(t *testing.T) {
	key, err := pki.NewKey()
	ok(t, err)
	other, err := pki.NewKey()
	ok(t, err)
	sealed, err := other.Seal([]byte("x"), objectContext("default", "secret", "db"))
	ok(t, err)
	o := &fsm.Object{Kind: fsm.KindSecret, Name: "db", Versions: []fsm.ObjectVersion{{Number: 1, Data: []byte(sealed)}}}
	if _, err := openObject(o, &o.Versions[0], key); err == nil || !strings.Contains(err.Error(), "sealed under another cluster key") {
		t.Errorf("opening a value that was sealed under another cluster key returned %v, want an error that says so", err)
	}
	if _, err := openObject(&fsm.Object{Kind: fsm.KindSecret, Name: "other"}, &fsm.ObjectVersion{Data: []byte(sealed)}, other); err == nil {
		t.Error("a sealed value of secret \"db\" could be opened as the value of another secret")
	}
}
