package persysctl

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// TestNamespaceOfCommands: the commands apply and list must use the namespace of the flag --namespace, else of
// PERSYS_NAMESPACE, else of the context.
func TestNamespaceOfCommands(t *testing.T) {
	dir := t.TempDir()
	plain, placed := filepath.Join(dir, "plain.yaml"), filepath.Join(dir, "placed.yaml")
	for path, text := range map[string]string{
		plain: "id: web\ncontainer: {image: \"nginx:1\"}\n", placed: "id: web\nnamespace: b\ncontainer: {image: \"nginx:1\"}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range map[string]struct {
		env  string
		args []string
		want string // namespace that the request to the scheduler must contain
		fail string
	}{
		"no namespace is given": {"", []string{"apply", "-f", plain}, "", ""},
		"a flag":                {"", []string{"apply", "-f", plain, "-n", "a"}, "a", ""},
		"a variable":            {"a", []string{"apply", "-f", plain}, "a", ""},
		"the namespace of the file takes precedence over PERSYS_NAMESPACE": {"a", []string{"apply", "-f", placed}, "b", ""},
		"a flag does not override the file":                                {"", []string{"apply", "-f", placed, "-n", "a"}, "", `the file has namespace "b", but --namespace is "a"`},
		"apply with -n * sends no namespace":                               {"", []string{"apply", "-f", plain, "-n", "*"}, "", ""},
		"a command with an id sends no namespace":                          {"a", []string{"stop", "old"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			if x.env != "" {
				s.env["PERSYS_NAMESPACE"] = x.env
			}
			code := s.run(f, x.args...)
			if x.fail != "" {
				if code != exitUsage || !strings.Contains(s.stderr.String(), x.fail) {
					t.Fatalf("the command ended with exit code %d: %s", code, s.stderr.String())
				}
				return
			}
			if got := last[*controlv1.ApplyWorkloadRequest](f).GetSpec().GetNamespace(); code != 0 || got != x.want {
				t.Errorf("code %d, namespace %q, want %q: %s", code, got, x.want, s.stderr.String())
			}
		})
	}
	// A drain moves the workloads of all namespaces off a node. So these commands must ignore PERSYS_NAMESPACE when
	// they list the workloads of a node.
	for _, args := range [][]string{{"drain", "node-a", "--wait", "--timeout", "10ms"}, {"node", "node-a"}} {
		t.Run(args[0], func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			s.env["PERSYS_NAMESPACE"] = "shop"
			s.run(f, args...)
			if req := last[*controlv1.ListWorkloadsRequest](f); req.GetNodeId() != "node-a" || req.GetNamespace() != "" {
				t.Errorf("drain listed the workloads of node %q in namespace %q; want those of node-a in all namespaces: %s", req.GetNodeId(), req.GetNamespace(), s.stderr.String())
			}
		})
	}
	t.Run("a list", func(t *testing.T) {
		f, s := start(t, nil), newSession(t)
		s.env["PERSYS_NAMESPACE"] = "a"
		s.run(f, "list")
		if got := last[*controlv1.ListWorkloadsRequest](f).GetNamespace(); got != "a" {
			t.Errorf("list requested namespace %q, want a", got)
		}
		s.run(f, "list", "-n", "*")
		if got := last[*controlv1.ListWorkloadsRequest](f).GetNamespace(); got != "" {
			t.Errorf("list -n '*' requested namespace %q, want none, which is all", got)
		}
	})
	t.Run("a context stores a namespace", func(t *testing.T) {
		f, s := start(t, nil), newSession(t)
		if code := s.run(nil, "context", "add", "here", "-s", f.addr, "--insecure", "-n", "a", "--use"); code != 0 {
			t.Fatal(s.stderr.String())
		}
		if code := s.run(nil, "apply", "-f", plain); code != 0 {
			t.Fatal(s.stderr.String())
		}
		if got := last[*controlv1.ApplyWorkloadRequest](f).GetSpec().GetNamespace(); got != "a" {
			t.Errorf("the workload was applied to namespace %q, want that of the context", got)
		}
	})
}

// TestNamespaceSetKeepsOtherFields: `persysctl namespace set` leaves fields unchanged for which it has no
// flag.
func TestNamespaceSetKeepsOtherFields(t *testing.T) {
	f, s := start(t, nil), newSession(t)
	if code := s.run(f, "namespace", "set", "shop", "--memory", "2Gi", "--devices", "4", "--add-user", "eve", "--release", "ada"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	r := last[*clusterv1.PutNamespaceRequest](f)
	q := r.GetQuota()
	if q.GetDevices() != 4 || q.GetMemoryMib() != 2048 || q.GetCpuMillicores() != 2000 || q.GetWorkloads() != 3 || r.GetDescription() != "the shop's own" ||
		!slices.Equal(r.GetUsers(), []string{"bob", "eve"}) || r.IfVersion == nil || r.GetIfVersion() != 41 || !slices.Equal(r.GetRelease(), []string{"ada"}) {
		t.Errorf("put %v", r)
	}
	if r.GetMaxPriority() != 7 {
		t.Errorf("the sent maximum priority is %d", r.GetMaxPriority())
	}
	if code := s.run(f, "namespace", "set", "shop", "--max-priority", "0"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	if got := last[*clusterv1.PutNamespaceRequest](f).GetMaxPriority(); got != 0 {
		t.Errorf("the sent maximum priority is %d", got)
	}
	if got := last[*clusterv1.PutNamespaceRequest](f).GetNodeLabels(); len(got) != 1 || got["pool"] != "shop" {
		t.Errorf("the sent node labels are %v, want the present ones", got)
	}
	for _, x := range []struct{ value, want string }{{"zone=a,pool=web", "pool=web, zone=a"}, {"note=", "note="}, {"a.b/c=x=y", "a.b/c=x=y"}, {"", ""}} {
		if code := s.run(f, "namespace", "set", "shop", "--nodes", x.value); code != 0 {
			t.Fatal(s.stderr.String())
		}
		if got := labelsText(last[*clusterv1.PutNamespaceRequest](f).GetNodeLabels()); got != x.want {
			t.Errorf("--nodes %q sends %q, want %q", x.value, got, x.want)
		}
	}
	for _, x := range []struct{ value, want string }{{"pool", "must be KEY=VALUE"}, {"=shop", "must be KEY=VALUE"}, {"pool=a,pool=b", "given twice"}} {
		s := newSession(t)
		if code := s.run(f, "namespace", "set", "shop", "--nodes", x.value); code != exitUsage || !strings.Contains(s.stderr.String(), x.want) {
			t.Errorf("--nodes %q: code %d, %s, want a usage error with %q", x.value, code, s.stderr.String(), x.want)
		}
	}
	if code := s.run(f, "namespace", "set", "shop", "--cpu", "0", "--disk", "0"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	if q := last[*clusterv1.PutNamespaceRequest](f).GetQuota(); q.GetCpuMillicores() != 0 || q.GetMemoryMib() != 1024 {
		t.Errorf("put %v", q)
	}
}

// TestNamespaceSetAgain: if another user changes the namespace at the same time, `persysctl namespace set`
// reads the namespace again and repeats the change, a limited number of times.
func TestNamespaceSetAgain(t *testing.T) {
	moved := status.Error(codes.Aborted, `namespace "shop" has changed from version 41 to 42`)
	f, s := start(t, nil), newSession(t)
	f.fail["PutNamespace"] = []error{moved, moved}
	if code := s.run(f, "namespace", "set", "shop", "--cpu", "1"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	if got := strings.Count(s.stderr.String(), "another user has changed the namespace"); got != 2 {
		t.Errorf("the warning was printed %d times: %s", got, s.stderr.String())
	}
	f.fail["PutNamespace"] = []error{moved, moved, moved, moved, moved}
	if code := s.run(f, "namespace", "set", "shop", "--cpu", "1"); code != exitFailed || !strings.Contains(s.stderr.String(), "from version 41 to 42") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
	if code := s.run(f, "namespace", "set", "new"); code != 0 {
		t.Fatal(s.stderr.String())
	}
	if r := last[*clusterv1.PutNamespaceRequest](f); r.IfVersion == nil || r.GetIfVersion() != 0 {
		t.Errorf("a new namespace is written with if_version %v, want 0", r.IfVersion)
	}
}
