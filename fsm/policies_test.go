package fsm

import (
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/policy"
)

func putPolicy(name string, opts ...func(*commandv1.Policy)) Command {
	m := &commandv1.Policy{Name: name, Kinds: []string{"*"}, Images: []string{"*"}, Users: []string{"*"}}
	for _, o := range opts {
		o(m)
	}
	return &commandv1.Command{Body: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: m}}}
}

func dropPolicy(name string) Command {
	return &commandv1.Command{Body: &commandv1.Command_DeletePolicy{DeletePolicy: &commandv1.DeletePolicy{Name: name}}}
}

func bind(policy, namespace string) Command {
	return &commandv1.Command{Body: &commandv1.Command_BindPolicy{BindPolicy: &commandv1.BindPolicy{Policy: policy, Namespace: namespace}}}
}

func bindNodes(policy, key, value string) Command {
	return &commandv1.Command{Body: &commandv1.Command_BindPolicy{BindPolicy: &commandv1.BindPolicy{
		Policy: policy, NodeLabel: &commandv1.Label{Key: key, Value: value},
	}}}
}

func asking(rule, value string) func(*commandv1.WorkloadPut) {
	return demand(func(d *commandv1.Demand) {
		d.Asks = append(d.Asks, &commandv1.Ask{Rule: policy.RuleImage, Value: "docker.io/library/x:1", Field: "container.image"},
			&commandv1.Ask{Rule: rule, Value: value, Field: "container.field"})
	})
}

func privileged(p *commandv1.WorkloadPut) { asking(policy.RulePrivileged, "true")(p) }

// TestPolicyOfAPut: for each kind of caller and namespace, a stored specification is checked against the right
// policy, and the workload's record keeps the name of this policy.
func TestPolicyOfAPut(t *testing.T) {
	admin := func(c Command) Command { return c }
	member := func(c Command) Command { return confined(c, "a") }
	for _, tt := range []struct {
		name    string
		bound   string
		caller  func(Command) Command
		ask     func(*commandv1.WorkloadPut)
		refused []string // words that the refusal contains; nil if the put is accepted
		under   string
	}{
		{"an admin is not checked against a policy", "", admin, privileged, nil, ""},
		{"a confined caller is checked against the policy baseline", "", member, privileged, []string{"container.field", `"baseline"`, "rule privileged", "policy bind"}, ""},
		{"a confined caller may put an ordinary workload", "", member, asking(policy.RuleUser, "1000"), nil, "baseline"},
		{"an operator of all namespaces is checked against the policy baseline", "", unprivileged, privileged, []string{"container.field", `"baseline"`, "rule privileged", "policy bind"}, ""},
		{"an operator of all namespaces may put an ordinary workload", "", unprivileged, asking(policy.RuleUser, "1000"), nil, "baseline"},
		{"an admin is checked against a bound policy", "baseline", admin, privileged, []string{`"baseline"`}, ""},
		{"a bound policy replaces the policy baseline", "restricted", member, asking(policy.RuleUser, "0"), []string{`"restricted"`, "rule users"}, ""},
		{"the policy privileged admits a confined caller and is recorded", "privileged", member, privileged, nil, "privileged"},
		{"the policy privileged admits an operator of all namespaces and is recorded", "privileged", unprivileged, privileged, nil, "privileged"},
		{"the policy privileged is not recorded for an admin", "privileged", admin, privileged, nil, ""},
		{"a confined caller is checked against a bound policy that is not built in", "own", member, privileged, []string{`"own"`}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := spaced(t)
			w.ok(putPolicy("own"))
			if tt.bound != "" {
				w.ok(bind(tt.bound, "a"))
			}
			res := w.do(tt.caller(put("web", inNamespace("a"), tt.ask)))
			if tt.refused != nil {
				refused(t, res, NotAllowed, tt.refused...)
				is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
				return
			}
			is(t, "verdict on the command", res.Kind, OK)
			is(t, `policy in the record of workload "web"`, w.workload("web").Policy, tt.under)
		})
	}
}

// unprivileged returns the command c as sent by a user who may act in all namespaces and may not bind policies.
func unprivileged(c Command) Command {
	c.Head = &commandv1.Head{At: epoch0, By: "oli", Unprivileged: true}
	return c
}

func unprivilegedScenario(w *world) {
	w.do(register("n"))
	w.do(putNamespace("a"))
	w.do(unprivileged(put("web", inNamespace("a"), privileged)))
	w.do(unprivileged(put("web", inNamespace("a"), asking(policy.RuleUser, "1000"), priority(5))))
	w.do(put("agent", privileged))
	w.do(unprivileged(put("agent", privileged, content("c1:other"))))
	w.do(unprivileged(setDesired("agent", "Stopped")))
	w.do(bind("privileged", "a"))
	w.do(unprivileged(put("web", inNamespace("a"), privileged)))
	w.do(unprivileged(cordon("n", true)))
}

// TestPoliciesJudgeEveryStoredSpecification: every command that stores a specification is checked against the policy of
// its namespace.
func TestPoliciesJudgeEveryStoredSpecification(t *testing.T) {
	one := func(id string) *commandv1.WorkloadPut {
		return put(id, inNamespace("a"), privileged).GetPutWorkloads().Workloads[0]
	}
	t.Run("one refused workload of several refuses the put", func(t *testing.T) {
		w := spaced(t)
		good := put("good", inNamespace("a")).GetPutWorkloads().Workloads[0]
		refused(t, w.do(confined(puts("", good, one("bad")), "a")), NotAllowed, "workload bad", "privileged")
		is(t, "number of workloads in the state", w.s.WorkloadCount(), 0)
	})
	t.Run("with the field each, policies judge every workload separately", func(t *testing.T) {
		w := spaced(t)
		good := put("good", inNamespace("a")).GetPutWorkloads().Workloads[0]
		res := w.do(confined(each(one("bad"), good), "a"))
		is(t, "verdict on the whole command", res.Kind, OK)
		is(t, "verdict in item 0 of the result", res.Items[0].Kind, NotAllowed)
		is(t, "verdict in item 1 of the result", res.Items[1].Kind, OK)
	})
	t.Run("a rolling update keeps the policy until a member is updated", func(t *testing.T) {
		w := formed(t, "a", "b")
		w.ok(bind("baseline", DefaultNamespace))
		w.ok(group(1, 2, 1, true))
		w.everybodyRuns()
		w.ok(group(2, 2, 1, true))
		w.step()
		is(t, `policies in the records of the members "web-0" and "web-1"`, w.workload("web-0").Policy+" "+w.workload("web-1").Policy, "baseline baseline")
		c := group(3, 2, 1, true)
		for _, p := range c.GetPutWorkloads().Workloads {
			privileged(p)
		}
		refused(t, w.do(c), NotAllowed, "workload web-0", "privileged")
	})
	t.Run("an undo, abort or resume by a person is checked against the present policy", func(t *testing.T) {
		privilegedGroup := func(n int) Command {
			c := group(n, 2, 1, true)
			for _, p := range c.GetPutWorkloads().Workloads {
				privileged(p)
			}
			return c
		}
		for action, versions := range map[string][2]Command{
			"undo":   {privilegedGroup(1), group(2, 2, 1, true)},
			"abort":  {privilegedGroup(1), group(2, 2, 1, true)},
			"resume": {group(1, 2, 1, true), privilegedGroup(2)},
		} {
			w := formed(t, "a", "b")
			w.ok(versions[0])
			w.everybodyRuns()
			w.ok(versions[1])
			w.ok(rolloutAction("pause"))
			w.ok(bind("baseline", DefaultNamespace))
			refused(t, w.do(rolloutAction(action)), NotAllowed, "workload web-0", "privileged")
			w.ok(bind("privileged", DefaultNamespace))
			is(t, action, w.do(rolloutAction(action)).Kind, OK)
		}
	})
	t.Run("an orphan that is adopted with a specification is judged", func(t *testing.T) {
		w := formed(t, "n")
		w.ok(putNamespace("a"))
		w.ok(setDrifts([]*commandv1.Drift{drifted("n", "web", DriftOrphan)}))
		w.ok(bind("baseline", "a"))
		refused(t, w.do(adopt("n", "web", inNamespace("a"), privileged)), NotAllowed, "privileged")
	})
	t.Run("the same specification under another policy gives a new order with the same content", func(t *testing.T) {
		w := spaced(t)
		w.ok(confined(put("web", inNamespace("a")), "a"))
		before := *w.workload("web")
		w.ok(put("web", inNamespace("a")))
		after := w.workload("web")
		is(t, "policies in the record of the workload before and after the second put", before.Policy+" then "+after.Policy, "baseline then ")
		is(t, `content of workload "web"`, after.Content, before.Content)
		is(t, "the generation grows with the second put", before.Generation.Less(after.Generation), true)
		res := w.ok(put("web", inNamespace("a")))
		is(t, "the third put, which is the same, is Unchanged", res.Items[0].Unchanged, true)
	})
}

// TestPeopleWhoStartAWorkloadAreHeldToThePolicyOfToday: a policy that was made stricter stops no workload. A person
// cannot start, restart, scale up from zero or run one that it does not allow. A run that the schedule of a cron makes
// is not judged again.
func TestPeopleWhoStartAWorkloadAreHeldToThePolicyOfToday(t *testing.T) {
	w := formed(t, "n")
	w.ok(put("runs", privileged))
	w.ok(put("gone", privileged))
	w.ok(setDesired("gone", "Stopped"))
	w.ok(put("nightly", privileged, cron()))
	w.ok(createRuns(w.cronStep("nightly", "", minute)))
	w.ok(put("report", privileged, parameterized))
	members := group(1, 1, 0, false)
	p := members.GetPutWorkloads().Workloads[0]
	privileged(p)
	p.Desired = string(DesiredStopped)
	w.ok(members)
	up := scaling(1, 1)
	w.ok(bind("baseline", DefaultNamespace))
	for name, c := range map[string]Command{
		"start": setDesired("gone", "Running"), "restart": userRetry("runs"), "scale up": up,
		"trigger": startRun("nightly", "nightly-x", "k"), "dispatch": startRun("report", "report-x", "k"),
	} {
		t.Run(name, func(t *testing.T) { refused(t, w.do(c), NotAllowed, "privileged", "persysctl policy bind") })
	}
	is(t, "desired state of a workload that the stricter policy does not allow", w.workload("runs").Desired, DesiredRunning)
	w.ok(createRuns(w.cronStep("nightly", "nightly-1", 2*minute)))
	w.workload("nightly-1")
	w.ok(setDesired("runs", "Stopped"))
}

// TestAnyoneMayStartWhatAnAdminStored: in a namespace without a policy, a caller who is not an admin may start, restart,
// scale up and run what an admin stored there, because no rule has become stricter since.
func TestAnyoneMayStartWhatAnAdminStored(t *testing.T) {
	w := formed(t, "n")
	w.ok(put("runs", privileged))
	w.ok(put("gone", privileged))
	w.ok(setDesired("gone", "Stopped"))
	w.ok(put("nightly", privileged, cron()))
	members := group(1, 1, 0, false)
	p := members.GetPutWorkloads().Workloads[0]
	privileged(p)
	p.Desired = string(DesiredStopped)
	w.ok(members)
	for name, c := range map[string]Command{
		"start": setDesired("gone", "Running"), "restart": userRetry("runs"), "scale up": scaling(1, 1),
		"trigger": startRun("nightly", "nightly-x", "k"),
	} {
		t.Run(name, func(t *testing.T) { w.ok(unprivileged(c)) })
	}
	refused(t, w.do(unprivileged(put("mine", privileged))), NotAllowed, "privileged")
}

// TestPolicyRecords: commands create, change, bind and delete policies. After each, the records and
// the refusals must be right.
func TestPolicyRecords(t *testing.T) {
	w := spaced(t)
	refused(t, w.do(putPolicy("baseline")), Invalid, "built-in")
	refused(t, w.do(putPolicy("-")), Invalid, "name")
	refused(t, w.do(putPolicy("own", func(m *commandv1.Policy) { m.Ports = []string{"9-8"} })), Invalid, "ports[0]", "9-8")
	refused(t, w.do(putPolicy("own", func(m *commandv1.Policy) { m.HostPaths = []*commandv1.PolicyHostPath{{Path: "/srv/../etc"}} })), Invalid, "host_paths[0]")
	w.ok(putPolicy("own"))
	is(t, "first event of the last command", w.events()[0], EventPolicyCreated)
	is(t, "verdict on the repeated command", w.do(putPolicy("own")).Kind, AlreadyDone)
	w.ok(bind("own", "a"))
	is(t, "first event of the last command", w.events()[0], EventPolicyBound)
	w.ok(putPolicy("own", func(m *commandv1.Policy) { m.Privileged = true }))
	is(t, `the changed policy is still bound to namespace "a"`, w.s.PolicyIn("a").Privileged, true)
	refused(t, w.do(dropPolicy("own")), Conflict, "namespace a")
	refused(t, w.do(dropPolicy("baseline")), Conflict, "built in")
	refused(t, w.do(dropPolicy("none")), NotFound, "none")
	refused(t, w.do(bind("none", "a")), NotFound, "none")
	refused(t, w.do(bind("own", "none")), NotFound, "none")
	refused(t, w.do(bind("own", "")), Invalid, "namespace and node_label")
	w.ok(bind("restricted", "a"))
	is(t, `policy of namespace "a" after a second policy was bound to it`, w.s.PolicyIn("a").Name, "restricted")
	w.ok(dropPolicy("own"))
	w.ok(bind("", "a"))
	is(t, "first event of the last command", w.events()[0], EventPolicyUnbound)
	is(t, `namespace "a" has no policy`, w.s.PolicyIn("a") == nil, true)
	is(t, "verdict on removing a binding that does not exist", w.do(bind("", "a")).Kind, AlreadyDone)
	w.ok(bind("privileged", "b"))
	w.ok(dropNamespace("b"))
	w.ok(putNamespace("b"))
	is(t, "a new namespace of the same name has no policy", w.s.PolicyIn("b") == nil, true)
	refused(t, w.do(confined(bind("privileged", "a"), "a")), Denied, "whole cluster")
	refused(t, w.do(confined(putPolicy("wide"), "a")), Denied, "whole cluster")

	w.ok(putPolicy("gone"))
	w.ok(bind("gone", "a"))
	w.ok(confined(put("web", inNamespace("a")), "a"))
	w.ok(bind("", "a"))
	w.ok(dropPolicy("gone"))
	is(t, "policy against which a workload is judged after its policy was deleted", w.s.Admitted(w.workload("web")).Name, "baseline")
}

// TestPolicyOfNodes: a workload is placed only on nodes whose policies allow it.
func TestPolicyOfNodes(t *testing.T) {
	w := formed(t, "plain")
	w.ok(register("guarded", func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "zone", Value: "dmz"}} }))
	w.ok(bindNodes("baseline", "zone", "dmz"))
	w.ok(put("web", privileged))
	w.ok(put("calm"))
	res := w.do(w.assign("web", "guarded"))
	is(t, "number of skipped items of the command", res.Skipped, 1)
	for _, word := range []string{`node "guarded"`, `"baseline"`, "rule privileged", "container.field"} {
		is(t, "the reason has "+word, strings.Contains(res.Reason, word), true)
	}
	w.ok(w.assign("web", "plain"))
	w.ok(w.assign("calm", "guarded"))
	w.ok(bindNodes("", "zone", "dmz"))
	is(t, `number of policies that hold on node "guarded"`, len(w.s.NodePolicies(w.node("guarded"))), 0)
}

// TestPolicyLimitsItsNamespace: a policy limits the number of workloads in its namespace, and the bytes of
// their specifications.
func TestPolicyLimitsItsNamespace(t *testing.T) {
	w := formed(t, "n")
	w.ok(putNamespace("a"))
	w.ok(putPolicy("small", func(m *commandv1.Policy) { m.MaxWorkloads, m.MaxSpecBytes = 2, 10 }))
	w.ok(bind("small", "a"))
	sized := func(n int) func(*commandv1.WorkloadPut) {
		return func(p *commandv1.WorkloadPut) { p.Spec = make([]byte, n) }
	}
	w.ok(put("one", inNamespace("a"), sized(6)))
	refused(t, w.do(put("two", inNamespace("a"), sized(5))), NotAllowed, "max_spec_bytes", "6 used, 5 more asked for, limit 10")
	w.ok(put("two", inNamespace("a"), sized(4)))
	refused(t, w.do(put("three", inNamespace("a"), sized(0))), NotAllowed, "max_workloads", "2 used, 1 more asked for, limit 2")
	w.ok(put("one", inNamespace("a"), sized(1), content("c1:less")))
	is(t, `Bytes used by namespace "a"`, w.s.UseOf("a").Bytes, 5)
	w.ok(remove("two", true))
	is(t, `Bytes used by namespace "a"`, w.s.UseOf("a").Bytes, 1)
	w.ok(put("three", inNamespace("a"), sized(9)))
}

// TestPoliciesAreRestored: a restore keeps the present policies and bindings, and adds policies and bindings
// of the backup that do not contradict them.
func TestPoliciesAreRestored(t *testing.T) {
	backup := spaced(t)
	backup.ok(putPolicy("old"))
	backup.ok(putPolicy("both"))
	backup.ok(bind("old", "a"))
	backup.ok(bind("both", "b"))
	backup.ok(bindNodes("restricted", "zone", "dmz"))
	present := spaced(t)
	present.ok(putPolicy("both", func(m *commandv1.Policy) { m.Privileged = true }))
	present.ok(bind("both", "a"))
	s, err := Restored(backup.s, present.s, RestoreInfo{At: present.now, By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	is(t, `policy that is bound to namespace "a"`, s.PolicyIn("a").Name, "both")
	is(t, `the policy "both" of namespace "a" is that of the present state`, s.PolicyIn("a").Privileged, true)
	is(t, `namespace "b" has no policy, because policy "both" differs between the backup and the present state`, s.PolicyIn("b") == nil, true)
	_, there := s.Policy("old")
	is(t, `policy "old" of the backup exists in the restored state`, there, true)
	p, _ := s.Policy("restricted")
	is(t, `number of node labels to which policy "restricted" is bound`, len(p.Nodes), 1)
}

// TestAdminsOnly: agents give a workload the rights of admins' workloads only if no user whose rights are limited to
// some namespaces can have changed it. Such users are listed in the record of the namespace, or have a role in it.
func TestAdminsOnly(t *testing.T) {
	w := formed(t, "n")
	for _, name := range []string{"admins", "listed", "bound"} {
		w.ok(putNamespace(name))
		w.ok(put("web-"+name, inNamespace(name)))
	}
	w.ok(putNamespace("listed", users("ada")))
	w.ok(w.bindRole("operator", "group/shop", "bound"))
	w.ok(w.bindRole("operator", "user/bob", "*"))
	for name, want := range map[string]bool{"admins": true, "listed": false, "bound": false} {
		is(t, "only admins have changed the workload in namespace "+name, AdminsOnly(w.s, w.workload("web-"+name)), want)
	}
}
