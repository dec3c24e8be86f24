package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// twoTeams is the fixture of TestConfined: a scheduler in a control group with little memory, two simulated nodes,
// and the operators ada of namespace shop, bob of namespace bank, and oli of all namespaces.
type twoTeams struct {
	*harness.Cluster
	group *harness.MemoryGroup
	home  map[string][]string // environment of persysctl by user
	conn  map[string]*grpc.ClientConn
}

// confinedMemory is the memory limit of the scheduler in bytes. The stored specifications may take an
// eighth of it.
const confinedMemory = 1 << 30

func startTwoTeams(t *testing.T) *twoTeams {
	t.Helper()
	if os.Geteuid() != 0 {
		testbed.Need(t, "root for a control group", errors.New("this process does not run as root"))
	}
	bin := shipped(t)
	group, err := harness.LimitMemory(t.TempDir(), bin.Scheduler, confinedMemory)
	testbed.Need(t, "a control group with a memory limit", err)
	t.Cleanup(func() {
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
	bin.Scheduler = group.Program
	c := &twoTeams{Cluster: start(t, harness.Options{Schedulers: 1, Binaries: bin, OwnCA: true, SchedulerEnv: fast(nil)}), group: group, home: map[string][]string{}, conn: map[string]*grpc.ClientConn{}}
	for range 2 {
		got[*harness.Agent](t)(c.StartAgent(t.Context(), harness.AgentOptions{Simulate: true, Env: map[string]string{
			// The settings make the agent offer half of one CPU, independent of the CPUs of this machine.
			"PERSYS_RESOURCE_THRESHOLD": "50", "PERSYS_RESERVED_CPU": strconv.Itoa((runtime.NumCPU() - 1) * 1000),
		}}))
	}
	c.home["admin"] = c.CtlEnv()
	for user, namespace := range map[string]string{"ada": "shop", "bob": "bank", "oli": ""} {
		leaf := c.Leaf(person(t, c.Cluster, user, "operator"))
		c.home[user] = append(c.CtlEnv(), "HOME="+t.TempDir(), "PERSYS_TLS_CA="+leaf.CA, "PERSYS_TLS_CERT="+leaf.Cert, "PERSYS_TLS_KEY="+leaf.Key)
		if namespace != "" {
			ctl(t, c.Cluster, "namespace", "set", namespace, "--add-user", user)
		}
		c.conn[user] = got[*grpc.ClientConn](t)(c.Dial(c.Schedulers[0].GRPC, "user/"+user))
		t.Cleanup(func() { _ = c.conn[user].Close() })
	}
	return c
}

// as runs persysctl with the certificate of a user, in a new folder with the given files. It returns the exit
// code and the output.
func (c *twoTeams) as(t *testing.T, user string, files map[string]string, args ...string) (code int, said string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "DIR", dir)
	}
	var out strings.Builder
	code = got[int](t)(c.RunCtl(t.Context(), c.home[user], &out, &out, args...))
	return code, out.String()
}

// works checks that the cluster still serves a user: it applies a new workload with that user's certificate,
// and fails the test if the workload does not become Running.
func (c *twoTeams) works(t *testing.T, user, namespace, id string) {
	t.Helper()
	code, said := c.as(t, user, map[string]string{"w.yaml": "id: " + id + "\nnamespace: " + namespace + "\ncontainer: {image: sim/run}\nresources: {cpu: 10m, memory: 8Mi}\n"}, "apply", "-f", "DIR/w.yaml", "--wait")
	if code != 0 {
		t.Fatalf("an ordinary workload of user %s does not run: exit code %d: %s", user, code, said)
	}
}

// TestConfined acts as an operator who may act in one namespace only, and tries to get more: access to the
// machine, the resources or the data of other namespaces, or all of the cluster's memory. Every attempt must
// fail, and other users must still be served. An operator of all namespaces gets no access to the machine either.
func TestConfined(t *testing.T) {
	c := startTwoTeams(t)
	for _, part := range []struct {
		name string
		run  func(c *twoTeams, t *testing.T)
	}{
		{"rights on the machine", (*twoTeams).machine},
		{"files of the machine", (*twoTeams).hostFiles},
		{"preemption of another team's workload", (*twoTeams).place},
		{"the volume of another team", (*twoTeams).volume},
		{"many ordinary updates", (*twoTeams).updates},
		{"many large Compose files", (*twoTeams).largeStacks},
		{"many large specifications", (*twoTeams).largeSpecs},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(c, t) })
	}
	kills := got[int](t)(c.group.Kills())
	peak := got[int64](t)(c.group.Peak())
	measured(t, "the scheduler in a group of %d MiB used at most %d MiB with the page cache, %d processes were killed for lack of memory", confinedMemory>>20, peak>>20, kills)
	if kills > 0 {
		t.Errorf("%d processes of the scheduler's group were killed for lack of memory", kills)
	}
}

// machine checks that the schedulers refuse every specification that asks for access to the machine, in a
// container or in any part of a stack.
func (c *twoTeams) machine(t *testing.T) {
	type try struct {
		name, rule string
		files      map[string]string
	}
	var all []try
	for name, x := range map[string]struct{ rule, container, service string }{
		"a mount of /etc":                        {"host_paths", "volumes: [\"/etc:/x\"]", `volumes: ["/etc:/x"]`},
		"a mount of /":                           {"engine_socket", "volumes: [\"/:/x:ro\"]", `volumes: ["/:/x:ro"]`},
		"a mount of the scheduler's data folder": {"host_paths", "volumes: [\"" + c.Schedulers[0].DataDir + ":/x\"]", `volumes: ["` + c.Schedulers[0].DataDir + `:/x"]`},
		"a mount of the engine's socket":         {"engine_socket", "volumes: [\"/var/run/docker.sock:/x\"]", `volumes: ["/var/run/docker.sock:/x"]`},
		"the host's processes":                   {"host_namespaces", "", "pid: host"},
		"the host's network":                     {"host_namespaces", "", "network_mode: host"},
		"a privileged container":                 {"privileged", "privileged: true", "privileged: true"},
		"a capability":                           {"capabilities", "cap_add: [SYS_ADMIN]", "cap_add: [SYS_ADMIN]"},
		"a device":                               {"devices", "", `devices: ["/dev/kmsg"]`},
	} {
		head := "id: evil\nnamespace: shop\n"
		if x.container != "" {
			all = append(all, try{name, x.rule, map[string]string{"w.yaml": head + "container:\n  image: sim/run\n  " + x.container + "\n"}})
		}
		stack := head + "compose: {file: compose.yaml}\n"
		value, variable := x.service, x.service
		if i := strings.IndexAny(variable, "/"); i >= 0 {
			variable = variable[:i] + "${EVIL:-/}" + variable[i+1:]
		} else if key, v, ok := strings.Cut(variable, ": "); ok && !strings.HasPrefix(v, "[") {
			variable = key + ": \"${EVIL:-" + v + "}\""
		}
		all = append(all,
			try{name + ", in a stack", x.rule, map[string]string{"w.yaml": stack, "compose.yaml": "services:\n  a:\n    image: sim/run\n    " + value + "\n"}},
			try{name + ", by interpolation", x.rule, map[string]string{"w.yaml": stack, "compose.yaml": "services:\n  a:\n    image: sim/run\n    " + variable + "\n"}},
			try{name + ", by extends", x.rule, map[string]string{"w.yaml": stack, "compose.yaml": "services:\n  a:\n    extends: {file: sub/base.yaml, service: b}\n",
				"sub/base.yaml": "services:\n  b:\n    image: sim/run\n    " + value + "\n"}},
			try{name + ", by include", x.rule, map[string]string{"w.yaml": stack, "compose.yaml": "include: [sub/more.yaml]\nservices: {a: {image: sim/run}}\n",
				"sub/more.yaml": "services:\n  b:\n    image: sim/run\n    " + value + "\n"}},
		)
	}
	all = append(all, try{"a stack from Git", "unread_stack", map[string]string{"w.yaml": "id: evil\nnamespace: shop\ncompose: {git: {repo: \"https://git.example.com/shop.git\"}}\n"}})
	for _, x := range all {
		users := []string{"ada"}
		if x.files["compose.yaml"] == "" { // one kind of specification shows that the policy applies to oli too
			users = append(users, "oli")
		}
		for _, user := range users {
			code, said := c.as(t, user, x.files, "apply", "-f", "DIR/w.yaml")
			if code == 0 || !strings.Contains(said, "rule "+x.rule) || !strings.Contains(said, "baseline") {
				t.Errorf("%s, by %s: exit code %d, want a refusal by rule %s: %s", x.name, user, code, x.rule, said)
			}
			if code, said := c.as(t, user, x.files, "plan", "-f", "DIR/w.yaml"); !strings.Contains(said, "rule "+x.rule) {
				t.Errorf("%s, by %s: the output of persysctl plan does not name the rule of the policy (exit code %d): %s", x.name, user, code, said)
			}
		}
	}
	if list, err := controlv1.NewAgentControlClient(c.conn["oli"]).ListWorkloads(t.Context(), &controlv1.ListWorkloadsRequest{}); err != nil || len(list.GetWorkloads()) > 0 {
		t.Errorf("refused specifications must leave no workload, but there are %v (%v)", list.GetWorkloads(), err)
	}
	t.Logf("%d specifications were refused", len(all))
}

// hostFiles applies stacks that name files of the machine, 20 times each. Every apply is refused, and the
// scheduler and the agents keep working.
func (c *twoTeams) hostFiles(t *testing.T) {
	pids := []int{c.Schedulers[0].PID(), c.Agents[0].PID(), c.Agents[1].PID()}
	control := controlv1.NewAgentControlClient(c.conn["ada"])
	var calls sync.WaitGroup
	for _, path := range []string{"/dev/zero", "/proc/kmsg", "/etc/shadow"} {
		for n := range 20 {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), settle)
				defer cancel()
				field := []string{"env_file", "label_file"}[n%2]
				r, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: fmt.Sprintf("files-%d", n), Spec: composeSpec("shop", "services:\n  a:\n    image: sim/run\n    "+field+": "+path+"\n")})
				for err != nil && status.Code(err) == codes.ResourceExhausted && ctx.Err() == nil { // the scheduler refuses the call while too many stacks are being loaded, so try again
					r, err = control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: fmt.Sprintf("files-%d", n), Spec: composeSpec("shop", "services:\n  a:\n    image: sim/run\n    "+field+": "+path+"\n")})
				}
				if err != nil || r.GetSuccess() || !strings.Contains(r.GetErrorMessage(), path) || !strings.Contains(r.GetErrorMessage(), field) {
					t.Errorf("an apply with %s: %s must be refused with the path and the field, but: %v, %q", field, path, err, r.GetErrorMessage())
				}
			})
		}
	}
	c.works(t, "bob", "bank", "meanwhile")
	calls.Wait()
	if now := []int{c.Schedulers[0].PID(), c.Agents[0].PID(), c.Agents[1].PID()}; !slices.Equal(now, pids) || !c.Schedulers[0].Running() || !c.Agents[0].Running() || !c.Agents[1].Running() {
		t.Errorf("the schedulers or agents were restarted: the process ids are %v and were %v", now, pids)
	}
	c.works(t, "bob", "bank", "afterwards")
	for _, id := range []string{"meanwhile", "afterwards"} {
		if code, said := c.as(t, "bob", nil, "delete", id, "--wait"); code != 0 {
			t.Errorf("the delete of %s failed: %s", id, said)
		}
	}
}

func composeSpec(namespace, text string) *controlv1.WorkloadSpec {
	return &controlv1.WorkloadSpec{Type: "compose", Namespace: namespace, Workload: &controlv1.WorkloadSpec_Compose{Compose: &controlv1.ComposeSpec{SourceType: "inline", InlineYaml: text}}}
}

// place checks that a workload with a priority evicts no workload of another namespace, no matter whether
// an operator or an admin applied it.
func (c *twoTeams) place(t *testing.T) {
	order := func(user, id, namespace string, priority int) (int, string) {
		return c.as(t, user, map[string]string{"w.yaml": fmt.Sprintf("id: %s\nnamespace: %s\npriority: %d\ncontainer: {image: sim/run}\nresources: {cpu: 400m, memory: 8Mi}\n", id, namespace, priority)}, "apply", "-f", "DIR/w.yaml")
	}
	before := map[string]*controlv1.WorkloadView{}
	for _, id := range []string{"vault-1", "vault-2"} { // each of these workloads fills a node
		if code, said := order("bob", id, "bank", 0); code != 0 {
			t.Fatal(said)
		}
		before[id] = got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
	}
	if code, said := order("ada", "greedy", "shop", 1); code == 0 || !strings.Contains(said, `priority: 1 is above the maximum of namespace "shop", which is 0`) {
		t.Errorf("user ada applied a workload above the maximum priority of namespace shop: exit code %d, want a refusal: %s", code, said)
	}
	if code, said := order("admin", "greedy", "shop", 1000); code != 0 {
		t.Fatal(said)
	}
	got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), "greedy", settle, func(w *controlv1.WorkloadView) bool {
		return w.GetReason().GetCode() != "" && w.GetStatus() == "Pending"
	}))
	if _, said := c.as(t, "admin", nil, "why", "greedy"); !strings.Contains(said, "--max-priority") {
		t.Errorf("persysctl why must name --max-priority, with which an admin can allow the priority, but prints: %s", said)
	}
	for id, was := range before {
		if now := got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running)); now.GetAssignedNodeId() != was.GetAssignedNodeId() {
			t.Errorf("workload %s of namespace bank was moved from %s to %s by a workload of another namespace", id, was.GetAssignedNodeId(), now.GetAssignedNodeId())
		}
	}
	if said := ctl(t, c.Cluster, "audit"); strings.Contains(said, "Preempt") {
		t.Errorf("a workload was preempted, want none; the audit log:\n%s", said)
	}
	for _, id := range []string{"greedy", "vault-1", "vault-2"} {
		ctl(t, c.Cluster, "delete", id, "--wait")
	}
}

// volume: workloads of two namespaces use a managed volume of the same name. They get two volumes, and when
// one team deletes its workload, the volume of the other team stays.
func (c *twoTeams) volume(t *testing.T) {
	ctl(t, c.Cluster, "cordon", c.Agents[1].NodeID) // cordon one node, so that both workloads are on the other one
	for user, namespace := range map[string]string{"ada": "shop", "bob": "bank"} {
		code, said := c.as(t, user, map[string]string{"w.yaml": "id: vol-" + namespace + "\nnamespace: " + namespace + "\ncontainer:\n  image: sim/run\n  managed_volumes: [{name: data, path: /data}]\nresources: {cpu: 10m, memory: 8Mi}\n"},
			"apply", "-f", "DIR/w.yaml", "--wait")
		if code != 0 {
			t.Fatalf("the apply of user %s failed: %s", user, said)
		}
	}
	for _, namespace := range []string{"shop", "bank"} {
		if list := ctl(t, c.Cluster, "volume", "list", "-n", namespace); !strings.Contains(list, "local:data") {
			t.Errorf("there is no volume in namespace %s:\n%s", namespace, list)
		}
	}
	if code, said := c.as(t, "ada", nil, "volume", "list"); code != 0 || !strings.Contains(said, "vol-shop") || strings.Contains(said, "vol-bank") {
		t.Errorf("ada must see the volume of her namespace only:\n%s", said)
	}
	if code, said := c.as(t, "ada", nil, "volume", "rm", "data", "-n", "bank", "--yes"); code == 0 {
		t.Errorf("ada deleted a volume of another team:\n%s", said)
	}
	folder := func(namespace string) string {
		return filepath.Join(filepath.Dir(c.Agents[0].StatePath), "volumes", "local", namespace+"~data")
	}
	must(t, os.WriteFile(filepath.Join(folder("shop"), "f"), []byte("ada's"), 0o600))
	if _, err := os.Stat(filepath.Join(folder("bank"), "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bob's volume has ada's file: %v", err)
	}
	if code, said := c.as(t, "bob", nil, "delete", "vol-bank", "--volumes", "--wait"); code != 0 {
		t.Fatal(said)
	}
	must(t, testbed.Poll(t.Context(), settle, "the removal of bob's volume, while ada's volume stays", func(context.Context) error {
		if list := ctl(t, c.Cluster, "volume", "list"); strings.Contains(list, "bank") || !strings.Contains(list, "shop") {
			return errors.New(list)
		}
		return nil
	}))
	// Ada's workload is deleted, and her volume is kept. Bob names it again.
	ctl(t, c.Cluster, "delete", "vol-shop", "--wait")
	if code, said := c.as(t, "bob", map[string]string{"w.yaml": "id: vol-bank\nnamespace: bank\ncontainer:\n  image: sim/run\n  managed_volumes: [{name: data, path: /data}]\nresources: {cpu: 10m, memory: 8Mi}\n"},
		"apply", "-f", "DIR/w.yaml", "--wait"); code != 0 {
		t.Fatal(said)
	}
	if _, err := os.Stat(filepath.Join(folder("bank"), "f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("bob's new volume has ada's file: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(folder("shop"), "f")); err != nil || string(data) != "ada's" {
		t.Errorf("ada's kept volume has %q (%v)", data, err)
	}
	if code, said := c.as(t, "bob", nil, "delete", "vol-bank", "--volumes", "--wait"); code != 0 {
		t.Fatal(said)
	}
	ctl(t, c.Cluster, "volume", "rm", "data", "-n", "shop", "--yes")
	ctl(t, c.Cluster, "uncordon", c.Agents[1].NodeID)
}

// largeStacks applies a Compose file of 245 KB 100 times concurrently. The scheduler stays within its memory
// limit and still serves other users.
func (c *twoTeams) largeStacks(t *testing.T) {
	var text strings.Builder
	text.WriteString("services:\n")
	for i := 0; text.Len() < 245_000; i++ {
		fmt.Fprintf(&text, "  s%d: {image: sim/run, environment: {A: %q, B: %q}}\n", i, strings.Repeat("a", 40), strings.Repeat("b", 40))
	}
	control := controlv1.NewAgentControlClient(c.conn["ada"])
	var mu sync.Mutex
	answers, accepted := map[string]int{}, []string{}
	var calls sync.WaitGroup
	for n := range 100 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), settle)
			defer cancel()
			id := fmt.Sprintf("large-%d", n)
			r, err := control.ApplyWorkload(ctx, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: "stopped", Spec: composeSpec("shop", text.String())})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				answers[status.Code(err).String()]++
			case r.GetSuccess():
				answers["accepted"]++
				accepted = append(accepted, id)
			default:
				answers[r.GetErrorMessage()[:min(len(r.GetErrorMessage()), 200)]]++
			}
		})
	}
	c.works(t, "bob", "bank", "beside")
	calls.Wait()
	measured(t, "100 applies of a Compose file of %d bytes gave these numbers of answers: %v", text.Len(), answers)
	if !c.Schedulers[0].Running() {
		t.Error("the scheduler has exited, want that it keeps running")
	}
	for _, id := range accepted {
		if code, said := c.as(t, "ada", nil, "delete", id); code != 0 {
			t.Errorf("the delete of %s failed: %s", id, said)
		}
	}
	ctl(t, c.Cluster, "delete", "beside", "--wait")
}

// largeSpecs applies 2,000 specifications of 500 KiB. Bob fills the share of his namespace, and the other team goes on. An
// operator of all namespaces fills the state. Then a scheduler that is restarted is ready quickly.
func (c *twoTeams) largeSpecs(t *testing.T) {
	const most = int64(confinedMemory / 8 / (500 << 10))
	n := c.fill(t, "bob", 0, `namespace "bank" is full`)
	if n > most/2 || n < most/4 {
		t.Errorf("%d specifications of namespace bank were accepted, want at most the half of %d", n, most)
	}
	c.works(t, "ada", "shop", "other-team")
	if n += c.fill(t, "oli", 1000, "the last 5 % are for admins"); n > most*95/100 || n < most/2 {
		t.Errorf("%d specifications were accepted, want at most 95 %% of %d, because oli is no admin", n, most)
	}
	if said := ctl(t, c.Cluster, "status"); !strings.Contains(said, "Warning") || !strings.Contains(said, "specifications and files take") {
		t.Errorf("persysctl status does not warn about the size of specifications:\n%s", said)
	}
	must(t, c.Schedulers[0].Kill())
	began := time.Now()
	must(t, c.Schedulers[0].Start())
	must(t, c.WaitReady(t.Context(), settle))
	if code, said := c.as(t, "bob", nil, "delete", "spec-0"); code != 0 {
		t.Errorf("after the restart a workload cannot be deleted: %s", said)
	}
	measured(t, "%d specifications of 500 KiB were accepted; the first write after a restart: %s", n, time.Since(began).Round(10*time.Millisecond))
	c.works(t, "ada", "shop", "small")
}

// fill applies specifications of 500 KiB in namespace bank until 20 of them were refused with the text full. Their
// names are numbered from first. It returns how many were accepted.
func (c *twoTeams) fill(t *testing.T, user string, first int64, full string) int64 {
	t.Helper()
	control := controlv1.NewAgentControlClient(c.conn[user])
	next, accepted, refused := make(chan int), atomic.Int64{}, atomic.Int64{}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for n := range next {
				spec := pad(500)
				spec.Namespace = "bank"
				r, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: fmt.Sprintf("spec-%d", n), DesiredState: "stopped", Spec: spec})
				switch {
				case err == nil && r.GetSuccess():
					accepted.Add(1)
				case err == nil && strings.Contains(r.GetErrorMessage(), full):
					refused.Add(1)
				default:
					t.Errorf("specification %d was answered with %v, %q; want success or the error %q", n, err, r.GetErrorMessage(), full)
				}
			}
		})
	}
	for n := int(first); n < 2000 && refused.Load() < 20 && !t.Failed(); n++ {
		next <- n
	}
	close(next)
	workers.Wait()
	if refused.Load() < 20 {
		t.Errorf("%d specifications were refused with %q, want 20", refused.Load(), full)
	}
	return accepted.Load()
}

// updates makes 2,600 ordinary updates. The record of a namespace that an admin created stays in the audit log.
func (c *twoTeams) updates(t *testing.T) {
	control := controlv1.NewAgentControlClient(c.conn["ada"])
	next := make(chan int)
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for n := range next {
				spec := pad(1)
				spec.Namespace = "shop"
				r, err := control.ApplyWorkload(t.Context(), &controlv1.ApplyWorkloadRequest{WorkloadId: fmt.Sprintf("update-%d", w), DesiredState: "stopped", Spec: spec})
				if err != nil || !r.GetSuccess() {
					t.Errorf("update %d was answered with %v, %q", n, err, r.GetErrorMessage())
				}
			}
		})
	}
	for n := 0; n < 2600 && !t.Failed(); n++ {
		next <- n
	}
	close(next)
	workers.Wait()
	if said := ctl(t, c.Cluster, "audit", "--log", "security", "--tail", "0", "-o", "json"); !strings.Contains(said, "NamespaceCreated") || strings.Contains(said, "WorkloadUpdated") {
		t.Errorf("the log security has:\n%s", said)
	}
	ctl(t, c.Cluster, "audit", "verify")
	for w := range 8 {
		if code, said := c.as(t, "ada", nil, "delete", fmt.Sprintf("update-%d", w)); code != 0 {
			t.Errorf("the delete of update-%d failed: %s", w, said)
		}
	}
}
