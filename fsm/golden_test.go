package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/policy"
)

var update = flag.Bool("update", false, "add missing golden files; files that are there are never changed")

// scenarios are the command sequences of the golden corpus. Every later version must apply the recorded
// commands with the same results as the version that recorded them. Do not change a scenario, because -update
// does not rewrite existing files. To test something new, add a scenario and run go test ./fsm -update.
var scenarios = []struct {
	name string
	run  func(w *world)
}{
	{"01-lifecycle", func(w *world) {
		w.do(register("a"))
		w.do(register("b", engine("engine-1")))
		w.do(put("web", hostPort(80), demand(func(d *commandv1.Demand) {
			d.Labels = []*commandv1.Label{{Key: "zone", Value: "x"}, {Key: "disk", Value: "ssd"}}
			d.Constraints = []*commandv1.Constraint{{Key: "zone", Op: "in", Values: []string{"x", "y"}}}
			d.Tolerations = []*commandv1.Taint{{Key: "gpu", Effect: "NoSchedule"}}
			d.DiskGb, d.StoragePool, d.Priority = 10, "main", -3
		})))
		w.do(explain("web", CodeUnplaced, "2 nodes lack label zone", w.generation("web")))
		w.do(w.assign("web", "a"))
		w.do(report(&commandv1.WorkloadReport{
			Workload: "web", Node: "a", Generation: w.generation("web"), State: "Running", Acknowledged: true,
			Addresses: []string{"10.0.0.2"}, Ports: []*commandv1.PortBinding{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}},
			RestartCount: 2, ObservedAt: w.now,
		}))
		w.do(put("web", content("c1:changed")))
		w.do(w.says("web", "Failed"))
		w.do(w.retry("web", 1, w.now+minute, false))
		w.do(w.retry("web", 2, 0, false))
		w.do(w.retry("web", 3, 0, true))
		w.do(userRetry("web"))
		w.do(setDesired("web", "Stopped"))
		w.do(w.says("web", "Stopped"))
		w.do(setDesired("web", "Running"))
		w.do(w.evict("web", CodeDraining, false))
		w.do(w.assign("web", "b"))
		w.do(gone("web", "a", nil))
		w.do(remove("web", false))
		w.do(gone("web", "b", nil))
	}},
	{"02-nodes", func(w *world) {
		w.do(register("a", func(n *commandv1.RegisterNode) {
			n.Types = []string{"VM", "docker-container"}
			n.StorageDrivers = []string{"ceph_rbd"}
			n.Taints = []*commandv1.Taint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}}
			n.Labels = []*commandv1.Label{{Key: "zone", Value: "x"}, {Key: "arch", Value: "amd64"}}
			n.SelfFencing, n.AgentVersion, n.Timestamp = true, "1.2.3", "2026-01-02T03:04:05Z"
		}))
		w.do(register("a", func(n *commandv1.RegisterNode) { n.InstanceId = "another" }))
		w.do(put("db", exclusive))
		w.do(put("web"))
		w.do(w.assign("db", "a"))
		w.do(w.assign("web", "a"))
		w.do(cordon("a", true))
		w.do(drain("a", true))
		w.do(fence("a"))
		w.do(nodeState("a", false))
		w.do(w.evict("web", CodeNodeLost, false))
		w.do(w.evict("db", CodeNodeLost, true))
		w.do(fence("a"))
		w.do(w.evict("db", CodeNodeLost, true))
		w.do(register("a"))
		w.do(removeNode("a", false))
		w.do(drain("a", false))
		w.do(cordon("a", false))
		w.do(w.assign("web", "a"))
		w.do(removeNode("a", false))
		w.do(removeNode("a", true))
		w.do(removeNode("a", true))
	}},
	{"03-cluster", func(w *world) {
		w.do(putReplica("r1", 1))
		w.do(putReplica("r2", 2))
		w.do(putReplica("r2", 2))
		w.do(setLevel(0))
		w.do(setLevel(1))
		w.do(setLevel(2)) // refused, because replica r1 understands only feature level 1
		w.do(setMode("degraded", "etcd is away"))
		w.do(put("web"))
		w.do(register("new"))
		w.do(barrier())
		w.do(setMode("normal", ""))
		w.do(initCluster("c1"))
		w.do(initCluster("c2"))
		w.do(removeReplica("r1"))
	}},
	{"04-receipts", func(w *world) {
		id := requestAt(w.now, 1)
		w.as(id, put("web"))
		w.as(id, put("web"))
		w.as(requestAt(w.now, 2), setDesired("none", "Running"))
		w.as(requestAt(w.now, 2), setDesired("none", "Running"))
		w.as([]byte("short"), put("web"))
		w.as(requestAt(w.now+3_600_000*1_000_000, 3), put("web"))
	}},
	{"05-groups", func(w *world) {
		member := func(id string) *commandv1.WorkloadPut {
			return put(id, demand(func(d *commandv1.Demand) { d.Group = "g" })).GetPutWorkloads().Workloads[0]
		}
		w.do(puts("g", member("g-0"), member("g-1"), member("g-2")))
		w.do(puts("g", member("g-0")))
		w.do(puts("g", member("g-0"), member("g-0")))
		w.do(puts("g"))
		w.do(puts(""))
	}},
	{"06-fenced-returns", func(w *world) {
		w.do(register("a"))
		w.do(register("b"))
		w.do(put("db", exclusive, hostPort(80)))
		w.do(w.assign("db", "a"))
		w.do(w.says("db", "Running"))
		former := w.says("db", "Running")
		w.do(nodeState("a", false))
		w.do(fence("a"))
		w.do(w.evict("db", CodeNodeLost, true))
		w.do(w.assign("db", "b"))
		w.do(register("a"))
		w.do(former)
		w.do(gone("db", "a", w.generation("db")))
	}},
	{"07-mirror", func(w *world) {
		w.do(attached(0))
		w.do(attached(0xcafe))
		w.do(attached(0xcafe))
		w.do(setMode("degraded", "etcd is away"))
		w.do(attached(0xbeef))
		w.do(pinMode("normal", "go on without it"))
		w.do(pinMode("normal", "go on without it"))
		w.do(setMode("degraded", "the leader does not take it back"))
		w.do(unpinMode("normal", ""))
		w.do(setMode("degraded", "etcd is away"))
	}},
	{"08-trust", func(w *world) {
		w.do(pin("AABB"))
		w.do(pin("00112233aabbccdd"))
		w.do(pin("00112233aabbccdd"))
		w.do(pin("ffffffffffffffff"))
		w.do(authority("1", w.now, w.now+10*day))
		w.do(authority("2", w.now+day, w.now+10*day))
		w.do(dropAuthority("1"))
		w.do(dropAuthority("2"))
		w.do(joinToken(w, "t1", "agent", uses(2)))
		w.do(joinToken(w, "t2", "user"))
		w.do(join(w, "t1", "agent", "n1"))
		w.do(join(w, "t1", "agent", "n1"))
		w.do(join(w, "t1", "agent", "n1", keyOf(8)))
		w.do(join(w, "", "agent", "n1", keyOf(8)))
		w.do(revoke("agent", "n1", ""))
		w.do(revoke("", "", print64("a")))
		w.do(join(w, "", "agent", "n1", keyOf(9)))
		w.do(dropToken("t2"))
		w.do(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type: EventCallRefused, Message: "3 calls", Details: []*commandv1.Label{{Key: "method", Value: "m"}}}}})
		c := setDesired("none", "Stopped")
		c.Head = &commandv1.Head{At: w.now, By: "tester", From: "10.0.0.1:2", Request: requestAt(w.now, 9)}
		w.do(c)
	}},
	{"09-tombstones", func(w *world) {
		w.do(register("a"))
		w.do(put("early"))
		w.do(remove("early", false))
		told := deletedWhileFenced(w, hostPort(80))
		w.do(saysOf("web", "a", "Running", told))
		w.do(saysOf("web", "a", "Running", told))
		left, _ := w.s.Residual("a", "web")
		w.do(gone("web", "a", GenerationPB(left.Generation)))
		w.do(put("web"))
		w.do(remove("web", true))
	}},
	{"10-failures", func(w *world) {
		w.do(register("a"))
		w.do(w.forgive("none"))
		w.do(actions("a", ""))
		w.do(put("web"))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Failed"))
		w.do(w.retry("web", 1, w.now+minute, false))
		w.do(w.retry("web", 1, 0, false))
		w.do(w.says("web", "Running"))
		w.do(w.says("web", "Failed"))
		w.do(actions("a", "web", action("t1", "web", 5), action("t0", "web", 5)))
		w.do(actions("a", "web", action("t2", "web", 6), action("t1", "web", 5)))
		w.do(w.retry("web", 2, 0, true))
		w.do(nodeState("a", false))
		w.do(nodeState("a", true))
		w.do(w.says("web", "Running"))
		w.do(w.forgive("web"))
		w.do(w.forgive("web"))
		w.do(removeNode("a", true))
	}},
	{"11-another-machine", func(w *world) {
		w.do(register("a", engine("engine-a")))
		w.do(put("db", exclusive))
		w.do(w.assign("db", "a"))
		w.do(w.says("db", "Missing"))
		w.do(w.evict("db", CodeMissing, true))
		w.do(nodeState("a", false))
		another := func(n *commandv1.RegisterNode) { n.InstanceId, n.EngineId = "other", "engine-z" }
		w.do(register("a", another))
		w.do(fence("a"))
		w.do(register("a", another))
	}},
	{"12-drifts", func(w *world) {
		w.do(register("a"))
		w.do(register("b"))
		w.do(setDrifts([]*commandv1.Drift{drifted("a", "ghost", DriftOrphan)}))
		w.do(put("web"))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Running"))
		w.do(setDrifts([]*commandv1.Drift{
			drifted("a", "ghost", DriftOrphan), drifted("b", "other", DriftOrphan), drifted("b", "web", DriftOrphan),
			drifted("a", "web", DriftRevision), drifted("c", "web", DriftState), drifted("a", "web", "odd"),
		}, drifted("a", "none", DriftMissing)))
		c := setDrifts([]*commandv1.Drift{drifted("a", "web", DriftRevision)})
		c.GetSetDrifts().Open[0].Repairs, c.GetSetDrifts().Open[0].RepairedAt = 1, w.now
		c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: "web", Node: "a", IfGeneration: w.generation("web")}}
		w.do(c)
		w.do(setDrifts(nil, drifted("a", "web", DriftRevision)))
		w.do(dropOrphan("a", "ghost"))
		w.do(dropOrphan("a", "ghost"))
		w.do(gone("ghost", "a", nil))
		w.do(adopt("b", "other"))
		w.do(adopt("b", "other", hostPort(80)))
		w.do(adopt("b", "web"))
		w.do(removeNode("a", true))
	}},
	{"13-former-ports", func(w *world) {
		w.do(register("a"))
		w.do(put("web", hostPort(80)))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Running"))
		w.do(put("web", content("c1:new"), hostPort(443)))
		w.do(put("api", hostPort(80)))
		w.do(w.assign("api", "a"))
		w.do(w.evict("web", CodeDraining, false))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Failed"))
		w.do(put("web", content("c1:newer"), hostPort(8080)))
		w.do(w.says("web", "Running"))
		w.do(w.assign("api", "a"))
	}},
	{"14-runtime-not-there", func(w *world) {
		w.do(register("a"))
		w.do(put("web"))
		w.do(w.assign("web", "a"))
		w.do(report(&commandv1.WorkloadReport{
			Workload: "web", Node: "a", Generation: w.generation("web"), Refused: true, Code: CodeRuntimeNotOffered,
		}))
		w.do(w.evict("web", CodeRuntimeNotOffered, false))
		w.do(w.assign("web", "a"))
		w.do(register("a"))
		w.do(w.assign("web", "a"))
	}},
	{"15-stops", func(w *world) {
		w.do(register("a"))
		w.do(put("web", hostPort(80)))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Running"))
		w.do(setDesired("web", "Stopped"))
		w.do(setDesired("web", "Stopped"))
		refusal := func() Command {
			return report(&commandv1.WorkloadReport{
				Workload: "web", Node: "a", Generation: w.generation("web"), Refused: true, Code: "RUNTIME_ERROR", Message: "busy",
			})
		}
		w.do(refusal())
		w.do(w.retry("web", 1, w.now+minute, false))
		w.do(w.retry("web", 1, 0, false))
		w.do(refusal())
		exhausted := w.retry("web", 5, w.now+minute, false)
		exhausted.GetScheduleRetries().Retries[0].Code = CodeExhausted
		w.do(exhausted)
		w.do(setDesired("web", "Stopped"))
		w.do(w.says("web", "Running"))
		w.do(nodeState("a", false))
		w.do(nodeState("a", true))
		w.do(w.says("web", "Missing"))
		w.do(setDesired("web", "Stopped"))
		w.do(put("web", hostPort(443), func(p *commandv1.WorkloadPut) { p.Desired = "Stopped" }))
		w.do(w.says("web", "Running"))
		w.do(w.says("web", "Failed"))
	}},
	{"16-sessions", func(w *world) {
		opened := &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
			Type: EventSessionOpened, Message: "sh -c date", Workload: "web", Node: "a", Details: []*commandv1.Label{{Key: "tty", Value: "true"}}}}}
		w.do(opened)
		w.do(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: EventSessionClosed, Message: "exit code 3", Workload: "web", Node: "a"}}})
		w.do(&commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{Type: EventCallRefused, Workload: strings.Repeat("w", 257)}}})
	}},
	{"17-names-and-health", func(w *world) {
		said := func(health string) Command {
			return report(&commandv1.WorkloadReport{
				Workload: "web", Node: "a", Generation: w.generation("web"), State: "Running", Acknowledged: true, Health: health, ObservedAt: w.now,
			})
		}
		named := func(name string) func(*commandv1.WorkloadPut) {
			return demand(func(d *commandv1.Demand) {
				d.PortNames = []*commandv1.PortName{{Name: name, ContainerPort: 8080, Protocol: "tcp"}, {Name: "metrics", ContainerPort: 9090, Protocol: "tcp", HostPort: 19090}}
			})
		}
		told := func(kind string) Command {
			return &commandv1.Command{Body: &commandv1.Command_Audit{Audit: &commandv1.Audit{
				Type: kind, Message: "10.0.0.9:53 does not answer", Details: []*commandv1.Label{{Key: "server", Value: "10.0.0.9:53"}},
			}}}
		}
		w.do(register("a"))
		w.do(put("web", named("http")))
		w.do(w.assign("web", "a"))
		w.do(put("web", named("http")))
		w.do(put("web", named("HTTP")))
		w.do(put("web", named("https")))
		w.do(said(HealthStarting))
		w.do(said(Healthy))
		w.do(said(Healthy))
		w.do(said(Unhealthy))
		w.do(told(EventCoreDNSLost))
		w.do(told(EventCoreDNSBack))
		w.do(told(EventMirrorRestored))
		w.do(told(EventModeChanged))
		w.do(remove("web", false))
		w.do(gone("web", "a", nil))
	}},
	{"18-gossip-ring", func(w *world) {
		ring := func(version uint64, sealed, step string) Command {
			return &commandv1.Command{Body: &commandv1.Command_SetGossipRing{SetGossipRing: &commandv1.SetGossipRing{IfVersion: version, Sealed: sealed, Step: step}}}
		}
		w.do(ring(0, "sealed:one", "opens 1"))
		w.do(ring(0, "sealed:two", "too late"))
		w.do(ring(1, "sealed:two", "seals 1"))
		w.do(ring(2, "", "nothing"))
		w.do(ring(2, strings.Repeat("x", 4097), "too long"))
		w.do(ring(2, "sealed:three", "only 1"))
	}},
	{"19-rollouts", func(w *world) {
		w.ok(register("a"))
		w.do(group(1, 3, 1, true))
		w.everybodyRuns()
		w.do(group(2, 3, 1, true))
		w.step()
		w.everybodyRuns()
		w.wait(10 * second)
		w.step()
		w.do(rolloutAction("pause"))
		w.step()
		w.do(rolloutAction("resume"))
		w.wait(minute)
		w.step() // the rolling update fails and reverts
		w.everybodyRuns()
		w.wait(10 * second)
		w.step()
		w.do(rolloutAction("undo"))
		w.do(group(2, 3, 0, false)) // max_parallel 0: all members of the group change at once
		w.do(group(3, 2, 1, false))
		w.do(remove("web-0", true))
		w.do(remove("web-1", true))
		w.do(remove("web-2", true))
	}},
	{"20-namespaces", func(w *world) {
		w.do(put("early", inNamespace("a")))
		w.do(register("n"))
		w.do(putNamespace("a", limits(2000, 0, 0, 2), users("ada", "bob")))
		w.do(putNamespace("a", limits(2000, 0, 0, 2), users("bob", "ada")))
		w.do(putNamespace("b", users("bob")))
		w.do(putNamespace("-"))
		w.do(putNamespace("c", limits(-1, 0, 0, 0)))
		w.do(put("web", inNamespace("a"), cpu(1500)))
		w.do(put("api", inNamespace("a"), cpu(600)))
		w.do(put("api", inNamespace("a"), cpu(500)))
		w.do(put("one-more", inNamespace("a"), cpu(0)))
		w.do(put("web", inNamespace("b"), cpu(1500)))
		w.do(put("nowhere", inNamespace("none")))
		w.do(put("web", cpu(1400)))
		w.do(put("old"))
		w.do(w.assign("web", "n"))
		w.do(setDesired("web", "Stopped"))
		w.do(confined(put("api", cpu(400)), "b"))
		w.do(confined(setDesired("api", "Stopped"), "b"))
		w.do(confined(remove("old", false), "a", "b"))
		w.do(confined(userRetry("api"), "a"))
		w.do(confined(cordon("n", true), "a"))
		w.do(putNamespace("a", limits(1000, 0, 0, 1), users("ada", "bob")))
		w.do(put("web", cpu(1200)))
		w.do(put("web", cpu(1300)))
		w.do(dropNamespace("a"))
		w.do(putNamespace("a", limits(1000, 0, 0, 1), users("ada")))
		w.do(putNamespace("a", limits(1000, 0, 0, 1)))
		w.do(putNamespace("a", limits(1000, 0, 0, 1), func(b *commandv1.PutNamespace) { b.Release = []string{"ada"} }))
		w.do(remove("web", false))
		w.do(remove("api", false))
		w.do(dropNamespace("a"))
		w.do(gone("web", "n", nil))
		w.do(dropNamespace("a"))
		w.do(dropNamespace("b"))
		w.do(dropNamespace("default"))
		w.do(putNamespace("default", limits(0, 0, 0, 1)))
		w.do(put("second"))
	}},
	{"21-namespace-versions", func(w *world) {
		w.do(putNamespace("a", users("ada"), ifVersion(7)))
		w.do(putNamespace("a", users("ada"), ifVersion(0)))
		made := w.index
		w.do(putNamespace("a", users("ada"), ifVersion(0)))
		w.do(putNamespace("a", limits(1000, 0, 0, 0), users("ada"), ifVersion(made)))
		w.do(putNamespace("a", users("ada", "bob"), ifVersion(made)))
		c := putNamespace("a", users("ada", "bob"))
		c.Head = &commandv1.Head{At: w.now, By: "persys://c/user/admin", From: "10.0.0.1:2", Via: "persys://c/gateway/g", Request: requestAt(w.now, 9)}
		w.do(c)
	}},
	{"22-adoptions", func(w *world) {
		w.do(register("a", fencing))
		w.do(register("b", fencing))
		w.do(put("web", hostPort(80)))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Running"))
		w.do(setDrifts([]*commandv1.Drift{drifted("b", "web", DriftOrphan), drifted("a", "db", DriftOrphan)}))
		w.do(adopt("b", "web", hostPort(81), content("c1:other")))
		w.do(put("other", hostPort(80)))
		w.do(w.assign("other", "a"))
		w.do(adopt("a", "db", stops))
		w.do(nodeState("a", false))
		w.do(w.evict("db", CodeNodeLost, true))
		w.do(w.says("web", "Failed"))
		w.do(w.retry("web", 5, 0, true))
		c := setDrifts(nil)
		c.GetSetDrifts().Repairs = []*commandv1.DriftRepair{{Workload: "web", Node: "b", IfGeneration: w.generation("web")}}
		w.do(c)
	}},
	{"23-rollouts-leave-alone", func(w *world) {
		w.do(register("a"))
		w.do(group(1, 3, 1, true))
		w.everybodyRuns()
		w.do(group(2, 3, 1, true))
		w.step()
		w.do(put("web-1", content("c1:mine"), demand(func(d *commandv1.Demand) { d.Group = "web" })))
		w.do(remove("web-2", true))
		w.wait(31 * second)
		w.step()
		w.do(rolloutAction("pause"))
		w.do(group(3, 1, 1, true))
		w.step()
		w.do(group(1, 1, 1, false))
		w.do(rolloutAction("pause"))
		w.do(rolloutAction("undo"))
	}},
	{"24-each", func(w *world) {
		w.do(register("a"))
		w.ok(putNamespace("small", func(n *commandv1.PutNamespace) { n.Quota = &commandv1.Quota{CpuMillicores: 1500} }))
		of := func(id, in string, opts ...func(*commandv1.WorkloadPut)) *commandv1.WorkloadPut {
			p := put(id, opts...).GetPutWorkloads().GetWorkloads()[0]
			p.Namespace = in
			return p
		}
		c := each(of("one", ""), of("two", "small"), of("three", "small"), of("bad id", ""), of("one", "", content("c1:other")), of("four", "nowhere"))
		id := requestAt(w.now, 1)
		w.as(id, c)
		w.as(id, c)
		w.do(each(of("one", "", content("c1:other"))))
		c = each(of("one", ""))
		c.GetPutWorkloads().GroupOf = "g"
		w.do(c)
		w.do(each())
	}},
	{"70-policies", func(w *world) {
		w.do(register("n", func(n *commandv1.RegisterNode) { n.Labels = []*commandv1.Label{{Key: "zone", Value: "dmz"}} }))
		w.do(putNamespace("a"))
		w.do(putNamespace("b"))
		w.do(putPolicy("own", func(m *commandv1.Policy) {
			m.Description, m.HostPaths = "of its own", []*commandv1.PolicyHostPath{{Path: "/srv", ReadOnly: true}}
			m.Ports, m.MaxPids, m.MaxWorkloads, m.MaxSpecBytes = []string{"80", "1024-65535"}, 100, 3, 1000
		}))
		w.do(putPolicy("own", func(m *commandv1.Policy) { m.Kinds = []string{"odd"} }))
		w.do(putPolicy("restricted"))
		w.do(confined(put("web", inNamespace("a"), privileged), "a"))
		w.do(confined(put("web", inNamespace("a"), asking(policy.RuleHostPath, "/etc")), "a"))
		w.do(confined(put("web", inNamespace("a"), asking(policy.RuleUser, "1000")), "a"))
		w.do(bind("own", "a"))
		w.do(bind("own", "b"))
		w.do(bind("restricted", "b"))
		w.do(bind("none", "a"))
		w.do(bindNodes("baseline", "zone", "dmz"))
		w.do(bindNodes("own", "", ""))
		w.do(put("files", inNamespace("a"), asking(policy.RuleHostPathRead, "/srv/x")))
		w.do(put("files", inNamespace("a"), asking(policy.RuleHostPath, "/srv/x")))
		w.do(put("free", privileged))
		w.do(w.assign("free", "n"))
		w.do(w.assign("web", "n"))
		w.do(w.assign("files", "n"))
		w.do(put("web", inNamespace("a"), asking(policy.RuleUser, "1000")))
		w.do(bind("privileged", "a"))
		w.do(confined(put("web", inNamespace("a"), privileged), "a"))
		w.do(put("web", inNamespace("a"), privileged))
		w.do(dropPolicy("own"))
		w.do(bindNodes("", "zone", "dmz"))
		w.do(bind("", "a"))
		w.do(dropNamespace("b"))
		w.do(w.assign("free", "n"))
	}},
	{"76-roles", rolesScenario},
	{"71-retry-if-needed", func(w *world) {
		w.do(register("a"))
		w.place("web", "a")
		w.do(retryIfNeeded("web"))
		w.run("web")
		w.do(retryIfNeeded("web"))
		w.do(w.says("web", "Failed"))
		w.do(retryIfNeeded("web"))
		w.do(remove("web", false))
		w.do(retryIfNeeded("web"))
		w.do(retryIfNeeded("none"))
	}},
	{"72-causes", func(w *world) {
		w.do(register("a"))
		for i, state := range []string{"Pending", "Unknown", "Stopped", "Failed", "Missing", "Running"} {
			id := "web-" + strconv.Itoa(i)
			w.place(id, "a", demand(func(d *commandv1.Demand) { d.CpuMillicores = 1 }))
			c := w.says(id, state)
			c.GetReport().Reports[0].Code, c.GetReport().Reports[0].Message = "RUNTIME_ERROR", "no such thing"
			w.do(c)
			c.GetReport().Reports[0].Terminal = true
			w.do(c)
		}
	}},
	{"26-preemption", func(w *world) {
		w.do(register("n"))
		w.do(putNamespace("shop", maxPriority(5)))
		w.do(putNamespace("bank"))
		w.place("low", "n", in("bank", 2)...)
		w.place("vm", "n", append(in("bank", 0), demand(func(d *commandv1.Demand) { d.Exclusive = true }))...)
		w.do(put("high", in("shop", 9)...))
		w.do(put("other", in("bank", 3)...))
		w.do(w.preempt("vm", "high"))
		w.do(w.preempt("low", "high"))
		w.do(confined(put("more", in("shop", 6)...), "shop"))
		w.do(confined(put("more", in("shop", 5)...), "shop"))
		w.do(putNamespace("shop"))
		w.bind("low", "n")
		w.do(w.preempt("low", "more"))
		w.do(w.preempt("low", "other"))
	}},
	{"25-local-data", func(w *world) {
		w.do(register("a"))
		w.do(register("b", func(n *commandv1.RegisterNode) { n.Pools[0].Type = "nfs" }))
		w.place("db", "a", keeps("volume data", "disk vda"))
		w.place("shared", "b", func(p *commandv1.WorkloadPut) {
			p.Demand.LocalData = []*commandv1.LocalData{{Name: "disk vda", Pool: "main"}}
		})
		w.run("db")
		w.run("shared")
		w.do(drain("a", true))
		w.do(w.evict("db", CodeDraining, false))
		w.do(w.evict("shared", CodeDraining, false))
		w.do(drainDiscarding("a"))
		w.do(drain("a", false))
		w.do(put("db", keeps("volume other"), content("c1:other"), discards))
		w.run("db")
		w.do(nodeState("a", false))
		w.do(fence("a"))
		w.do(removeNode("a", true))
		w.do(fenceDiscarding("a"))
		w.do(w.evict("db", CodeNodeLost, true))
		w.bind("db", "b")
		w.run("db")
		w.do(nodeState("b", false))
		w.do(removeDiscarding("b"))
	}},
	{"91-start-first-and-canaries", func(w *world) {
		w.do(register("a"))
		w.do(group(1, 2, 1, false))
		w.everybodyRuns()
		w.do(surging(group(2, 2, 1, true), 1))
		w.step()
		for range 2 {
			w.everybodyRuns()
			w.wait(5 * second)
			w.step()
		}
		w.do(rolloutAction("promote"))
		w.step()
		w.do(rolloutAction("abort"))
		w.do(surging(group(3, 2, 1, false), 0))
		w.do(group(4, 2, 0, false))
	}},
	{"74-ports-of-addresses", func(w *world) {
		w.do(register("a"))
		w.do(put("web", portOf(80, "127.0.0.1")))
		w.do(put("api", portOf(80, "127.0.0.2")))
		w.do(put("all", hostPort(80)))
		w.do(w.assign("web", "a"))
		w.do(w.assign("api", "a"))
		w.do(w.assign("all", "a"))
		w.do(report(&commandv1.WorkloadReport{
			Workload: "web", Node: "a", Generation: w.generation("web"), State: "Running", Acknowledged: true,
			Ports: []*commandv1.PortBinding{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp", Address: "127.0.0.1"}}, ObservedAt: w.now,
		}))
	}},
	{"71-repaired-replica", func(w *world) {
		w.do(putReplica("r1", 1))
		w.do(putReplica("r0", 1))
		w.do(removeReplica("r0"))
		w.do(repaired("r2", "", false))
		w.do(repaired("r2", "r0", false))
		w.do(setMode("degraded", "etcd is away"))
		w.do(repaired("r2", "r0", true))
		w.do(repaired("r2", "r0", true))
		w.do(repaired("r3", "r2", true))
		w.do(removeReplica("r2"))
	}},
	{"75-bundles", bundlesScenario},
	{"73-node-keys", func(w *world) {
		w.do(register("a", reports(map[string]string{"zone": "x"}, Taint{Key: "spot", Effect: TaintNoExecute, Seconds: 30})))
		w.do(labelNode("a", "zone=y", "rack=1"))
		w.do(labelNode("a", "zone-", "rack-", "none-"))
		w.do(taintNode("a", Taint{Key: "gpu", Value: "a", Effect: TaintNoSchedule}, Taint{Key: "spot"}))
		w.do(taintNode("a", Taint{Key: "gpu", Value: "a", Effect: TaintNoExecute, Seconds: 60}))
		w.do(taintNode("a", Taint{Key: "gpu", Value: "a", Effect: TaintNoExecute, Seconds: 5}))
		w.do(taintNode("a", Taint{Key: "gpu", Effect: "Never"}))
		w.do(register("a", reports(map[string]string{"zone": "z", "disk": "ssd"}, Taint{Key: "spot", Effect: TaintNoExecute})))
		w.do(put("web"))
		w.do(w.assign("web", "a"))
		w.do(w.evict("web", CodeTainted, false))
		w.do(labelNode("zz", "zone=y"))
		w.do(taintNode("a", Taint{Key: "gpu"}, Taint{Key: "spot", Effect: TaintPreferNoSchedule}))
	}},
	// Only an import creates workloads that may adopt a revision, and an import is not a command.
	// So all commands of this scenario are refused; TestAdoptedRevision tests accepted commands.
	{"75-adopted-revisions", func(w *world) {
		w.do(register("a"))
		w.do(put("web"))
		w.do(adoptRevision(w.generation("web"), "web", "a", "rev-7"))
		w.do(w.assign("web", "a"))
		w.do(w.says("web", "Running"))
		w.do(adoptRevision(w.generation("web"), "web", "a", "rev-7"))
		w.do(adoptRevision(w.generation("web"), "web", "b", "rev-7"))
		w.do(adoptRevision(w.generation("web"), "none", "a", "rev-7"))
	}},
	{"75-conditions", conditions},
	{"76-mac-addresses", macAddresses},
	{"76-adopted-orphans", adoptedOrphans},
	{"76-revision-numbers", revisionNumbers},
	{"80-jobs", jobsScenario},
	{"81-templates", templatesScenario},
	{"85-placement", placementScenario},
	{"86-node-failures", nodeFailuresScenario},
	{"81-scale", scaleScenario},
	{"89-autoscale", autoscaleScenario},
	{"83-system-workloads", systemScenario},
	{"90-node-pools", nodePoolsScenario},
	{"91-preemption-times", preemptionTimesScenario},
	{"92-rebalance", rebalanceScenario},
	{"134-rebalance-policy", rebalancePolicyScenario},
	{"100-networks", networksScenario},
	{"95-objects", objectsScenario},
	{"97-object-signals", objectSignalsScenario},
	{"101-devices", devicesScenario},
	{"120-if-members", ifMembersScenario},
	{"102-volumes", volumesScenario},
	{"103-volume-moves", volumeMovesScenario},
	{"125-consoles", consolesScenario},
	{"110-service-addresses", servicesScenario},
	{"121-ingress", ingressScenario},
	{"122-ingress-slices", ingressSlicesScenario},
	{"126-kept-volumes", keptVolumesScenario},
	{"127-job-exits", jobExitsScenario}, {"128-named-devices", namedDevicesScenario},
	{"129-ingress-network", ingressNetworkScenario},
	{"130-key-rotation", keyRotationScenario},
	{"131-unprivileged", unprivilegedScenario}, {"132-forbidden-ports", forbiddenPortsScenario},
	{"133-drain-deadlines", drainDeadlinesScenario}, {"134-ended-drains", endedDrainsScenario},
}

func corpusFile(name, ext string) string { return filepath.Join("testdata", "corpus", name+ext) }

// TestGoldenCorpus: the recorded logs of earlier versions still give the recorded results and
// digests.
func TestGoldenCorpus(t *testing.T) {
	for _, sc := range scenarios {
		if _, err := os.Stat(corpusFile(sc.name, ".log")); err == nil {
			continue
		} else if !*update {
			t.Errorf("scenario %s has no golden files; run the test with -update to add them", sc.name)
			continue
		}
		w := formed(t)
		sc.run(w)
		var log []byte
		for _, c := range w.log {
			frame, err := AppendCommand(nil, c)
			if err != nil {
				t.Fatal(err)
			}
			log = append(binary.AppendUvarint(log, uint64(len(frame))), frame...)
		}
		addFile(t, corpusFile(sc.name, ".log"), log)
		addFile(t, corpusFile(sc.name, ".golden"), judged(t, log))
	}
	logs, err := filepath.Glob(corpusFile("*", ".log"))
	if err != nil || len(logs) < len(scenarios) {
		t.Fatalf("found %d recorded logs (error %v), want at least one per scenario", len(logs), err)
	}
	for _, path := range logs {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".log"), func(t *testing.T) {
			log, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(strings.TrimSuffix(path, ".log") + ".golden")
			if err != nil {
				t.Fatal(err)
			}
			mustEqualText(t, judged(t, log), want)
		})
	}
}

// judged applies the commands of a recorded log to a new state and returns the results as text.
func judged(t *testing.T, log []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	s := New()
	for index := uint64(1); len(log) > 0; index++ {
		size, n := binary.Uvarint(log)
		if n <= 0 || size > uint64(len(log)-n) {
			t.Fatalf("recorded log entry %d is cut off", index)
		}
		commands, err := DecodeBatch(log[n : n+int(size)])
		if err != nil {
			t.Fatalf("recorded log entry %d must be decodable, got error %v", index, err)
		}
		log = log[n+int(size):]
		for _, c := range commands {
			var res Result
			var changes []Change
			s, res, changes = s.Apply(Meta{index, 1}, c)
			if err := s.Check(); err != nil {
				t.Fatalf("after log entry %d the invariants must hold, but Check returned %v", index, err)
			}
			fmt.Fprintf(&out, "%d %s: %s changes=%d skipped=%d duplicate=%v %q", index, ArmName(c), res.Kind, len(changes), res.Skipped, res.Duplicate, res.Reason)
			for _, i := range res.Items {
				fmt.Fprintf(&out, " %s@%s/%s/%v", i.ID, i.Generation, i.Revision, i.Unchanged)
			}
			fmt.Fprintf(&out, " digest=%016x\n", s.Info().Digest)
		}
	}
	return out.Bytes()
}

func addFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func mustEqualText(t *testing.T, got, want []byte) {
	t.Helper()
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			t.Fatalf("the results lack line %d of the golden file: %s", i+1, w[i])
		case i >= len(w):
			t.Fatalf("the golden file lacks result line %d: %s", i+1, g[i])
		case g[i] != w[i]:
			t.Fatalf("line %d\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
}
