package fsm

import (
	"bytes"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
)

func replicaWith(id string, memory int64) Command {
	return &commandv1.Command{Body: &commandv1.Command_PutReplica{PutReplica: &commandv1.PutReplica{Id: id, Name: "name-" + id, FeatureLevel: 1, MemoryMib: memory}}}
}

func specOf(n int) func(*commandv1.WorkloadPut) {
	return func(p *commandv1.WorkloadPut) { p.Spec, p.Content = bytes.Repeat([]byte("x"), n), "c1:"+decimal(n) }
}

// TestRoomBoundsTheState: the memory of the smallest scheduler bounds the bytes of specifications and the number of
// workloads. The refusal names the scheduler and what to do. A change that shrinks the state is never
// refused.
func TestRoomBoundsTheState(t *testing.T) {
	w := formed(t)
	w.ok(put("first", specOf(512<<10)))
	is(t, "maximum bytes of the state if no scheduler has reported its memory (0 = no limit)", w.s.Room().Bytes, int64(0))
	w.ok(replicaWith("r1", 64))
	w.ok(replicaWith("r2", 8)) // the limits of 8 MiB of memory: 1 MiB of specifications and 256 workloads
	w.ok(replicaWith("r3", 0)) // the memory of r3 is not known
	is(t, "size limit of the state", w.s.Room(), Room{Workloads: 256, Bytes: 1 << 20, Of: "name-r2", Memory: 8})
	is(t, "warning when 50 % of the limit is used", w.s.Room().Nearly(w.s.Total()), "")
	w.ok(put("second", specOf(400<<10)))
	if got := w.s.Room().Nearly(w.s.Total()); !strings.Contains(got, "name-r2") {
		t.Errorf("when 89 %% of the limit is used, the warning is %q, want it to name scheduler name-r2", got)
	}
	refused := func(c Command, words ...string) {
		t.Helper()
		r := w.do(c)
		is(t, "verdict on the command", r.Kind, OverQuota)
		for _, word := range append(words, "the cluster is full", "name-r2", "8 MiB of memory", "delete workloads") {
			if !strings.Contains(r.Reason, word) {
				t.Errorf("the text of the refusal must contain %q, but is: %s", word, r.Reason)
			}
		}
	}
	refused(put("third", specOf(200<<10)), "200 KiB more")
	refused(put("second", specOf(600<<10)), "200 KiB more")
	w.ok(put("second", specOf(100)))
	w.ok(put("third", specOf(200<<10)))
	w.ok(put("first", specOf(100)))
	w.ok(put("second", specOf(200)))
	for i := range 253 {
		w.ok(put("small-"+decimal(i), specOf(1)))
	}
	refused(put("one-more", specOf(1)), "256 workloads", "1 more")
	w.ok(put("small-1", specOf(2)))
	if err := w.s.Check(); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	if err := w.s.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	again, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	is(t, "total size of the state that was read from a snapshot", again.Total(), w.s.Total())
	is(t, "size limit of the state that was read from a snapshot", again.Room(), w.s.Room())
	w.ok(replicaWith("r2", 16))
	w.ok(put("one-more", specOf(1)))
}

// TestOneNamespaceCannotFillTheState: users confined to a namespace may use half of the size limit. Another
// team and the admins can still store workloads. If the namespace has a quota or a policy, that limit applies
// instead of the half.
func TestOneNamespaceCannotFillTheState(t *testing.T) {
	w := formed(t)
	w.ok(putNamespace("shop"))
	w.ok(putNamespace("bank"))
	w.ok(replicaWith("r1", 8)) // 1 MiB of specifications and 256 workloads
	by := func(namespace string, c Command) Command {
		c.Head = &commandv1.Head{At: w.now, By: "persys://c/user/" + namespace, Namespaces: []string{namespace}, NamespaceShare: NamespaceShare, RoomReserve: AdminReserve}
		for _, p := range c.GetPutWorkloads().GetWorkloads() {
			p.Namespace = namespace
		}
		return c
	}
	w.ok(by("shop", put("a", specOf(300<<10))))
	refused(t, w.do(by("shop", put("b", specOf(300<<10)))), OverQuota, `namespace "shop" is full`, "300 KiB more", "50 %", "name-r1", "max_spec_bytes", "persysctl policy bind POLICY --namespace shop")
	refused(t, w.do(by("shop", putObject(KindConfig, "c", strings.Repeat("x", 300<<10), "shop"))), OverQuota, `namespace "shop" is full`)
	w.ok(by("shop", put("a", specOf(200<<10))))
	w.ok(by("bank", put("c", specOf(400<<10))))
	for i := range 127 {
		w.ok(by("shop", put("small-"+decimal(i), specOf(1))))
	}
	refused(t, w.do(by("shop", put("one-more", specOf(1)))), OverQuota, "it has 128 workloads, 1 more", "limit is 128", "persysctl namespace set shop --workloads N")
	w.ok(by("bank", put("two", specOf(1))))
	w.ok(by("shop", put("small-1", specOf(2))))
	w.ok(by("shop", remove("small-2", false)))

	w.ok(putNamespace("shop", func(b *commandv1.PutNamespace) { b.Quota = &commandv1.Quota{Workloads: 200} }))
	w.ok(by("shop", put("one-more", specOf(1))))
	w.ok(put("admins", inNamespace("bank"), specOf(300<<10))) // namespace bank is now above its share, and the state is 90 % full
	refused(t, w.do(by("bank", put("c", specOf(401<<10)))), OverQuota, `namespace "bank" is full`)
	w.ok(by("bank", put("c", specOf(399<<10))))

	// The last 5 % of the size limit are for admins.
	refused(t, w.do(by("shop", put("d", specOf(90<<10)))), OverQuota, "the cluster is full", "the last 5 % are for admins", "ask an admin")
	w.ok(put("d", specOf(90<<10)))
	if err := w.s.Check(); err != nil {
		t.Error(err)
	}
}

// TestEverythingStoredIsCounted: no part of the state whose size a user chooses is outside of the limits of the state
// and of a namespace's policy.
func TestEverythingStoredIsCounted(t *testing.T) {
	const size = 40 << 10
	version := func(i, size int) func(*commandv1.WorkloadPut) {
		return func(p *commandv1.WorkloadPut) { p.Spec, p.Content = bytes.Repeat([]byte("x"), size), "c1:"+decimal(i) }
	}
	for name, tt := range map[string]struct {
		do    func(*world)
		least int64
	}{
		"former revisions": {func(w *world) {
			w.ok(put("web", version(1, size)))
			w.ok(put("web", version(2, 100)))
		}, size + 100},
		"files of former revisions": {func(w *world) {
			a, b := strings.Repeat("a", 2000), strings.Repeat("b", 1000)
			w.ok(with(put("web", filed(a), version(1, 1)), a))
			w.ok(with(put("web", filed(b), version(2, 1)), b))
		}, 3000},
		"asks and ports": {func(w *world) {
			w.ok(put("web", func(p *commandv1.WorkloadPut) {
				for i := range 1000 {
					p.Demand.HostPorts = append(p.Demand.HostPorts, &commandv1.Port{Port: uint32(i + 1024), Protocol: "tcp"})
					p.Demand.Asks = append(p.Demand.Asks, &commandv1.Ask{Rule: "ports", Value: decimal(i) + "/tcp", Field: strings.Repeat("f", 40)})
				}
			}))
		}, 1000 * (2*entryBytes + 40)},
		"an update, with its waiting and its former specifications": {func(w *world) {
			w.ok(sizedGroup(1, size/4))
			w.bind("web-0", "a")
			w.run("web-0")
			w.ok(sizedGroup(2, size/2))
		}, size/4 + size/4 + size/2},
		"volumes": {func(w *world) {
			w.ok(put("web", func(p *commandv1.WorkloadPut) {
				for i := range 10 {
					p.Demand.Volumes = append(p.Demand.Volumes, &commandv1.VolumeUse{Name: "v" + decimal(i), Driver: "local"})
				}
			}))
		}, 10 * volumeBytes},
		"a workload that its node must still remove": {func(w *world) {
			w.ok(put("web", specOf(size)))
			w.bind("web", "a")
			w.ok(remove("web", false))
		}, size},
	} {
		t.Run(name, func(t *testing.T) {
			w := formed(t, "a")
			tt.do(w)
			if got := w.s.UseOf(DefaultNamespace).Bytes; got < tt.least {
				t.Errorf("namespace default uses %d bytes, want at least %d", got, tt.least)
			}
			if got := w.s.Total().Bytes; got < tt.least {
				t.Errorf("the state has %d bytes, want at least %d", got, tt.least)
			}
			again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, w.s)))
			if err != nil {
				t.Fatal(err)
			}
			is(t, "total size of the state that was read from a snapshot", again.Total(), w.s.Total())
			is(t, "use of namespace default in the state that was read from a snapshot", again.UseOf(DefaultNamespace), w.s.UseOf(DefaultNamespace))
			for _, id := range []string{"web", "web-0"} {
				if _, ok := w.s.Workload(id); ok {
					w.ok(remove(id, true))
				}
			}
			is(t, "use of namespace default after the workloads were deleted", w.s.UseOf(DefaultNamespace), Use{})
			is(t, "total size of the state after the workloads were deleted", w.s.Total(), Total{})
		})
	}
}

// sizedGroup returns a command that gives the group web one member with a specification of size bytes.
func sizedGroup(version, size int) Command {
	c := group(version, 1, 1, false)
	c.GetPutWorkloads().Workloads[0].Spec = bytes.Repeat([]byte{byte(version)}, size)
	return c
}

// halfMiB has the two limits of the size of specifications: that of the state and that of the namespace. Each
// has a function that sets the limit to 512 KiB.
var halfMiB = map[string]func(w *world){
	"the limit of the state": func(w *world) { w.ok(replicaWith("r1", 4)) },
	"the limit of the namespace": func(w *world) {
		w.ok(putPolicy("small", func(m *commandv1.Policy) { m.MaxSpecBytes = 512 << 10 }))
		w.ok(bind("small", DefaultNamespace))
	},
}

// TestFormerSpecificationsYieldToTheSameCommand: if the workloads of a large command fit only without former
// revisions, the first workload keeps none.
func TestFormerSpecificationsYieldToTheSameCommand(t *testing.T) {
	for name, limit := range halfMiB {
		t.Run(name, func(t *testing.T) {
			w := formed(t, "a")
			limit(w)
			both := func(first, second int) Command {
				c := put("first", specOf(first), content("c1:"+decimal(first)))
				two := put("second", specOf(second), content("c1:"+decimal(second))).GetPutWorkloads().Workloads
				c.GetPutWorkloads().Workloads = append(c.GetPutWorkloads().Workloads, two...)
				return c
			}
			w.ok(both(120<<10, 1<<10))
			w.ok(both(110<<10, 390<<10))
			is(t, `number of former revisions of workload "first"`, len(w.s.Revisions("first"))-1, 0)
			if total := w.s.Total().Bytes; total > 512<<10 {
				t.Errorf("the specifications take %d bytes, more than the limit of %d", total, 512<<10)
			}
			w.ok(both(100<<10, 100<<10))
			w.ok(both(90<<10, 90<<10))
			is(t, `number of former revisions of workload "first", for which there is room now`, len(w.s.Revisions("first"))-1, 1)
			if err := w.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFormerSpecificationsYield: when the state is nearly full, it drops former revisions, and the
// specifications that an update keeps for an undo. So it never refuses a change of a specification because of
// them.
func TestFormerSpecificationsYield(t *testing.T) {
	for name, limit := range halfMiB {
		t.Run(name, func(t *testing.T) {
			w := formed(t, "a")
			limit(w)
			change := func(i, kib int) {
				w.ok(put("site", func(p *commandv1.WorkloadPut) {
					p.Spec, p.Content = bytes.Repeat([]byte("x"), kib<<10), "c1:"+decimal(i)
				}))
			}
			for i := range 5 {
				change(i, 100)
			}
			is(t, "number of former revisions while less than 80 % of the limit is used", len(w.s.Revisions("site"))-1, 2)
			for i := range 5 {
				change(10+i, 500)
			}
			is(t, "number of former revisions in a full state", len(w.s.Revisions("site"))-1, 0)
			is(t, "a put of another workload into the full state is refused", w.do(put("other", specOf(20<<10))).Kind != OK, true)
			change(20, 100)
			w.ok(sizedGroup(1, 100<<10))
			w.bind("web-0", "a")
			w.run("web-0")
			w.ok(sizedGroup(2, 120<<10))
			is(t, "number of former specifications that the update keeps", len(w.rolled().Former), 1)
			change(21, 180)
			refusedGroup := w.do(sizedGroup(3, 400<<10))
			is(t, "the update that does not fit is refused", refusedGroup.Kind != OK, true)
			w.ok(sizedGroup(3, 125<<10))
			is(t, "number of former specifications that an update keeps in a nearly full state", len(w.rolled().Former), 1)
			if err := w.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFormerSystemSpecificationsYield: an update of a system workload keeps the former specification for an undo only
// below 80 % of the limit.
func TestFormerSystemSpecificationsYield(t *testing.T) {
	for name, limit := range halfMiB {
		for others, want := range map[int]int{100 << 10: 1, 250 << 10: 0} {
			t.Run(name+", while other workloads take "+decimal(others)+" bytes", func(t *testing.T) {
				w := formed(t, "a")
				limit(w)
				w.ok(put("log", systemPut, specOf(60<<10)))
				w.ok(placeMembers(w.member("log", "a")))
				w.bind("log-a", "a")
				w.run("log-a")
				w.ok(put("other", specOf(others)))
				w.ok(updated("log"))
				r, ok := w.s.Rollout("log")
				if !ok {
					t.Fatal("the update of the system workload has no record")
				}
				is(t, "number of former specifications that the update keeps", len(r.Former), want)
				if err := w.s.Check(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestTheNarrowestLimitIsNamed: if several limits are exceeded, the refusal names the quota of the namespace, then its
// policy, then its share of the state, and then the limit of the state, each with its figures. The order is the same for
// secrets and configs.
func TestTheNarrowestLimitIsNamed(t *testing.T) {
	quota := func(w *world) {
		w.ok(putNamespace("shop", func(b *commandv1.PutNamespace) { b.Quota = &commandv1.Quota{MemoryMib: 100} }))
	}
	bound := func(w *world) {
		w.ok(putPolicy("small", func(p *commandv1.Policy) { p.Kinds, p.MaxSpecBytes = []string{"*"}, 100<<10 }))
		w.ok(bind("small", "shop"))
	}
	for _, tt := range []struct {
		name  string
		limit []func(*world)
		full  bool // the state is full
		kind  Kind
		words []string
	}{
		{"if all limits are exceeded, the refusal names the quota", []func(*world){quota, bound}, true, OverQuota, []string{`over the quota of namespace "shop": memory_mib: 0 used, 200 more asked for, limit 100`}},
		{"if the quota and the share are exceeded, the refusal names the quota", []func(*world){quota}, false, OverQuota, []string{`over the quota of namespace "shop"`}},
		{"if the policy and the limit of the state are exceeded, the refusal names the policy", []func(*world){bound}, true, NotAllowed, []string{`namespace "shop": policy "small" (rule max_spec_bytes): `, "more asked for, limit 102400", "persysctl policy bind POLICY --namespace shop"}},
		{"if the share and the limit of the state are exceeded, the refusal names the share", nil, true, OverQuota, []string{`namespace "shop" is full`, "600 KiB more", "the limit is 0 MiB, 50 %", "persysctl policy bind POLICY --namespace shop"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := formed(t, "a")
			w.ok(putNamespace("shop"))
			w.ok(replicaWith("r1", 8)) // 1 MiB of specifications
			for _, limit := range tt.limit {
				limit(w)
			}
			if tt.full {
				w.ok(put("admins", specOf(900<<10)))
			}
			c := put("web", specOf(600<<10), func(p *commandv1.WorkloadPut) { p.Demand.MemoryMib = 200 })
			refused(t, w.do(w.shared(c, "shop")), tt.kind, tt.words...)
		})
	}
	w := formed(t, "a")
	w.ok(putNamespace("shop"))
	w.ok(replicaWith("r1", 8))
	w.ok(put("admins", specOf(800<<10)))
	w.ok(w.shared(put("web", specOf(100<<10)), "shop"))
	refused(t, w.do(w.shared(putObject(KindConfig, "c", strings.Repeat("x", 450<<10), "shop"), "shop")), OverQuota, `namespace "shop" is full`)
	refused(t, w.do(w.shared(putObject(KindConfig, "c", strings.Repeat("x", 130<<10), "shop"), "shop")), OverQuota, "the cluster is full", "130 KiB more")
}
