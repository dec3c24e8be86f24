package fsm

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/fsm/rollout"
)

// operator takes the place of a namespace in the arguments of shared: the caller may act in all namespaces,
// but is not an admin.
const operator = "*"

// shared adds to the head of a command the shares that the leader and confined users have.
func (w *world) shared(c Command, namespaces ...string) Command {
	info, unprivileged := w.s.Info(), slices.Contains(namespaces, operator)
	if unprivileged {
		namespaces = nil
	}
	c.Head = &commandv1.Head{At: w.now, By: "tester", Namespaces: namespaces, NamespaceShare: NamespaceShare, RoomReserve: AdminReserve, Unprivileged: unprivileged}
	if armOf(c).planned() {
		c.Head.Epoch = &commandv1.Epoch{Incarnation: info.Incarnation, Term: w.term}
	}
	for _, p := range append(c.GetPutWorkloads().GetWorkloads(), append(c.GetPutWorkloads().GetSurge(), c.GetScaleGroup().GetMembers()...)...) {
		p.Namespace = "shop"
	}
	return c
}

// shopOf returns a world with a state of at most 256 workloads and 1 MiB, where namespace shop has other small workloads.
func shopOf(t *testing.T, others int) *world {
	w := formed(t, "a", "b")
	w.ok(putNamespace("shop"))
	w.ok(replicaWith("r1", 8))
	for i := range others {
		w.ok(put("other-"+decimal(i), inNamespace("shop"), specOf(1)))
	}
	return w
}

// TestSharesOfWhatTheClusterCreates: the share of a namespace, and the part of the state that is for admins, limit
// the workloads that the cluster creates from specifications of a confined user. Only the part for admins limits
// workloads that it creates from specifications of an operator who acts in all namespaces. Neither limits workloads that
// it creates from specifications of admins.
func TestSharesOfWhatTheClusterCreates(t *testing.T) {
	const half = NamespaceShare * 256 / 100
	reason := func(w *world, id string) string { return w.workload(id).Reason.Message }
	for name, tt := range map[string]struct {
		store  func(w *world, by ...string) // stores a workload from which the cluster creates more; by is a confined user's namespace, or operator
		create func(w *world) string        // lets the cluster create more, and returns the refusal
	}{
		"a member of a system workload": {
			func(w *world, by ...string) { w.ok(w.shared(put("log", systemPut), by...)) },
			func(w *world) string {
				w.do(w.shared(placeMembers(w.member("log", "a"))))
				return reason(w, "log")
			},
		},
		"a member that the autoscaler adds": {
			func(w *world, by ...string) { w.ok(w.shared(autoscaled(group(1, 1, 0, false), 1, 4), by...)) },
			func(w *world) string {
				return w.do(w.shared(autoscaled(scaling(1, 2, byLeader), 1, 4))).Reason
			},
		},
		"a run of a cron": {
			func(w *world, by ...string) {
				w.ok(w.shared(put("nightly", cron()), by...))
				w.ok(createRuns(w.cronStep("nightly", "", minute)))
			},
			func(w *world) string {
				w.do(w.shared(createRuns(w.cronStep("nightly", "nightly-1", 2*minute))))
				if _, ok := w.s.Workload("nightly-1"); ok {
					return ""
				}
				return w.eventOf(EventCronMissed).Message
			},
		},
		"an extra member of an update": {
			func(w *world, by ...string) {
				w.ok(w.shared(group(1, 1, 1, false), by...))
				w.bind("web-0", "a")
				w.run("web-0")
				next := group(2, 1, 1, false)
				b := next.GetPutWorkloads()
				b.Update.StartFirst = true
				extra := b.Workloads[0].CloneVT()
				extra.Id, extra.Demand.Surge = "web-1", true
				b.Surge = append(b.Surge, extra)
				w.ok(w.shared(next, by...))
			},
			func(w *world) string {
				r := w.rolled()
				w.do(w.shared(advance(GenerationPB(RolloutID(r)), &commandv1.AdvanceRollout{Take: r.Next(w.s.Seen, w.now).Take})))
				if r = w.rolled(); r.Phase == rollout.Paused {
					return r.Reason
				}
				return ""
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			room := shopOf(t, half-2)
			tt.store(room, "shop")
			is(t, "refusal of a workload within the share of the namespace", tt.create(room), "")

			full := shopOf(t, half-1)
			tt.store(full, "shop")
			again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, full.s)))
			if err != nil {
				t.Fatal(err)
			}
			full.s = again
			if why := tt.create(full); !strings.Contains(why, `namespace "shop" is full`) {
				t.Errorf("a workload above the share of the namespace got the answer %q, want a refusal that says that the namespace is full", why)
			}

			full = shopOf(t, half-1)
			tt.store(full, operator)
			is(t, "refusal of a workload above the share, from a specification of an operator in all namespaces", tt.create(full), "")

			for _, by := range []string{"shop", operator} {
				nearly := shopOf(t, 0)
				nearly.ok(putNamespace("shop", func(b *commandv1.PutNamespace) { b.Quota = &commandv1.Quota{Workloads: 1000} }))
				tt.store(nearly, by)
				for i := range 243 - nearly.s.Total().Workloads {
					nearly.ok(put("more-"+decimal(int(i)), specOf(1)))
				}
				if why := tt.create(nearly); !strings.Contains(why, "the last 5 % are for admins") {
					t.Errorf("a workload in the last 5 %% of the limit, from a specification of %q, got the answer %q, want a refusal", by, why)
				}
			}

			admins := shopOf(t, 0)
			tt.store(admins)
			for i := range 244 - admins.s.Total().Workloads {
				admins.ok(put("more-"+decimal(int(i)), inNamespace("shop"), specOf(1)))
			}
			is(t, "refusal of a workload from a specification of an admin", tt.create(admins), "")
		})
	}
}

// TestAConfinedUserRunsAnAdminsCron: the share of the caller applies to a run that a person starts, whoever applied the
// cron.
func TestAConfinedUserRunsAnAdminsCron(t *testing.T) {
	w := shopOf(t, NamespaceShare*256/100-1)
	w.ok(put("nightly", inNamespace("shop"), cron()))
	refused(t, w.do(w.shared(startRun("nightly", "nightly-1", "k"), "shop")), OverQuota, `namespace "shop" is full`)
	w.ok(startRun("nightly", "nightly-1", "k"))
}

// TestFormerSpecificationsYieldToTheShare: former revisions are dropped when present specifications need the
// share of a confined user's namespace.
func TestFormerSpecificationsYieldToTheShare(t *testing.T) {
	w := shopOf(t, 0)
	for i := range 8 {
		w.ok(w.shared(put("site", specOf(200<<10), content("c1:"+decimal(i))), "shop"))
	}
	is(t, "number of former revisions of the large workload", len(w.s.Revisions("site"))-1, 1)
	w.ok(w.shared(put("site", specOf(250<<10), content("c1:9")), "shop"))
	is(t, "number of former revisions after the present revision has grown", len(w.s.Revisions("site"))-1, 0)
	w.ok(w.shared(put("more", specOf(250<<10)), "shop"))

	// An admin's namespace has history until the whole state is nearly full.
	w = shopOf(t, 0)
	w.ok(put("site", specOf(250<<10), content("c1:1")))
	w.ok(put("site", specOf(250<<10), content("c1:2")))
	is(t, "number of former revisions of a workload in a namespace of admins", len(w.s.Revisions("site"))-1, 1)
}

// TestRevertsAreOutsideTheShares: an update of a confined user fails when the namespace is full. The
// automatic revert to the former specification succeeds, although the former specification is larger.
func TestRevertsAreOutsideTheShares(t *testing.T) {
	w := shopOf(t, 0)
	sized := func(version, size int) Command {
		c := group(version, 2, 1, true) // one member waits when the other one fails
		c.GetPutWorkloads().Workloads[0].Spec = []byte(strings.Repeat("x", size))
		return w.shared(c, "shop")
	}
	w.ok(sized(1, 150<<10))
	w.everybodyRuns()
	w.ok(sized(2, 100))
	next := func(b *commandv1.AdvanceRollout) {
		w.ok(w.shared(advance(GenerationPB(RolloutID(w.rolled())), b)))
	}
	next(&commandv1.AdvanceRollout{Take: []string{"web-0"}})
	w.ok(put("full", inNamespace("shop"), specOf(500<<10)))
	next(&commandv1.AdvanceRollout{Failure: "web-0 is not healthy", Revert: true})
	is(t, "phase of the update, and its reason, after the failure", string(w.rolled().Phase)+w.rolled().Reason, string(rollout.Running)+"web-0 is not healthy")
	next(&commandv1.AdvanceRollout{Take: []string{"web-0"}})
	is(t, `bytes of the specification that member "web-0" has again`, len(w.workload("web-0").Spec), 150<<10)
}
