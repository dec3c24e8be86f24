package rpc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/stack"
	stackfiles "github.com/persys/compute/stack/bundle"
	"github.com/persys/compute/testbed"
)

func withStacks(opt stack.Options) func(int, *Config) {
	return func(_ int, c *Config) { c.Stacks = stack.NewLoader(opt) }
}

func composeRequest(id, text string) *controlv1.ApplyWorkloadRequest {
	return &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "Running", Spec: &controlv1.WorkloadSpec{
		Type: "compose", Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{InlineYaml: text}}}}
}

// TestStacksAreLoadedAtApply: errors that only compose-go, an engine or a kernel would find are in the
// answers to an apply and a plan, with the line of the Compose file. Nothing is stored.
func TestStacksAreLoadedAtApply(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	c, plans := g.control(0), g.cluster(0)
	for _, one := range []struct{ name, text, want string }{
		{"a stack needs a variable that has no value", "services:\n  web:\n    image: a:${TAG:?}\n", "line 3: services.web.image: needs the variable TAG"},
		{"a stack reads a file of the host", "services:\n  web:\n    image: a\n    env_file: /etc/shadow\n", "line 4: services.web.env_file: \"/etc/shadow\" leads out of the stack's folder"},
		{"a stack reads a device file of the host", "services:\n  web:\n    image: a\n    env_file: /dev/zero\n", "leads out of the stack's folder"},
		{"a stack has a port range that goes backwards", "services:\n  web:\n    image: a\n    ports: [\"9002-9000:80\"]\n", "line 4"},
		{"the error about an invalid port does not show its value, which may be a secret", "services:\n  web:\n    image: a\n    ports: [\"${PORT}:80\"]\n", "hostPort: …"},
		{"a stack has a grace period above the cluster's limit", "services:\n  web:\n    image: a\n    stop_grace_period: 1h\n", "line 4: services.web.stop_grace_period: is 1h0m0s, and no cluster waits longer than 10m"},
		{"a valid stack is accepted", "services:\n  web:\n    image: a\n", ""},
	} {
		t.Run(one.name, func(t *testing.T) {
			request := composeRequest("w", one.text)
			request.GetSpec().GetCompose().Env = map[string]string{"PORT": "c4nary"}
			resp, err := c.ApplyWorkload(t.Context(), request)
			if err != nil || resp.GetSuccess() != (one.want == "") || !strings.Contains(resp.GetErrorMessage(), one.want) {
				t.Errorf("the apply returned %v and error %v, want a refusal with %q, or success if it is empty", resp, err, one.want)
			}
			plan, err := plans.PlanWorkloads(t.Context(), &clusterv1.PlanWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{{WorkloadId: "p", Spec: request.GetSpec()}}})
			if err != nil || (plan.GetWorkloads()[0].GetAction() == "refused") != (one.want != "") || !strings.Contains(plan.GetWorkloads()[0].GetReason(), one.want) {
				t.Errorf("the plan returned %v and error %v, want a refusal with %q, or none if it is empty", plan, err, one.want)
			}
		})
	}
	if n := g.puts(); n != 1 {
		t.Errorf("%d commands were proposed, want one for the valid stack", n)
	}
}

// TestStacksAreBounded: if too many stacks are being loaded at the same time, further stacks are refused. The
// loading of a stack ends with its call.
func TestStacksAreBounded(t *testing.T) {
	const text = "services:\n  web:\n    image: a\n"
	begun := filepath.Join(t.TempDir(), "begun")
	never := []string{"/bin/sh", "-c", "echo > " + begun + "; exec sleep 60"}
	g := newGroup(t, 1, withStacks(stack.Options{Command: never, AtOnce: 1, Wait: 10 * time.Millisecond}))
	g.elect(0)
	c := g.control(0)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := c.ApplyWorkload(ctx, composeRequest("a", text))
		first <- err
	}()
	testbed.Until(t, "the first load", func() bool { _, err := os.Stat(begun); return err == nil })
	if _, err := c.ApplyWorkload(t.Context(), composeRequest("b", text)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "try again in a moment") {
		t.Errorf("the load of a stack beyond the limit returned %v, want ResourceExhausted", err)
	}
	cancel()
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Errorf("the cancelled load returned %v, want Canceled", err)
	}
}

// A large request waits until the requests that are being parsed at the same time are small enough together. If its
// caller gives up while the request waits, nothing changes.
func TestLargeRequestsWaitForRoom(t *testing.T) {
	g := newGroup(t, 1)
	g.elect(0)
	s := g.replicas[0].server
	if !s.parsing.TryAcquire(parseRoom) {
		t.Fatal("at the start of the test requests are already being parsed, want none")
	}
	large := composeRequest("large", "services:\n  web:\n    image: a\n    environment:\n      TEXT: "+strings.Repeat("x", smallRequest)+"\n")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := g.control(0).ApplyWorkload(ctx, large); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a large request that had to wait returned %v; want DeadlineExceeded", err)
	}
	small := composeRequest("small", "services:\n  web:\n    image: a\n")
	if resp, err := g.control(0).ApplyWorkload(t.Context(), small); err != nil || !resp.GetSuccess() {
		t.Errorf("a small request, made while large requests use all of parseRoom, returned %v and error %v, want success", resp, err)
	}
	s.parsing.Release(parseRoom)
	if resp, err := g.control(0).ApplyWorkload(t.Context(), large); err != nil || !resp.GetSuccess() {
		t.Errorf("a large request after parseRoom was free again returned %v and error %v, want success", resp, err)
	}
	if n := g.puts(); n != 2 {
		t.Errorf("%d commands were proposed, want 2", n)
	}
}

// TestHostPortsOfTheLoadedStack: the planner reserves the host ports that the node will publish. They include ports
// from variables and ports of services that extend other services, but not the ports of services that are turned off.
func TestHostPortsOfTheLoadedStack(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	request := composeRequest("web", `services:
  base: {image: a, scale: 0, ports: ["127.0.0.1:9100:9100", "9999:9999/udp"]}
  web: {image: a, ports: ["${PORT}:80", {target: 443, published: "8443", name: https}, "81", "5000:5000/sctp"]}
  more: {extends: {service: base}, scale: 1}
  none: {image: a, profiles: [off], ports: ["7000:7000"]}
`)
	request.GetSpec().GetCompose().Env = map[string]string{"PORT": "8080-8081"}
	resp, err := g.control(0).ApplyWorkload(t.Context(), request)
	if err != nil || !resp.GetSuccess() {
		t.Fatal(resp, err)
	}
	w, ok := g.view().Workload("web")
	if !ok {
		t.Fatal("the workload must be stored, but is not")
	}
	got := fmt.Sprint(w.Demand.Ports)
	if want := "[{8080 tcp } {8081 tcp } {8443 tcp } {9100 tcp 127.0.0.1} {9999 udp }]"; got != want {
		t.Errorf("the demand of the stack has the host ports %s, want %s", got, want)
	}
	if want := "[{https 443 tcp 8443}]"; fmt.Sprint(w.Demand.PortNames) != want {
		t.Errorf("the demand of the stack has the port names %v, want %s", w.Demand.PortNames, want)
	}
}

// TestSurgeMembersOfAStackAreJudged: the extra members of a start-first update have the asks and the host ports of the
// loaded stack, as its other members have. Otherwise policies would allow an extra member everything.
func TestSurgeMembersOfAStackAreJudged(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	apply := func(image string) {
		t.Helper()
		request := composeRequest("web", "services: {web: {extends: {service: base}, scale: 1}, base: {scale: 0, image: "+image+", privileged: true, ports: ['${PORT}:80']}}\n")
		request.GetSpec().GetCompose().Env = map[string]string{"PORT": "8080"}
		request.GetSpec().Count, request.GetSpec().Update = new(int32(2)), &controlv1.UpdateStrategy{Order: "start-first"}
		if resp, err := g.control(0).ApplyWorkload(t.Context(), request); err != nil || !resp.GetSuccess() {
			t.Fatal(resp, err)
		}
	}
	apply("a")
	apply("b")
	v := g.view()
	own, _ := v.Workload("web-0")
	r, ok := v.Rollout("web")
	if !ok || len(own.Demand.Asks) == 0 {
		t.Fatal("the group has no update in progress, or its ordinary members have no asks; the test needs both")
	}
	extra := 0
	for _, m := range r.Members {
		if !m.Surge {
			continue
		}
		extra++
		d := fsm.Intended(m.Put).Demand
		if !slices.ContainsFunc(d.Asks, func(a policy.Ask) bool { return a.Rule == policy.RulePrivileged }) {
			t.Errorf("extra member %s of the update has the asks %v, want the ask privileged among them", m.ID, d.Asks)
		}
		if got := fmt.Sprint(d.Ports); got != "[{8080 tcp }]" {
			t.Errorf("extra member %s of the update has the host ports %s, want those of the other members", m.ID, got)
		}
	}
	if extra == 0 {
		t.Error("the update has no extra member")
	}
}

// TestLimitsOfTheLoadedStack: the planner must reserve for a stack the sum of the limits that its node will set for
// all replicas of its services. It includes limits that come from variables and from services in other files.
// Resources in the specification take precedence. The defaults of a policy apply only to a stack without limits.
func TestLimitsOfTheLoadedStack(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	files, err := stackfiles.Pack([]stackfiles.File{{Path: "more.yaml", Data: []byte("services:\n  more: {image: a, cpus: 0.1, mem_limit: 10m}\n")}})
	if err != nil {
		t.Fatal(err)
	}
	text := `include: [more.yaml]
services:
  web: {image: a, deploy: {replicas: 3, resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}}
  base: {image: a, scale: 0, mem_limit: 1g}
  worker: {extends: {service: base}, scale: 1}
  off: {image: a, profiles: [off], mem_limit: 7g}
`
	for name, c := range map[string]struct {
		text        string
		own         *controlv1.ResourceRequirements
		cpu, memory int64
	}{
		"limits from variables, included files and extended services":      {text, nil, 3*250 + 100, 3*64 + 10 + 1024},
		"the memory in the specification replaces the limits of the stack": {text, &controlv1.ResourceRequirements{MemoryMb: 512}, 3*250 + 100, 512},
		"limits from CPU quotas": {"services: {a: {image: a, cpu_quota: 50000, scale: 2}, b: {image: a, cpu_quota: 50000, cpu_period: 25000}}", nil, 2*500 + 2000, 0},
		"without limits":         {"services: {web: {image: a}}", nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			request := composeRequest("web", c.text)
			request.Spec.Resources = c.own
			if c.text == text {
				request.GetSpec().GetCompose().Env = map[string]string{"CPUS": "0.25", "MEMORY": "64m"}
				request.GetSpec().GetCompose().MainFile, request.Files = "compose.yaml", files
			}
			resp, err := g.control(0).ApplyWorkload(t.Context(), request)
			if err != nil || !resp.GetSuccess() {
				t.Fatal(resp, err)
			}
			w, _ := g.view().Workload("web")
			if w.Demand.CPU != c.cpu || w.Demand.Memory != c.memory {
				t.Errorf("the demand of the stack is %d millicores and %d MiB, want %d and %d", w.Demand.CPU, w.Demand.Memory, c.cpu, c.memory)
			}
		})
	}
	resp, err := g.control(0).ApplyWorkload(t.Context(), composeRequest("huge", "services: {web: {image: a, scale: 1000, mem_limit: 7000000t}}"))
	if err != nil || !strings.Contains(resp.GetErrorMessage(), "demand.memory_mib: 1099511627776 is not in") {
		t.Errorf("an apply of a stack whose limits are too large to be added up returned %v and error %v, want a refusal that names demand.memory_mib", resp, err)
	}
}

// TestMaximaOfAPolicyLimitStacks: a small reservation does not hide a service whose limit is above the maximum of the
// policy. The refusal names the service.
func TestMaximaOfAPolicyLimitStacks(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	small := &commandv1.Policy{Name: "small", Kinds: []string{"*"}, Images: []string{"*"}, Users: []string{"*"}, MaxMemoryMib: 100, DefaultMemoryMib: 50}
	g.do(&commandv1.Command{Body: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: small}}})
	g.do(&commandv1.Command{Body: &commandv1.Command_BindPolicy{BindPolicy: &commandv1.BindPolicy{Policy: "small", Namespace: "default"}}})
	for _, c := range []struct{ service, want string }{
		{"image: a, mem_limit: 1g", `services.web: "1024" is not allowed by policy "small" (rule max_memory_mib): all containers of the stack together may have at most 100`},
		{"image: a", `services.web: is not allowed by policy "small" (rule max_memory_mib): it must have a memory limit (mem_limit)`},
		{"image: a, mem_limit: 100m", ""},
	} {
		request := composeRequest("web", "services: {web: {"+c.service+"}}")
		request.Spec.Resources = &controlv1.ResourceRequirements{MemoryMb: 10}
		resp, err := g.control(0).ApplyWorkload(t.Context(), request)
		if err != nil || resp.GetSuccess() != (c.want == "") || !strings.Contains(resp.GetErrorMessage(), c.want) {
			t.Errorf("the apply of a stack with service {%s} returned %v (error %v), want a refusal with %q", c.service, resp, err, c.want)
		}
	}
}

// TestDevicesOfTheLoadedStack: a stack reserves the GPUs that its services ask for, unless resources.devices reserves GPUs.
// Kinds of devices that the services name must be there.
func TestDevicesOfTheLoadedStack(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	g.do(&commandv1.Command{Body: &commandv1.Command_RegisterNode{RegisterNode: &commandv1.RegisterNode{
		Id: "gpus", Endpoint: "10.0.0.9:50051", CpuMillicores: 8000, MemoryMib: 8192, Types: []string{"compose"}, Protocol: 1, InstanceId: "i-gpus",
		Devices: []*commandv1.DeviceCount{{Name: "amd.com/gpu", Count: 4}, {Name: "x.org/npu", Count: 1}},
	}}})
	for _, c := range []struct {
		name, text string
		own        map[string]int64
		want       []fsm.DeviceCount
	}{
		{"gpus", "services:\n  a: {image: a, scale: 2, gpus: [{count: 2}]}\n  b: {image: a, gpus: all}\n  off: {image: a, scale: 0, gpus: [{count: 9}]}\n",
			nil, []fsm.DeviceCount{{Name: "gpu", Count: 4}}},
		{"resources.devices reserves GPUs in place of the services", "services:\n  a: {image: a, gpus: [{count: 2}]}\n",
			map[string]int64{"amd.com/gpu": 1}, []fsm.DeviceCount{{Name: "amd.com/gpu", Count: 1}}},
		{"reservations", "services:\n  a:\n    image: a\n    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}, {driver: cdi, device_ids: ['x.org/npu=0'], capabilities: [npu]}]}}}\n",
			nil, []fsm.DeviceCount{{Name: "gpu", Count: 1}, {Name: "x.org/npu"}}},
		{"named devices", "services:\n  a: {image: a, devices: ['x.org/npu=1', /dev/fuse]}\n", nil, []fsm.DeviceCount{{Name: "x.org/npu"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := composeRequest("w", c.text)
			request.Spec.Resources = &controlv1.ResourceRequirements{Devices: c.own}
			resp, err := g.control(0).ApplyWorkload(t.Context(), request)
			if err != nil || !resp.GetSuccess() {
				t.Fatal(resp, err)
			}
			if w, _ := g.view().Workload("w"); !slices.Equal(w.Demand.Devices, c.want) {
				t.Errorf("the demand of the stack has the devices %v, want %v", w.Demand.Devices, c.want)
			}
		})
	}
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprintf("x.org/n%d=0", i))
	}
	resp, err := g.control(0).ApplyWorkload(t.Context(), composeRequest("many", "services:\n  a: {image: a, devices: ["+strings.Join(many, ", ")+"]}\n"))
	if err != nil || !strings.Contains(resp.GetErrorMessage(), "devices of 17 kinds, at most 16") {
		t.Errorf("an apply of a stack with 17 kinds of devices returned %v and error %v, want a refusal with this number", resp, err)
	}
}

// TestDataOfTheLoadedStack: the data that a stack keeps on its node is computed after Compose has resolved `include` and
// `extends`, so it includes the volumes of services in other files. A folder whose files came with the request is not
// such data.
func TestDataOfTheLoadedStack(t *testing.T) {
	g := newGroup(t, 1, withStacks(stack.Options{}))
	g.elect(0)
	files, err := stackfiles.Pack([]stackfiles.File{
		{Path: "more.yaml", Data: []byte("services:\n  db: {image: a, volumes: ['db:/d']}\nvolumes: {db: {}}\n")},
		{Path: "base.yaml", Data: []byte("services:\n  base: {image: a, volumes: ['./state:/s', '/var/cache/a']}\n")},
		{Path: "plain.yaml", Data: []byte("services:\n  plain: {image: a}\n")},
		{Path: "html/index.html", Data: []byte("x")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct{ name, text, want string }{
		{"a volume of an included file", "include: [more.yaml]\nservices: {web: {image: a}}\n", "[{volume db }]"},
		{"an included file without volumes", "include: [plain.yaml]\nservices: {web: {image: a}}\n", "[]"},
		{"a service of another file", "services: {web: {extends: {file: base.yaml, service: base}}}\n", "[{folder ./state } {unnamed volume at /var/cache/a }]"},
		{"a service of the same file", "services: {web: {extends: {service: base}, scale: 1}, base: {image: a, scale: 0, volumes: ['${WHERE:-db}:/x']}}\nvolumes: {db: {}}\n", "[{volume db }]"},
		{"folders", "services: {web: {image: a, volumes: ['./html:/h', './own:/o', './html:/c:ro', '/srv:/srv']}}\n", "[{folder ./own }]"},
		{"volumes on a file server and managed ones", `services: {web: {image: a, volumes: ['far:/f', 'data:/d', 'named:/n', 'own:/o']}}
volumes: {far: {driver_opts: {type: nfs4, o: addr=h, device: ':/x'}}, data: {external: true}, named: {external: true, name: kept}, own: {}}
`, "[{volume data } {volume own }]"},
	} {
		t.Run(one.name, func(t *testing.T) {
			request := composeRequest("web", one.text)
			c := request.GetSpec().GetCompose()
			c.MainFile, request.Files = "compose.yaml", files
			c.ManagedVolumes = []*controlv1.ManagedVolumeSpec{{Name: "kept", Driver: "nfs"}}
			if strings.Contains(one.text, "data:") {
				c.ManagedVolumes = append(c.ManagedVolumes, &controlv1.ManagedVolumeSpec{Name: "data"})
			}
			resp, err := g.control(0).ApplyWorkload(t.Context(), request)
			if err != nil || !resp.GetSuccess() {
				t.Fatal(resp, err)
			}
			w, _ := g.view().Workload("web")
			if got := fmt.Sprint(w.Demand.LocalData); got != one.want {
				t.Errorf("the local data is %s, want %s", got, one.want)
			}
		})
	}
	first := composeRequest("first", "include: [more.yaml]\nservices: {web: {image: a}}\n")
	first.GetSpec().GetCompose().MainFile, first.Files = "compose.yaml", files
	first.GetSpec().Count, first.GetSpec().Update = new(int32(1)), &controlv1.UpdateStrategy{Order: "start-first"}
	resp, err := g.control(0).ApplyWorkload(t.Context(), first)
	if want := "spec.update.order: must be stop-first for a workload with local data"; err != nil || !strings.Contains(resp.GetErrorMessage(), want) {
		t.Errorf("an apply with update order start-first for a stack whose included file has a volume returned %v and error %v; want %q", resp, err, want)
	}
}
