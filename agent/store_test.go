package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/pki"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/sim"
	"github.com/persys/compute/agent/runner"
	"github.com/persys/compute/agent/spec"
	"github.com/persys/compute/agent/store"
	"github.com/persys/compute/testbed"
)

// legacyFile writes a state file as a legacy v1 agent does (contract/state-etcd.md).
func legacyFile(t *testing.T, path, spec string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for bucket, values := range map[string]map[string]string{
			"workloads": {"web": `{"id":"web","type":"container","revision_id":"rev-9","desired_state":"running",
				"spec":` + spec + `,"created_at":"2026-01-02T03:04:05.678Z","updated_at":"2026-01-02T03:04:06Z"}`},
			"status": {"web": `{"id":"web","type":"container","revision_id":"rev-9","desired_state":"running","actual_state":"running",
				"message":"up","created_at":"2026-01-02T03:04:05Z","updated_at":"2026-01-02T03:04:06Z","metadata":{"container.id":"abc"},"usage":null}`},
			"volumes":     {"local:data": `{"id":"local:data"}`},
			"attachments": {},
		} {
			b, err := tx.CreateBucket([]byte(bucket))
			if err != nil {
				return err
			}
			for k, v := range values {
				if err := b.Put([]byte(k), []byte(v)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// legacyInstance runs an instance with the labels of a legacy v1 agent.
func legacyInstance(t *testing.T, r *rig, id, revision string) {
	t.Helper()
	dir := t.TempDir()
	engine, err := sim.NewEngine(sim.Options{Dir: dir, EngineID: "engine-1"})
	if err != nil {
		t.Fatal(err)
	}
	err = engine.Driver(driver.Identity{ClusterID: "any", NodeID: "node-a"}).Ensure(context.Background(), driver.Spec{
		ID: driver.ID(id), Revision: revision, Content: "none", ClusterID: "any", NodeID: "node-a", Running: true, Body: container("sim/run"),
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "records", id+".json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(raw, &record); err != nil {
		t.Fatal(err)
	}
	record["labels"] = map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: id, driver.LabelRevision: revision}
	if raw, err = json.Marshal(record); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r.engine = engine
}

func TestALegacyFileIsTakenOver(t *testing.T) {
	for _, c := range []struct{ name, spec string }{
		{"a record that contains the fields of the specification directly", `{"image":"sim/run","env":{"TOKEN":"hunter2"},"resources":{"cpu_shares":250,"memory_bytes":67108864},"unknown":1}`},
		{"a record that contains the specification under the name of its type", `{"container":{"image":"sim/run","env":{"TOKEN":"hunter2"},"resources":{"cpu_shares":250,"memory_bytes":67108864}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			legacyFile(t, r.cfg.StatePath, c.spec)
			legacyInstance(t, r, "web", "rev-9")
			before := r.observed("web").RuntimeID
			r.start()
			r.reaches("web", running)
			same := func(q *agentv1.ApplyWorkloadRequest) {
				spec := q.Spec.GetContainer()
				spec.Env = map[string]string{"TOKEN": "hunter2"}
				spec.Resources = &agentv1.ResourceLimits{CpuShares: 250, MemoryBytes: 67108864}
			}
			if out := r.apply("web", "sim/run", content("c1:a"), revision("c1-1"), same, by(1), at(1)); !out.Skipped {
				t.Errorf("an order of our scheduler with the same specification must be skipped, got %v", out)
			}
			st := r.reaches("web", running)
			if st.Content != "c1:a" || st.Generation.GetSequence() != 1 || st.CreatedAt != 1767323045 {
				t.Errorf("the status of the workload of the legacy v1 agent is %v", st)
			}
			r.halt()
			raw, err := os.ReadFile(r.cfg.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(raw), "local:data") {
				t.Error("the bucket volumes of the legacy v1 agent is gone")
			}
			r.start()
			r.reaches("web", running)
			if after := r.observed("web").RuntimeID; after != before || r.hooks.count("ensure web") != 0 {
				t.Errorf("the instance %s of the legacy v1 agent became %s after %d calls of Ensure, want the same instance and no call", before, after, r.hooks.count("ensure web"))
			}
		})
	}
}

// Agents before this version encrypted the environment of a Compose stack in their store, but not its text and the
// URL of its repository. This agent encrypts all three when it starts with such a store.
func TestAStackOfAnEarlierVersionIsSealed(t *testing.T) {
	r := newRig(t).start()
	r.halt()
	key, _, err := pki.LoadOrCreateKey(r.cfg.StatePath + ".key")
	if err != nil {
		t.Fatal(err)
	}
	env, err := key.Seal([]byte("swordfish"), []byte("shop\x00compose.env.TOKEN"))
	if err != nil {
		t.Fatal(err)
	}
	record := func(in map[string]any) string { // record stores a record and returns what is then on the disk
		t.Helper()
		db, err := bolt.Open(r.cfg.StatePath, 0o600, &bolt.Options{Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var raw []byte
		err = db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("workloads"))
			if in != nil {
				text, err := json.Marshal(in)
				if err != nil {
					return err
				}
				if err := b.Put([]byte("shop"), text); err != nil {
					return err
				}
			}
			raw = bytes.Clone(b.Get([]byte("shop")))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	const text, repo = "services: {a: {image: x, environment: {TOKEN: hunter2}}}", "https://user:hunter2@git.example/stack.git"
	arm, err := json.Marshal(map[string]any{"compose_yaml": text, "git_repo": repo, "env": map[string]string{"TOKEN": env}})
	if err != nil {
		t.Fatal(err)
	}
	old := map[string]any{"id": "shop", "type": "compose", "revision_id": "1", "desired_state": "stopped", "spec": json.RawMessage(arm),
		"sealed_by": key.ID(), "spec_hash": "a1:x", "engine_content": "a1:x"}
	if before := record(old); !strings.Contains(before, "hunter2") {
		t.Fatalf("the record that the test wrote is not like that of an earlier version: %s", before)
	}
	for range 2 { // in the second round the agent reads the record that it sealed in the first
		a, err := New(r.cfg, r.factory)
		if err != nil {
			t.Fatal(err)
		}
		in := a.runner.State().Intent("shop")
		got := spec.Of(in).GetCompose()
		if got.ComposeYaml != text || got.GitRepo != repo || got.Env["TOKEN"] != "swordfish" || in.EngineContent != "a1:x" {
			t.Errorf("the intent that was read from the file differs: %v, content %s", got, in.EngineContent)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if after := record(nil); strings.Contains(after, "hunter2") || after == "" {
			t.Errorf("the record on disk has the secret in plain text: %s", after)
		}
	}
}

func TestStateFileErrorsNameTheFile(t *testing.T) {
	t.Run("the state file is in use by another agent", func(t *testing.T) {
		r := newRig(t).start()
		_, err := New(r.cfg, r.factory)
		if err == nil || !strings.Contains(err.Error(), r.cfg.StatePath) || !strings.Contains(err.Error(), "in use by another agent") {
			t.Errorf("New returned %v, want an error that names the state file and says that another agent uses it", err)
		}
	})
	used := func(t *testing.T) *rig {
		r := newRig(t).start()
		r.apply("web", "sim/run")
		r.reaches("web", running)
		r.halt()
		return r
	}
	t.Run("key file lost", func(t *testing.T) {
		r := used(t)
		if err := os.Remove(r.cfg.StatePath + ".key"); err != nil {
			t.Fatal(err)
		}
		_, err := New(r.cfg, r.factory)
		if err == nil || !strings.Contains(err.Error(), r.cfg.StatePath+".key is missing") {
			t.Errorf("New returned %v, want an error that names the missing key file", err)
		}
		if _, err := os.Stat(r.cfg.StatePath + ".key"); err == nil {
			t.Error("the agent made a new key file although the state file has sealed secrets")
		}
	})
	t.Run("the key file of another agent", func(t *testing.T) {
		r := used(t)
		if err := os.Remove(r.cfg.StatePath + ".key"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := pki.LoadOrCreateKey(r.cfg.StatePath + ".key"); err != nil {
			t.Fatal(err)
		}
		if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), "sealed under key") {
			t.Errorf("New returned %v, want an error that names the key with which the secrets were sealed", err)
		}
	})
	t.Run("not a state file", func(t *testing.T) {
		r := newRig(t)
		if err := os.WriteFile(r.cfg.StatePath, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), r.cfg.StatePath) {
			t.Errorf("New returned %v for a file that is no state file", err)
		}
	})
	for name, spoil := range map[string]func([]byte) []byte{
		"a truncated file":                 func(raw []byte) []byte { return raw[:2*4096] },
		"zeroes in the middle of the file": func(raw []byte) []byte { clear(raw[2*4096:]); return raw },
	} {
		t.Run(name, func(t *testing.T) {
			r := used(t)
			raw, err := os.ReadFile(r.cfg.StatePath)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(r.cfg.StatePath, spoil(raw), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), r.cfg.StatePath+": damaged") {
				t.Errorf("New returned %v for a damaged state file", err)
			}
		})
	}
	t.Run("the error for a broken record names the record", func(t *testing.T) {
		r := newRig(t)
		legacyFile(t, r.cfg.StatePath, `{"image":7}`)
		if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), `workload "web"`) {
			t.Errorf("New returned %v for a broken record, want an error that names the record", err)
		}
	})
	t.Run("another cluster in the configuration", func(t *testing.T) {
		r := newRig(t).start()
		r.apply("web", "sim/run", by(1), at(1))
		r.halt()
		r.cfg.ClusterID = "c2"
		if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), `"c1"`) || !strings.Contains(err.Error(), `"c2"`) {
			t.Errorf("New returned %v for a state file of another cluster", err)
		}
	})
	t.Run("workloads of another node", func(t *testing.T) {
		r := used(t)
		r.cfg.NodeID = "node-b"
		if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), "PERSYS_NODE_ID=node-a") {
			t.Errorf("New returned %v for a state file with workloads of another node", err)
		}
		r.cfg.NodeID = "node-a"
		r.start()
		r.delete("web")
		r.gone("web")
		r.halt()
		r.cfg.NodeID = "node-b" // an agent without workloads may start with another node id
		r.start()
		r.apply("web", "sim/run")
		r.halt()
		r.cfg.NodeID = "node-a"
		if _, err := New(r.cfg, r.factory); err == nil || !strings.Contains(err.Error(), "PERSYS_NODE_ID=node-b") {
			t.Errorf("New returned %v for a state file with another node id and no workloads", err)
		}
	})
	t.Run("only the owner can read the key file", func(t *testing.T) {
		r := used(t)
		info, err := os.Stat(r.cfg.StatePath + ".key")
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key file has mode %v, error %v; want 0600", info.Mode(), err)
		}
	})
}

// If the agent cannot write an order to disk, it answers with an error and not with a refusal, because the
// sender may try again.
func TestOrdersAreNotAcknowledgedWithoutDisk(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"), by(1), at(1))
	r.reaches("web", running)
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
	if err := errors.Join(r.a.runner.Flush(), r.a.store.Close()); err != nil {
		t.Fatal(err)
	}
	req := &agentv1.ApplyWorkloadRequest{Id: "web", Spec: container("sim/run:2"), Content: "c1:b", Epoch: epoch(2), Generation: gen(2)}
	if out, err := r.api.ApplyWorkload(context.Background(), req); err == nil {
		t.Errorf("acknowledged: %v", out)
	}
	if out, err := r.api.DeleteWorkload(context.Background(), &agentv1.DeleteWorkloadRequest{Id: "web", Epoch: epoch(2), Generation: gen(2)}); err == nil {
		t.Errorf("acknowledged: %v", out)
	}
	if e := r.a.Epoch(); e.Term != 1 {
		t.Errorf("the agent uses the epoch %v of an order, although it could not store this epoch on disk", e)
	}
	if o := r.observed("web"); o == nil || o.Content != "c1:a" {
		t.Errorf("an order that could not be stored was carried out: %v", o)
	}
	if err := r.stop(); err != nil && !strings.Contains(err.Error(), "not open") {
		t.Errorf("Run: %v", err)
	}
}

// The agent carries out an order to restart a workload, but cannot store that it did. It must restart the
// instance only once.
func TestARestartIsDoneOnceWithoutDisk(t *testing.T) {
	r := newRig(t).start()
	r.apply("web", "sim/run", content("c1:a"), revision("c1-0123456789abcdef"))
	r.reaches("web", running)
	r.hooks.set(func(h *hooks) {
		h.ensure = func(driver.Spec) error { return r.a.store.Close() } // the driver closes the state file, so no further write to it succeeds
	})
	r.apply("web", "sim/run", content("c1:a"), revision("c1-0123456789abcdef-r1"))
	r.reaches("web", running)
	r.until(func() bool { return r.a.runner.State().Depth() == 0 }, func() string { return "the work queue of the agent never becomes empty" })
	if n := r.hooks.count("halt web"); n != 1 {
		t.Errorf("for one order to restart, the agent stopped the instance %d times, want once", n)
	}
	stop := r.stop
	r.stop = func() error { // the stop of the agent returns the error "not open", because its last reports cannot be stored
		if err := stop(); err != nil && !strings.Contains(err.Error(), "not open") {
			return err
		}
		return nil
	}
}

// The type of a workload changes several times while the engine cannot remove its container. When the engine
// works again, the agent removes the instances of all previous types. At the end there is only an instance of
// the last type, or no instance if the workload was deleted.
func TestEveryFormerTypeIsRemoved(t *testing.T) {
	compose := func(r *rig) {
		r.apply("web", "", func(q *agentv1.ApplyWorkloadRequest) {
			q.Type, q.Spec = agentv1.WorkloadType_WORKLOAD_TYPE_COMPOSE, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Compose{Compose: &agentv1.ComposeSpec{ComposeYaml: "services: {a: {image: a}}"}}}
		})
	}
	vm := func(r *rig) {
		r.apply("web", "", func(q *agentv1.ApplyWorkloadRequest) {
			q.Type, q.Spec = agentv1.WorkloadType_WORKLOAD_TYPE_VM, &agentv1.WorkloadSpec{Spec: &agentv1.WorkloadSpec_Vm{Vm: &agentv1.VMSpec{Vcpus: 1, MemoryMb: 64}}}
		})
	}
	same := func(r *rig) { r.apply("web", "sim/run") }
	del := func(r *rig) { r.delete("web") }
	older := func(r *rig) { // rewrites the state file as an earlier version would have written it, with only one former type
		r.halt()
		db, err := bolt.Open(r.cfg.StatePath, 0o600, &bolt.Options{Timeout: time.Second})
		if err != nil {
			r.t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("workloads"))
			var in map[string]any
			if err := json.Unmarshal(b.Get([]byte("web")), &in); err != nil {
				return err
			}
			in["previous_type"] = in["previous_types"].([]any)[0]
			delete(in, "previous_types")
			text, err := json.Marshal(in)
			if err != nil {
				return err
			}
			return b.Put([]byte("web"), text)
		})
		if err := errors.Join(err, db.Close()); err != nil {
			r.t.Fatal(err)
		}
		r.start()
	}
	for _, c := range []struct {
		name  string
		stray bool // a container runs for which the agent has no order
		steps []func(*rig)
		runs  driver.Kind
	}{
		{"the type changed twice", false, []func(*rig){compose, vm}, driver.VM},
		{"the type changed and changed back", false, []func(*rig){compose, same}, driver.Container},
		{"the type changed twice and changed back", false, []func(*rig){compose, vm, same}, driver.Container},
		{"the type changed, the workload was deleted, the type changed again", false, []func(*rig){compose, del, vm}, driver.VM},
		{"the type changed twice and the workload was deleted", false, []func(*rig){compose, vm, del}, ""},
		{"the type changed under an earlier version of the agent", false, []func(*rig){compose, older, vm}, driver.VM},
		{"an instance without order was deleted, then ordered as another type", true, []func(*rig){del, vm}, driver.VM},
		{"an instance without order was ordered as another type", true, []func(*rig){vm}, driver.VM},
		{"an instance without order was ordered as another type, then deleted", true, []func(*rig){vm, del}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.RetryBase = 20 * time.Millisecond })
			engines := map[driver.Kind]*sim.Engine{driver.Container: r.engine}
			for _, k := range []driver.Kind{driver.Compose, driver.VM} {
				e, err := sim.NewEngine(sim.Options{EngineID: "engine-" + string(k), Kind: k})
				if err != nil {
					t.Fatal(err)
				}
				engines[k] = e
			}
			of := func(k driver.Kind) driver.Driver {
				return engines[k].Driver(driver.Identity{ClusterID: Unbound, NodeID: r.cfg.NodeID, Owns: func(driver.ID) bool { return true }})
			}
			r.make = func(Binding) ([]driver.Driver, error) {
				return []driver.Driver{hooked{of(driver.Container), r.hooks}, of(driver.Compose), of(driver.VM)}, nil
			}
			if c.stray {
				if err := of(driver.Container).Ensure(t.Context(), driver.Spec{ID: "web", Revision: "r", Content: "c1:s", ClusterID: Unbound, NodeID: r.cfg.NodeID, Running: true, Body: container("sim/run")}); err != nil {
					t.Fatal(err)
				}
				r.start()
			} else {
				r.start()
				same(r)
			}
			r.reaches("web", running)
			before := r.observed("web").RuntimeID
			r.hooks.set(func(h *hooks) {
				h.remove = func(driver.ID) error { return driver.Errorf(driver.RuntimeUnhealthy, "remove", "it restarts") }
			})
			for _, step := range c.steps {
				step(r)
			}
			r.hooks.set(func(h *hooks) { h.remove = nil })
			var wrong string
			r.until(func() bool {
				wrong = ""
				for k := range engines {
					list, err := of(k).List(t.Context())
					if want := k == c.runs; err != nil || len(list) > 0 != want || want && k == driver.Container && list[0].RuntimeID == before {
						wrong += fmt.Sprintf("engine %s has instances %+v, error %v; want a new instance on that engine: %t. ", k, list, err, want)
					}
				}
				return wrong == ""
			}, func() string { return wrong })
			if c.stray && len(c.steps) == 1 && r.hooks.count("leave web") == 0 {
				t.Error("the volumes of an instance without order were removed, although nobody ordered its delete")
			}
		})
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	r := newRig(t).start()
	r.delete("young", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(1), gen(1) })
	r.delete("old", func(d *agentv1.DeleteWorkloadRequest) { d.Epoch, d.Generation = epoch(1), gen(2) })
	tomb := func(id string) *core.Tombstone { return r.a.runner.State().Tombstone(id) }
	r.until(func() bool { return tomb("young").Done && tomb("old").Done }, func() string { return "the agent does not complete the two deletes" })
	const week = 7 * 24 * time.Hour
	r.halt()
	later, _ := core.Step(r.a.runner.State(), core.Input{Now: time.Now().Add(week - time.Minute), Event: core.Prune{}})
	if later.Tombstone("young") == nil || later.Tombstone("old") == nil {
		t.Error("a tombstone was dropped before 7 days had passed")
	}
	old := *tomb("old")
	old.DeletedAt = time.Now().Add(-week - time.Minute)
	s, err := store.Open(r.cfg.StatePath, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Write(core.Store{Tombstones: []*core.Tombstone{&old}}), s.Close()); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.a.runner.Sweep()
	r.restart()
	if out := r.apply("young", "sim/run", by(1), at(1)); out.Applied {
		t.Error("the agent dropped a tombstone that is younger than 7 days")
	}
	if tomb("old") != nil {
		t.Error("the agent kept a tombstone that is older than 7 days")
	}
}

func TestNodeIDDefaultsToTheHostName(t *testing.T) {
	host, err := os.Hostname()
	testbed.Need(t, "a host name", err)
	if id, err := NodeID(""); err != nil || id != host {
		t.Errorf("the default node id is %q, error %v; want the host name", id, err)
	}
	if id, err := NodeID("auto"); err == nil && (!strings.HasPrefix(id, host+"-") || len(id) != len(host)+13) {
		t.Errorf("auto: %q", id)
	}
	if id, err := NodeID("n1"); err != nil || id != "n1" {
		t.Errorf("the node id n1 became %q, error %v; want it unchanged", id, err)
	}
	if _, err := NodeID("not valid"); err == nil {
		t.Error("NodeID accepts an id with a space")
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	engine, err := sim.NewEngine(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says string
		cfg  Config
	}{
		{"NodeID", Config{StatePath: filepath.Join(t.TempDir(), "s")}},
		{"StatePath", Config{NodeID: "n"}},
		{"Advertise", Config{NodeID: "n", StatePath: filepath.Join(t.TempDir(), "s"), Control: leader()}},
		{"RetryBase", Config{NodeID: "n", StatePath: filepath.Join(t.TempDir(), "s"), RetryBase: -1}},
	} {
		_, err := New(c.cfg, runner.Fixed(engine.Driver(driver.Identity{})))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("New must return an error that names %s, got %v", c.says, err)
		}
	}
}
