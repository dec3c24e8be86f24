package fsm

import (
	"bytes"
	"slices"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/quota"
)

func putNamespace(name string, opts ...func(*commandv1.PutNamespace)) Command {
	b := &commandv1.PutNamespace{Name: name}
	for _, o := range opts {
		o(b)
	}
	return &commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: b}}
}

func dropNamespace(name string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeleteNamespace{DeleteNamespace: &commandv1.DeleteNamespace{Name: name}}}
}

func limits(cpu, memory, disk, workloads int64) func(*commandv1.PutNamespace) {
	return func(b *commandv1.PutNamespace) {
		b.Quota = &commandv1.Quota{CpuMillicores: cpu, MemoryMib: memory, DiskGb: disk, Workloads: workloads}
	}
}

func users(names ...string) func(*commandv1.PutNamespace) {
	return func(b *commandv1.PutNamespace) { b.Users = names }
}

func ifVersion(v uint64) func(*commandv1.PutNamespace) {
	return func(b *commandv1.PutNamespace) { b.IfVersion = &v }
}

func inNamespace(name string) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Namespace = name }
}

func cpu(millicores int64) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) { d.CpuMillicores = millicores })
}

// confined returns the command c as sent by a user who may act only in the given namespaces.
func confined(c Command, namespaces ...string) Command {
	c.Head = &commandv1.Head{At: epoch0, By: "ada", Namespaces: namespaces}
	return c
}

func spaced(t testing.TB) *world {
	w := formed(t, "n")
	w.ok(putNamespace("a", limits(2000, 0, 0, 3)))
	w.ok(putNamespace("b"))
	return w
}

func TestNamespaceOfAWorkload(t *testing.T) {
	w := spaced(t)
	w.ok(put("old"))
	is(t, `namespace of workload "old"`, w.workload("old").In(), DefaultNamespace)
	w.ok(put("web", inNamespace("a")))
	is(t, `namespace of workload "web"`, w.workload("web").In(), "a")
	is(t, "namespace of the event WorkloadCreated", w.eventOf(EventWorkloadCreated).Namespace, "a")
	w.ok(put("web", content("c1:new")))
	is(t, `namespace of workload "web" after a put that names no namespace`, w.workload("web").In(), "a")
	refused(t, w.do(put("web", inNamespace("b"), content("c1:newer"))), Conflict, `"a"`, `"b"`, "cannot be moved")
	refused(t, w.do(put("web", inNamespace("default"))), Conflict, `"default"`)
	refused(t, w.do(put("x", inNamespace("none"))), NotFound, "none", "namespace list")
	w.ok(remove("web", true))
	is(t, "namespace in the event of the deletion", w.eventOf(EventWorkloadDeleted).Namespace, "a")
	w.ok(put("web", inNamespace("b")))
}

// TestPutWithFormerNamespaceVersionIsRefused: a PutNamespace is refused if it names the version of a former
// record, because somebody has changed the record meanwhile.
func TestPutWithFormerNamespaceVersionIsRefused(t *testing.T) {
	w := formed(t, "n")
	version := func() uint64 {
		n, _ := w.s.Namespace("a")
		return n.ModifyIndex
	}
	refused(t, w.do(putNamespace("a", ifVersion(3))), StaleGeneration, `"a"`, "version 3", "does not exist any more")
	w.ok(putNamespace("a", users("ada"), ifVersion(0)))
	first := version()
	is(t, "version of the namespace", first, w.index)
	refused(t, w.do(putNamespace("a", ifVersion(0))), StaleGeneration, "exists already", "tester")
	w.ok(putNamespace("a", users("ada", "bob"), ifVersion(first)))
	second := version()
	refused(t, w.do(putNamespace("a", limits(1000, 0, 0, 0), users("ada"), ifVersion(first))), StaleGeneration, "is at version", "tester")
	n, _ := w.s.Namespace("a")
	is(t, "number of users of the namespace", len(n.Users), 2)
	is(t, "verdict on the repeated command", w.do(putNamespace("a", users("ada", "bob"), ifVersion(second))).Kind, AlreadyDone)
	is(t, "version of the namespace after the same put again", version(), second)
	w.ok(putNamespace("a", users("ada", "bob", "eve")))
	w.ok(putNamespace(DefaultNamespace, limits(0, 0, 0, 9), ifVersion(0)))
}

func TestNamespaceQuota(t *testing.T) {
	used := func(w *world) quota.Amounts { return w.s.UseOf("a").Amounts }
	t.Run("a command over the quota is refused as a whole", func(t *testing.T) {
		w := spaced(t)
		w.ok(put("one", inNamespace("a"), cpu(1500)))
		refused(t, w.do(put("two", inNamespace("a"), cpu(501))), OverQuota, `"a"`, "cpu_millicores: 1500 used, 501 more asked for, limit 2000")
		two, three := put("two", inNamespace("a"), cpu(100)).GetPutWorkloads().Workloads[0], put("three", inNamespace("a"), cpu(500)).GetPutWorkloads().Workloads[0]
		refused(t, w.do(puts("", two, three)), OverQuota, "600 more asked for")
		is(t, "number of workloads in the state", w.s.WorkloadCount(), 1)
		w.ok(put("two", inNamespace("a"), cpu(500)))
		w.ok(put("three", inNamespace("a"), cpu(0)))
		refused(t, w.do(put("four", inNamespace("a"), cpu(0))), OverQuota, "workloads: 3 used, 1 more asked for, limit 3")
		w.ok(put("elsewhere", inNamespace("b"), cpu(9000)))
	})
	t.Run("an update counts the difference to the former demand", func(t *testing.T) {
		w := spaced(t)
		w.ok(put("one", inNamespace("a"), cpu(2000)))
		w.ok(put("one", inNamespace("a"), cpu(2000), content("c1:new")))
		w.ok(put("one", cpu(1000)))
		is(t, "amounts that the namespace uses", used(w).CPU, 1000)
		refused(t, w.do(put("one", cpu(2001))), OverQuota, "1000 used, 1001 more asked for")
	})
	t.Run("a stopped workload counts, and a workload that is being deleted does not", func(t *testing.T) {
		w := spaced(t)
		w.ok(put("one", inNamespace("a"), cpu(2000)))
		w.bind("one", "n")
		w.ok(setDesired("one", "Stopped"))
		refused(t, w.do(put("two", inNamespace("a"), cpu(1))), OverQuota)
		w.ok(setDesired("one", "Running"))
		w.ok(remove("one", false))
		is(t, "amounts that the namespace uses", used(w), quota.Amounts{})
		w.ok(put("two", inNamespace("a"), cpu(1)))
		refused(t, w.do(put("one", inNamespace("a"), cpu(2000))), OverQuota)
		refused(t, w.do(dropNamespace("a")), Conflict, "2 workloads")
	})
	t.Run("deleted members of a group free their quota for the others", func(t *testing.T) {
		w := spaced(t)
		member := func(id string, millicores int64) *commandv1.WorkloadPut {
			return put(id, inNamespace("a"), demand(func(d *commandv1.Demand) { d.Group, d.CpuMillicores = "g", millicores })).GetPutWorkloads().Workloads[0]
		}
		w.ok(puts("g", member("g-0", 700), member("g-1", 700)))
		w.ok(puts("g", member("g-0", 2000)))
		is(t, "amounts that the namespace uses", used(w), quota.Amounts{CPU: 2000, Memory: w.workload("g-0").Demand.Memory, Workloads: 1})
	})
	t.Run("lowering the quota stops no workload and refuses only growth", func(t *testing.T) {
		w := spaced(t)
		w.ok(put("one", inNamespace("a"), cpu(2000)))
		w.bind("one", "n")
		w.ok(putNamespace("a", limits(500, 0, 0, 0)))
		is(t, "node of the workload after the quota was lowered", w.workload("one").Node, "n")
		n, _ := w.s.Namespace("a")
		is(t, "the namespace uses more than its lowered quota", used(w).Over(n.Quota), true)
		w.ok(put("one", cpu(1900)))
		w.ok(setDesired("one", "Stopped"))
		w.ok(setDesired("one", "Running"))
		refused(t, w.do(put("one", cpu(1901))), OverQuota)
	})
	t.Run("an adopted orphan counts", func(t *testing.T) {
		w := spaced(t)
		w.ok(setDrifts([]*commandv1.Drift{drifted("n", "ghost", DriftOrphan)}))
		refused(t, w.do(adopt("n", "ghost", inNamespace("a"), cpu(2001))), OverQuota)
		w.ok(adopt("n", "ghost", inNamespace("a"), cpu(2000)))
		is(t, "amounts that the namespace uses", used(w).CPU, 2000)
	})
	t.Run("the default namespace may have a quota", func(t *testing.T) {
		w := spaced(t)
		w.ok(put("old", cpu(100)))
		w.ok(putNamespace("default", limits(200, 0, 0, 0)))
		refused(t, w.do(put("new", cpu(101))), OverQuota, "100 used, 101 more asked for, limit 200")
	})
}

func TestConfinedCallersStayInTheirNamespace(t *testing.T) {
	w := spaced(t)
	w.ok(put("mine", inNamespace("a")))
	w.ok(put("theirs", inNamespace("b")))
	w.ok(put("old"))
	w.bind("theirs", "n")
	for name, c := range map[string]Command{
		"create a workload in another namespace":                  put("new", inNamespace("b")),
		"create a workload in namespace default":                  put("new"),
		"change a workload of another namespace":                  put("theirs", content("c1:new")),
		"move a workload of another namespace to its own":         put("theirs", inNamespace("a")),
		"stop a workload of another namespace":                    setDesired("theirs", "Stopped"),
		"delete a workload of another namespace":                  remove("theirs", false),
		"delete a workload of another namespace by desired state": setDesired("theirs", "Deleted"),
		"force the deletion of a workload of another namespace":   remove("theirs", true),
		"retry a workload of another namespace":                   userRetry("theirs"),
		"delete a workload of namespace default":                  remove("old", false),
		"cordon a node":                                           cordon("n", true),
		"change its own namespace":                                putNamespace("a"),
		"delete a namespace":                                      dropNamespace("b"),
		"change the mode":                                         setMode("degraded", "x"),
		"create join tokens":                                      joinToken(w, "t", "user"),
	} {
		refused(t, w.do(confined(c, "a")), Denied, "a")
		if t.Failed() {
			t.Fatalf("a caller confined to namespace a must not be able to %s", name)
		}
	}
	for _, c := range []Command{put("mine", content("c1:new")), put("new", inNamespace("a")), setDesired("mine", "Stopped"), remove("mine", false)} {
		if res := w.do(confined(c, "a")); res.Kind != OK {
			t.Errorf("command %v of a caller confined to namespace a must be accepted, but was refused: %s", c, res.Reason)
		}
	}
	member := put("g-0", inNamespace("b"), demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
	w.ok(puts("g", member))
	refused(t, w.do(confined(puts("g"), "a")), Denied, "g-0")
}

// TestConfinedCallersGetNoOrphans: a caller who may act only in one namespace can neither adopt nor
// delete an orphan (an instance without a record), because the namespace of an orphan is unknown.
func TestConfinedCallersGetNoOrphans(t *testing.T) {
	w := spaced(t)
	w.ok(put("mine", inNamespace("a")))
	w.ok(setDrifts([]*commandv1.Drift{drifted("n", "ghost", DriftOrphan), drifted("n", "late", DriftState), drifted("n", "mine", DriftOrphan)}))
	for name, c := range map[string]Command{
		"adopt the orphan": adopt("n", "ghost", inNamespace("a")),
		"create a workload with the id of the orphan":             put("ghost", inNamespace("a")),
		"create several workloads, one with the id of the orphan": puts("", put("b1", inNamespace("a")).GetPutWorkloads().Workloads[0], put("ghost", inNamespace("a")).GetPutWorkloads().Workloads[0]),
		"delete the orphan": dropOrphan("n", "ghost"),
	} {
		refused(t, w.do(confined(c, "a")), Denied, "ghost", "ada acts only in a")
		if t.Failed() {
			t.Fatalf("a caller confined to namespace a must not be able to %s", name)
		}
	}
	for name, c := range map[string]Command{
		"change a workload that a node also reports as an orphan":  put("mine", inNamespace("a"), content("c1:new")),
		"create a workload whose id has a drift that is no orphan": put("late", inNamespace("a")),
	} {
		if res := w.do(confined(c, "a")); res.Kind != OK {
			t.Errorf("a user who is confined to namespace a must be able to %s, but was refused: %s", name, res.Reason)
		}
	}
	w.ok(adopt("n", "ghost", inNamespace("b"))) // the caller is not confined to namespaces
}

// TestScaleDownWithinNamespace: a command that scales a group down deletes no workload if it names another namespace
// than that of the group.
func TestScaleDownWithinNamespace(t *testing.T) {
	w := spaced(t)
	member := func(id string) *commandv1.WorkloadPut {
		return put(id, inNamespace("a"), demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
	}
	w.ok(puts("g", member("g-0"), member("g-1")))
	none := func(in string) *commandv1.Command {
		c := puts("g")
		c.GetPutWorkloads().Namespace = in
		return c
	}
	w.ok(none("b"))
	is(t, `desired state of member "g-0" after a put without members in another namespace`, w.workload("g-0").Desired, DesiredRunning)
	w.ok(puts("g", member("g-0")))
	if _, there := w.s.Workload("g-1"); there {
		t.Error("the put must delete the members that it does not list, but g-1 still exists")
	}
	w.ok(none("a"))
	if _, there := w.s.Workload("g-0"); there {
		t.Error("a put without members must delete all members of the group, but g-0 still exists")
	}
}

func TestUsersOfNamespaces(t *testing.T) {
	w := spaced(t)
	w.ok(putNamespace("a", users("ada", "bob", "ada")))
	w.ok(putNamespace("b", users("ada")))
	is(t, `NamespacesOf lists the namespaces of user "ada"`, slices.Equal(w.s.NamespacesOf("ada"), []string{"a", "b"}), true)
	is(t, `NamespacesOf lists the namespaces of user "bob"`, slices.Equal(w.s.NamespacesOf("bob"), []string{"a"}), true)
	is(t, `number of namespaces that list user "ad"`, len(w.s.NamespacesOf("ad")), 0)
	refused(t, w.do(putNamespace("a")), Conflict, "bob", "in all namespaces", "--release")
	w.ok(putNamespace("a", users("bob")))
	refused(t, w.do(dropNamespace("a")), Conflict, "bob")
	refused(t, w.do(putNamespace("b")), Conflict, "ada")
	w.ok(putNamespace("b", func(b *commandv1.PutNamespace) { b.Release = []string{"ada"} }))
	is(t, `number of namespaces that list user "ada"`, len(w.s.NamespacesOf("ada")), 0)
	refused(t, w.do(putNamespace("b", users("admin"))), Invalid, "admin")
	refused(t, w.do(putNamespace("b", users("a/b"))), Invalid, "a/b")
	refused(t, w.do(putNamespace("b", limits(0, -1, 0, 0))), Invalid, "quota.memory_mib")
	refused(t, w.do(putNamespace("../b")), Invalid, "name")
}

func TestNamespacesAreListedInOrder(t *testing.T) {
	names := func(w *world, most int) (out []string) {
		w.s.Namespaces(func(n *Namespace) bool { out = append(out, n.Name); return len(out) < most })
		return out
	}
	w := formed(t)
	is(t, "namespaces before any was created", slices.Equal(names(w, 9), []string{"default"}), true)
	w.ok(putNamespace("a"))
	is(t, "namespace default is listed after a", slices.Equal(names(w, 9), []string{"a", "default"}), true)
	w.ok(putNamespace("z"))
	is(t, "namespace default is listed between a and z", slices.Equal(names(w, 9), []string{"a", "default", "z"}), true)
	is(t, "the scan stops after two namespaces", slices.Equal(names(w, 2), []string{"a", "default"}), true)
	w.ok(putNamespace("default", limits(1, 0, 0, 0)))
	is(t, "namespace default is listed once, also with a record", slices.Equal(names(w, 9), []string{"a", "default", "z"}), true)
}

// TestRestoredNamespaces: a restore keeps the present records of namespaces, and adds the restored
// workloads to the sums that the quotas limit.
func TestRestoredNamespaces(t *testing.T) {
	w := spaced(t)
	w.ok(putNamespace("a", limits(2000, 0, 0, 3), users("ada")))
	w.ok(put("web", inNamespace("a"), cpu(700)))
	backup := w.s
	restored, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, backup)))
	if err != nil {
		t.Fatal(err)
	}
	mustEqualStates(t, "restored", backup, restored)

	w.ok(remove("web", true))
	w.ok(putNamespace("a", limits(100, 0, 0, 3), users("ada", "bob")))
	w.ok(putNamespace("later"))
	back, err := Restored(backup, w.s, RestoreInfo{At: w.now, By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	n, _ := back.Namespace("a")
	is(t, `CPU quota of namespace "a", which is that of the present state`, n.Quota.CPU, 100)
	is(t, `number of namespaces that list user "bob", as in the present state`, len(back.NamespacesOf("bob")), 1)
	is(t, `CPU that namespace "a" uses after the restore`, back.UseOf("a").CPU, 700)
	is(t, `namespace "later" exists`, back.HasNamespace("later"), true)
}

func TestImportedNamespaces(t *testing.T) {
	record := func(id, namespace string) *commandv1.WorkloadRecord {
		p := put(id, inNamespace(namespace)).GetPutWorkloads().Workloads[0]
		return &commandv1.WorkloadRecord{Put: p}
	}
	a := Assemble(Origin{ClusterID: "c1"})
	ns := &commandv1.NamespaceRecord{Put: putNamespace("a", limits(1, 0, 0, 0), users("bob", "ada")).GetPutNamespace()}
	if err := a.Namespace(ns); err != nil {
		t.Fatal(err)
	}
	if a.Namespace(ns) == nil || a.Namespace(&commandv1.NamespaceRecord{Put: &commandv1.PutNamespace{Name: "-"}}) == nil {
		t.Error("Assembly must refuse a namespace that it has already, and an invalid name")
	}
	for id, in := range map[string]string{"web": "a", "lost": "gone", "old": ""} {
		if err := a.Workload(record(id, in)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := a.State()
	if err != nil {
		t.Fatal(err)
	}
	is(t, `number of workloads in namespace "a"`, s.UseOf("a").Workloads, 1)
	is(t, `namespace "gone" exists`, s.HasNamespace("gone"), true)
	is(t, `number of namespaces that list user "ada"`, len(s.NamespacesOf("ada")), 1)
}
