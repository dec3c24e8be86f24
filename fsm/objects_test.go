package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// putObject returns a command that stores a value. The value of a secret gets the form of a sealed
// value.
func putObject(kind, name, value, namespace string) Command {
	b := &commandv1.PutObject{Kind: kind, Name: name, Namespace: namespace, Data: []byte(value), Size: int64(len(value))}
	if kind == KindSecret {
		b.Data = []byte(sealedPrefix + "0123456789abcdef:" + value)
	}
	return &commandv1.Command{Body: &commandv1.Command_PutObject{PutObject: b}}
}

func rollBackObject(kind, name string, number uint64) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutObject{PutObject: &commandv1.PutObject{Kind: kind, Name: name, From: number}}}
}

func deleteObject(kind, name, namespace string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteObject{DeleteObject: &commandv1.DeleteObject{Kind: kind, Name: name, Namespace: namespace}}}
}

// using makes a workload use objects, given as kind/name. With the prefix "keep ", new versions of
// the object do not change the workload. With the prefix "signal ", they cause only a new order
// with a signal.
func using(objects ...string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) {
		for _, o := range objects {
			o, keep := strings.CutPrefix(o, "keep ")
			o, signal := strings.CutPrefix(o, "signal ")
			kind, name, _ := strings.Cut(o, "/")
			use := &commandv1.ObjectUse{Kind: kind, Name: name, Keep: keep || signal}
			if signal {
				use.Signal = "SIGHUP"
			}
			p.Objects = append(p.Objects, use)
		}
	}
}

// uses returns the objects of a workload with their versions.
func (w *world) uses(id string) string {
	w.t.Helper()
	var out []string
	for _, u := range w.workload(id).Objects {
		out = append(out, fmt.Sprintf("%s/%s@%d", u.Kind, u.Name, u.Version))
	}
	return strings.Join(out, " ")
}

// versionsOf returns the numbers of the versions of a secret or config that the state still has.
func (w *world) versionsOf(kind, name string) (out []uint64) {
	w.t.Helper()
	o, ok := w.s.Object(DefaultNamespace, kind, name)
	if !ok {
		return nil
	}
	for _, v := range o.Versions {
		out = append(out, v.Number)
	}
	return out
}

func TestObjects(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, w *world)
	}{
		{"each put of a secret is a new version, even with an equal value", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			is(t, "verdict on the command", w.do(putObject(KindSecret, "db", "a", "")).Kind, OK)
			is(t, "versions of secret db that the state has", fmt.Sprint(w.versionsOf(KindSecret, "db")), "[1 2]")
		}},
		{"an equal value of a config changes nothing", func(t *testing.T, w *world) {
			w.ok(putObject(KindConfig, "c", "a", ""))
			res := w.do(putObject(KindConfig, "c", "a", ""))
			is(t, "verdict on the command", res.Kind, AlreadyDone)
			is(t, "revision in item 0 of the result", res.Items[0].Revision, "1")
		}},
		{"an unsealed secret is refused", func(t *testing.T, w *world) {
			c := putObject(KindSecret, "db", "plain", "")
			c.GetPutObject().Data = []byte("plain")
			res := w.do(c)
			refused(t, res, Invalid, "must be sealed")
			if strings.Contains(res.Reason, "plain") {
				t.Errorf("the refusal of the unsealed secret must not contain its value, but is: %s", res.Reason)
			}
		}},
		{"a value of more than 512 KiB is refused", func(t *testing.T, w *world) {
			refused(t, w.do(putObject(KindConfig, "c", strings.Repeat("x", MaxObjectBytes+1), "")), Invalid, "at most 524288")
		}},
		{"names, kinds and namespaces are checked", func(t *testing.T, w *world) {
			refused(t, w.do(putObject("key", "k", "v", "")), Invalid, "kind")
			refused(t, w.do(putObject(KindConfig, "a/b", "v", "")), Invalid, "name")
			refused(t, w.do(putObject(KindConfig, "c", "v", "none")), NotFound, "none")
			refused(t, w.do(confined(putObject(KindConfig, "c", "v", ""), "shop")), Denied, "default")
			refused(t, w.do(confined(deleteObject(KindConfig, "c", ""), "shop")), Denied, "default")
		}},
		{"the numbers of versions go on after a delete", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			w.ok(putObject(KindSecret, "db", "b", ""))
			w.ok(deleteObject(KindSecret, "db", ""))
			w.ok(putObject(KindSecret, "db", "c", ""))
			is(t, "versions of secret db that the state has", fmt.Sprint(w.versionsOf(KindSecret, "db")), "[3]")
		}},
		{"a rollback is a new version with the value of the old one", func(t *testing.T, w *world) {
			w.ok(putObject(KindConfig, "c", "a", ""))
			w.ok(putObject(KindConfig, "c", "b", ""))
			w.ok(rollBackObject(KindConfig, "c", 1))
			o, _ := w.s.Object(DefaultNamespace, KindConfig, "c")
			is(t, "value of the version that the rollback made", string(o.Present().Data), "a")
			is(t, "number of the present version, and number of the version whose value it has", fmt.Sprint(o.Present().Number, o.Present().From), "3 1")
			refused(t, w.do(rollBackObject(KindConfig, "c", 9)), NotFound, "version 9")
			is(t, "verdict on a rollback to the present version", w.do(rollBackObject(KindConfig, "c", 3)).Kind, AlreadyDone)
		}},
		{"ten versions are kept, and older ones in use", func(t *testing.T, w *world) {
			w.ok(putObject(KindConfig, "c", "0", ""))
			w.ok(put("job", using("config/c"), func(p *commandv1.WorkloadPut) { p.Demand.Job = &commandv1.Job{} }))
			for i := range 14 {
				w.ok(putObject(KindConfig, "c", fmt.Sprint("v", i), ""))
			}
			is(t, "version that the job uses", w.uses("job"), "config/c@1")
			have := w.versionsOf(KindConfig, "c")
			is(t, "versions that the state still has", fmt.Sprint(have), "[1 7 8 9 10 11 12 13 14 15]")
		}},
		{"an object in use is not deleted, and its users are named", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			w.ok(put("web", using("secret/db")))
			refused(t, w.do(deleteObject(KindSecret, "db", "")), Conflict, "web")
			w.ok(remove("web", true))
			w.ok(deleteObject(KindSecret, "db", ""))
			is(t, "bytes that namespace default uses after the deletion of the secret", w.s.UseOf(DefaultNamespace).Bytes, 0)
		}},
		{"an unknown object is refused, also in another namespace", func(t *testing.T, w *world) {
			w.ok(putNamespace("shop"))
			w.ok(putObject(KindSecret, "db", "a", "shop"))
			refused(t, w.do(put("web", using("secret/db"))), NotFound, "db", "default")
			w.ok(put("web", using("secret/db"), func(p *commandv1.WorkloadPut) { p.Namespace = "shop" }))
			refused(t, w.do(dropNamespace("shop")), Conflict)
		}},
		{"with a signal, a new version is a new order with the same content", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			w.ok(put("web", using("signal secret/db")))
			w.ok(put("waiting", using("signal secret/db")))
			w.ok(put("job", using("signal secret/db"), func(p *commandv1.WorkloadPut) { p.Demand.Job = &commandv1.Job{} }))
			w.ok(register("n"))
			w.ok(w.assign("web", "n"))
			w.ok(w.assign("job", "n"))
			before := *w.workload("web")
			res := w.do(putObject(KindSecret, "db", "b", ""))
			is(t, "number of items, one for the secret and one for the workload with a new order", len(res.Items), 2)
			is(t, "workload that gets a new order", res.Items[1].ID, "web")
			after := w.workload("web")
			if after.Content != before.Content || after.Generation == before.Generation || after.Acknowledged {
				t.Errorf("the workload was %+v and is %+v, want a new order of the same content", before, after)
			}
			is(t, "status of a workload with a new order whose instance does not run", after.Status, StatusScheduled)
		}},
		{"an instance that gets a signal for a new version keeps the status Running", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			w.ok(register("n"))
			w.running("web", "n", using("signal secret/db"))
			w.running("ended", "n", using("signal secret/db"))
			w.ok(w.says("ended", "Stopped"))
			first := w.workload("web").Generation
			for _, value := range []string{"b", "c"} {
				is(t, "number of items, one for the secret and one for the workload with a new order", len(w.do(putObject(KindSecret, "db", value, "")).Items), 2)
				web := w.workload("web")
				is(t, `the order of workload "web" is acknowledged`, web.Acknowledged, false)
				is(t, `status of workload "web"`, web.Status, StatusRunning)
				is(t, `workload "web" is available`, web.Available(), true)
				is(t, `SameSince of workload "web"`, web.SameSince, first)
			}
			w.ok(put("web", using("signal secret/db"), content("2")))
			is(t, `status of workload "web" after a change of its content`, w.workload("web").Status, StatusUpdating)
		}},
		{"a signal needs the field keep and a valid signal name", func(t *testing.T, w *world) {
			refused(t, w.do(put("bad", func(p *commandv1.WorkloadPut) {
				p.Objects = []*commandv1.ObjectUse{{Kind: KindSecret, Name: "db", Signal: "SIGHUP"}}
			})), Invalid, "needs keep")
			refused(t, w.do(put("bad", func(p *commandv1.WorkloadPut) {
				p.Objects = []*commandv1.ObjectUse{{Kind: KindSecret, Name: "db", Keep: true, Signal: "sig hup"}}
			})), Invalid, "signal such as SIGHUP")
		}},
		{"a new version changes a workload, but not one with the field keep", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			w.ok(put("web", using("secret/db")))
			w.ok(put("other", using("keep secret/db")))
			before, other := *w.workload("web"), *w.workload("other")
			res := w.do(putObject(KindSecret, "db", "b", ""))
			is(t, "number of items, one for the secret and one for the changed workload", len(res.Items), 2)
			is(t, "workload that gets the new version", res.Items[1].ID, "web")
			after := w.workload("web")
			is(t, "content and generation have changed", after.Content != before.Content && after.Generation != before.Generation, true)
			is(t, "versions of the objects that the workload uses", w.uses("web"), "secret/db@2")
			is(t, "generation of a workload with the field keep", w.workload("other").Generation, other.Generation)
			is(t, "the same put again is Unchanged", w.do(put("web", using("secret/db"))).Items[0].Unchanged, true)
		}},
		{"objects count for the size of the state and the policy of the namespace", func(t *testing.T, w *world) {
			w.ok(putPolicy("small", func(m *commandv1.Policy) { m.MaxSpecBytes = 100 }))
			w.ok(bind("small", "default"))
			refused(t, w.do(putObject(KindConfig, "c", strings.Repeat("x", 200), "")), NotAllowed, "max_spec_bytes")
			w.ok(putObject(KindConfig, "c", strings.Repeat("x", 90), ""))
			is(t, "Bytes used by namespace default", w.s.UseOf(DefaultNamespace).Bytes, 90)
			is(t, "bytes of the whole state", w.s.Total().Bytes, 90)
		}},
		{"an event about an object of namespace default belongs to that namespace", func(t *testing.T, w *world) {
			w.ok(putObject(KindSecret, "db", "a", ""))
			is(t, "namespace in the event SecretChanged", w.eventOf(EventSecretChanged).In(), DefaultNamespace)
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, formed(t, "a")) })
	}
}

// groupUsing returns a command that stores a group of workloads web-0 to web-(n-1), which use a
// secret and have an update policy.
func groupUsing(version, n int) Command {
	c := group(version, n, 1, false)
	for _, p := range c.GetPutWorkloads().Workloads {
		using("secret/db")(p)
		p.Update = c.GetPutWorkloads().Update
	}
	return c
}

func (w *world) allUses() string {
	var out []string
	w.s.Group("web", func(x *Workload) bool {
		out = append(out, fmt.Sprint(x.Objects[0].Version))
		return true
	})
	if r, ok := w.s.Rollout("web"); ok {
		out = append(out, string(r.Phase))
	}
	return strings.Join(out, " ")
}

func TestNewVersionReachesMembersInTurn(t *testing.T) {
	w := formed(t, "a")
	w.ok(putObject(KindSecret, "db", "a", ""))
	w.ok(groupUsing(1, 3))
	w.everybodyRuns()
	w.ok(putObject(KindSecret, "db", "b", ""))
	is(t, "versions of the members and phase of the update right after the put", w.allUses(), "1 1 1 Running")
	w.step()
	is(t, "versions of the members and phase of the update after its first step", w.allUses(), "2 1 1 Running")
	w.ok(putObject(KindSecret, "db", "c", ""))
	is(t, "versions that the state keeps while members wait for their turn", fmt.Sprint(w.versionsOf(KindSecret, "db")), "[1 2 3]")
	refused(t, w.do(deleteObject(KindSecret, "db", "")), Conflict, "web-0")
	for range 8 {
		w.proceed()
	}
	is(t, "all members have the newest version", w.allUses(), "3 3 3 Completed")
	w.ok(rolloutAction("undo"))
	for range 8 {
		w.proceed()
	}
	is(t, "an undo restores the former version", w.allUses(), "1 1 1 Completed")
}

func TestNewVersionKeepsAPausedUpdatePaused(t *testing.T) {
	w := formed(t, "a")
	w.ok(putObject(KindSecret, "db", "a", ""))
	w.ok(groupUsing(1, 3))
	w.everybodyRuns()
	w.ok(groupUsing(2, 3))
	w.step()
	w.ok(rolloutAction("pause"))
	w.ok(putObject(KindSecret, "db", "b", ""))
	is(t, "versions of the members and phase of the paused update", w.allUses(), "1 1 1 Paused")
	waiting := 0
	for _, m := range w.rolled().Members {
		if m.Put != nil {
			waiting++
			is(t, "version of "+m.ID, m.Put.Objects[0].Version, 2)
			is(t, "specification of "+m.ID, string(m.Put.Spec), "version 2")
		}
	}
	is(t, "number of members that wait for their turn", waiting, 3)
}

func TestObjectsAreRestored(t *testing.T) {
	w := formed(t, "a")
	w.ok(putObject(KindSecret, "gone", "old", ""))
	w.ok(putObject(KindConfig, "c", "old", ""))
	w.ok(put("web", using("config/c", "secret/gone")))
	backup := w.s
	w.ok(remove("web", true))
	w.ok(deleteObject(KindSecret, "gone", ""))
	w.ok(putObject(KindConfig, "c", "new", ""))
	back, err := Restored(backup, w.s, RestoreInfo{At: w.now, By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	w.s = back
	is(t, `versions of secret "gone", which was deleted, after the restore`, fmt.Sprint(w.versionsOf(KindSecret, "gone")), "[1]")
	announced := false
	w.s.EventsBack(func(e *Event) bool {
		announced = announced || e.Type == EventSecretChanged && strings.Contains(e.Message, "is back from the backup")
		return true
	})
	is(t, "an event says that the secret is back from the backup", announced, true)
	is(t, `versions of config "c", one from the backup and one from the present state`, fmt.Sprint(w.versionsOf(KindConfig, "c")), "[1 2]")
	is(t, "versions of the objects that the restored workload uses", w.uses("web"), "config/c@1 secret/gone@1")
	w.ok(putObject(KindSecret, "gone", "x", ""))
	is(t, `versions of secret "gone" after another put; no number is used twice`, fmt.Sprint(w.versionsOf(KindSecret, "gone")), "[1 2]")
}

func TestSnapshotKeepsObjects(t *testing.T) {
	w := formed(t, "a")
	objectsScenario(w)
	again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "read again", again, w.s)
}

// objectsScenario applies the commands of the golden file 95-objects: they create, change and delete secrets and configs,
// and the workloads that use them. Some of the commands are refused.
func objectsScenario(w *world) {
	w.do(putNamespace("shop"))
	w.do(putObject(KindSecret, "db", "a", ""))
	w.do(putObject(KindSecret, "db", "plain", "nowhere"))
	w.do(putObject(KindConfig, "c", "a", "shop"))
	w.do(putObject(KindConfig, "c", "a", "shop"))
	w.do(put("none", using("secret/none")))
	w.do(put("solo", using("config/c", "keep secret/db")))
	w.do(put("solo", using("keep secret/db")))
	w.do(groupUsing(1, 2))
	w.everybodyRunsOn("a")
	w.do(putObject(KindSecret, "db", "b", ""))
	w.do(advance(GenerationPB(RolloutID(w.rolled())), &commandv1.AdvanceRollout{Take: []string{"web-0"}}))
	w.do(putObject(KindSecret, "db", "c", ""))
	w.do(rollBackObject(KindSecret, "db", 1))
	w.do(deleteObject(KindSecret, "db", ""))
	w.do(deleteObject(KindConfig, "c", "shop"))
	w.do(putObject(KindConfig, "c", "b", "shop"))
	w.do(dropNamespace("shop"))
}

func objectSignalsScenario(w *world) {
	w.do(putObject(KindSecret, "db", "a", ""))
	w.do(put("solo", using("signal secret/db")))
	w.do(put("stopped", using("signal secret/db")))
	w.do(register("a"))
	w.do(w.assign("solo", "a"))
	w.do(w.says("solo", "Running"))
	w.do(putObject(KindSecret, "db", "b", ""))
	w.do(put("solo", using("keep secret/db")))
	w.do(putObject(KindSecret, "db", "c", ""))
	w.do(put("unsorted", using("signal secret/db", "signal secret/db")))
}

// everybodyRunsOn registers a node and lets the members of web run on it.
func (w *world) everybodyRunsOn(node string) {
	w.do(register(node))
	for _, id := range []string{"web-0", "web-1"} {
		w.do(w.assign(id, node))
		w.do(w.says(id, "Running"))
	}
}

func TestUnsortedObjectsAreRefused(t *testing.T) {
	w := formed(t)
	w.ok(putObject(KindSecret, "b", "x", ""))
	w.ok(putObject(KindSecret, "a", "x", ""))
	refused(t, w.do(put("web", using("secret/b", "secret/a"))), Invalid, "sorted")
	w.ok(put("web", using("secret/a", "secret/b")))
	is(t, `the objects of workload "web" are sorted`, slices.IsSortedFunc(w.workload("web").Objects, func(a, b ObjectUse) int { return strings.Compare(a.Name, b.Name) }), true)
}

// TestRotationStartsFirst: in a group with order: start-first, a new version of a secret first
// creates an extra member with this version (a surge member). Only then is an old member replaced.
func TestRotationStartsFirst(t *testing.T) {
	first := func(version int) Command {
		c := surging(groupUsing(version, 3), 0)
		for _, p := range c.GetPutWorkloads().Surge {
			using("secret/db")(p)
			p.Objects, p.Update = p.Objects[:1], c.GetPutWorkloads().Update
		}
		return c
	}
	w := formed(t, "a")
	w.ok(putObject(KindSecret, "db", "a", ""))
	w.ok(first(1))
	for _, id := range []string{"web-0", "web-1", "web-2"} {
		w.ok(w.assign(id, "a"))
		w.ok(w.says(id, "Running"))
	}
	next := putObject(KindSecret, "db", "b", "")
	for _, p := range first(1).GetPutWorkloads().Surge {
		p.SpecContent = p.GetContent()
		next.GetPutObject().Surge = append(next.GetPutObject().Surge, p)
	}
	res := w.ok(next)
	is(t, "the result has an item for the secret and items for its users", len(res.Items) > 1, true)
	r, ok := w.s.Rollout("web")
	if !ok || r.Phase != rollout.Running || !r.Policy.StartFirst {
		t.Fatalf("the rollout is %+v, want a running one that starts first", r)
	}
	is(t, "versions of the members that were not replaced yet", w.uses("web-0")+" "+w.uses("web-2"), "secret/db@1 secret/db@1")
	w.step()
	is(t, "surge members of group web", w.extras(), "web-3")
	is(t, "version that the surge member uses", w.uses("web-3"), "secret/db@2")

	late := putObject(KindSecret, "db", "c", "")
	late.GetPutObject().Surge = []*commandv1.WorkloadPut{next.GetPutObject().Surge[0].CloneVT()}
	late.GetPutObject().Surge[0].SpecContent = "c1:another specification"
	res = w.do(late)
	is(t, "verdict on the command", res.Kind, OK)
	is(t, "item 1 of the result is a Conflict whose reason says that the specification has changed", res.Items[1].Kind == Conflict && strings.Contains(res.Items[1].Reason, "has changed meanwhile"), true)
}

// TestRotationOfASystemWorkload: when a user stores a new version of a secret, the members of a
// system workload that uses it get a rolling update. If the specification asks for a signal
// instead of an update, each member gets a new order. The template of the workload, from which
// the members are made, runs nowhere and gets no order.
func TestRotationOfASystemWorkload(t *testing.T) {
	start := func(use string) *world {
		w := formed(t, "a", "b")
		w.ok(putObject(KindSecret, "db", "a", ""))
		c := put("log", systemPut, using(use))
		update := &commandv1.UpdatePolicy{MaxParallel: 1, MinHealthy: 1e9, HealthyDeadline: 60e9}
		c.GetPutWorkloads().Update, c.GetPutWorkloads().Workloads[0].Update = update, update
		w.ok(c)
		w.ok(placeMembers(w.member("log", "a"), w.member("log", "b")))
		for id, node := range map[string]string{"log-a": "a", "log-b": "b"} {
			w.ok(w.assign(id, node))
			w.run(id)
		}
		w.ok(putObject(KindSecret, "db", "b", ""))
		return w
	}
	w := start("secret/db")
	if r, ok := w.s.Rollout("log"); !ok || len(r.Members) != 2 {
		t.Fatalf("the rollout of the new version is %+v, want one of two members", r)
	}
	is(t, "versions that the template and its member use", w.uses("log")+" "+w.uses("log-a"), "secret/db@2 secret/db@1")
	r, _ := w.s.Rollout("log")
	w.ok(&commandv1.Command{Body: &commandv1.Command_AdvanceRollout{AdvanceRollout: &commandv1.AdvanceRollout{
		Group: "log", IfRollout: GenerationPB(RolloutID(r)), Take: []string{"log-a"},
	}}})
	is(t, "versions that the two members use after the first step of the update", w.uses("log-a")+" "+w.uses("log-b"), "secret/db@2 secret/db@1")

	w = start("signal secret/db")
	for _, id := range []string{"log-a", "log-b"} {
		if m := w.workload(id); m.Acknowledged || m.Node == "" {
			t.Errorf("member %s is %+v, want a new order to its node", id, m)
		}
	}
	if _, ok := w.s.Rollout("log"); ok {
		t.Error("a new version that only causes a signal must not begin a rolling update, but did")
	}
}
