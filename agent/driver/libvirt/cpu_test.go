package libvirt

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// shelf is a fake hypervisor that keeps domains in memory. Its guests start and stop
// immediately. A test can make it refuse CPU quotas.
type shelf struct {
	hypervisor
	f        *facts
	all      map[string]*domain // domains by name
	refuses  string             // the call that refuses a CPU quota: "define", "start", or "" for none
	refusals int
}

func newShelf() *shelf {
	return &shelf{f: &facts{engine: "e", arch: "x86_64", tcg: emulated}, all: map[string]*domain{}}
}

// driverOn returns a driver that uses the fake hypervisor hv.
func driverOn(t *testing.T, hv hypervisor) *Driver {
	t.Helper()
	d, err := newDriver(Options{ClusterID: "cluster-1", NodeID: "node-a", Images: t.TempDir(), Acceleration: "qemu"}, hv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.snooper.Close)
	return d
}

func (s *shelf) facts(context.Context) (*facts, error) { return s.f, nil }

func (s *shelf) domain(_ context.Context, name string) (*domain, error) {
	if d := s.all[name]; d != nil {
		c := *d
		return &c, nil
	}
	return nil, driver.Errorf(driver.RuntimeResourceMissing, "domain", "%s: %w", name, errAbsent)
}

func (s *shelf) domains(context.Context) (out []domain, err error) {
	for _, d := range s.all {
		out = append(out, *d)
	}
	return out, nil
}

func (s *shelf) addresses(context.Context, string, bool) ([]address, error) { return nil, nil }

func (s *shelf) refuse(op, xml string) error {
	if s.refuses != op || !strings.Contains(xml, "<cputune>") {
		return nil
	}
	s.refusals++
	return driver.Errorf(driver.InvalidConfiguration, op, "%w", &noQuota{"cgroup cpu is required for scheduler tuning"})
}

func (s *shelf) define(_ context.Context, xml string) error {
	if err := s.refuse("define", xml); err != nil {
		return err
	}
	var x libvirtxml.Domain
	if err := x.Unmarshal(xml); err != nil {
		return err
	}
	d := s.all[x.Name]
	if d == nil {
		d = &domain{name: x.Name, uuid: x.UUID, state: stateShutoff}
		s.all[x.Name] = d
	}
	d.config, d.persistent = xml, true
	return nil
}

func (s *shelf) on(uuid string) *domain {
	for _, d := range s.all {
		if d.uuid == uuid {
			return d
		}
	}
	return nil
}

func (s *shelf) start(_ context.Context, uuid string) error {
	d := s.on(uuid)
	if err := s.refuse("start", d.config); err != nil {
		return err
	}
	d.active, d.state, d.live = true, stateRunning, d.config
	return nil
}

func (s *shelf) shutdown(_ context.Context, uuid string) error {
	d := s.on(uuid)
	d.active, d.state, d.reason, d.live = false, stateShutoff, 1, ""
	return nil
}

var element = regexp.MustCompile(`<persys:workload .*</persys:workload>`)

func (s *shelf) note(_ context.Context, uuid, text string, live bool) error {
	d := s.on(uuid)
	text = strings.NewReplacer("<workload>", `<persys:workload xmlns:persys="`+namespace+`">`, "</workload>", "</persys:workload>").Replace(text)
	set := func(xml string) string { return element.ReplaceAllLiteralString(xml, text) }
	d.config = set(d.config)
	if live {
		d.live = set(d.live)
	}
	return nil
}

// Every definition of a domain gets its CPU quota. If the hypervisor cannot enforce quotas, the workload's
// status says so.
func TestEveryDomainHasItsCPUQuota(t *testing.T) {
	open := func(refuses string) (*Driver, *shelf) {
		t.Helper()
		hv := newShelf()
		hv.refuses = refuses
		return driverOn(t, hv), hv
	}
	// ensure calls Ensure for a workload with the given content, two processors and a CPU limit in millicores.
	// It returns the XML of the running domain, and the limit and the message in the workload's status.
	ensure := func(d *Driver, hv *shelf, id, content string, millicores int64) (live, limit, message string) {
		t.Helper()
		spec := specFor(&agentv1.VMSpec{Vcpus: 2, MemoryMb: 64, CpuMillicores: millicores})
		spec.ID, spec.Content = driver.ID(id), content
		if err := d.Ensure(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		all, err := d.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			if o.ID == spec.ID && o.State == driver.Running && o.Content == content {
				return hv.all[id].live, o.Metadata["cpu_limit"], o.Message
			}
		}
		t.Fatalf("workload %q does not run with content %q; List returned %+v", id, content, all)
		return
	}
	quota := func(n string) string { return "<global_quota>" + n + "</global_quota>" }

	d, hv := open("")
	for _, c := range []struct {
		content    string
		millicores int64
		xml, limit string
	}{
		{"c1:1", 500, "<global_period>100000</global_period>\n    " + quota("50000"), "500 millicores, enforced by the hypervisor"},
		{"c1:2", 1999, quota("199900"), "1999 millicores, enforced by the hypervisor"}, // an update raises the quota
		{"c1:3", 1, "<global_period>1000000</global_period>\n    " + quota("1000"), "1 millicores, enforced by the hypervisor"},
		{"c1:4", 2000, "", ""}, // the guest has two processors, so it cannot use more than 2000 millicores anyway
		{"c1:5", 300, quota("30000"), "300 millicores, enforced by the hypervisor"},
		{"c1:6", 0, "", ""},
	} {
		live, limit, message := ensure(d, hv, "web", c.content, c.millicores)
		if !strings.Contains(live, c.xml) || strings.Contains(live, "<cputune>") != (c.xml != "") || limit != c.limit || message != "" {
			t.Errorf("with a quota of %d millicores the status has limit %q and message %q, want no message; the domain XML must have %q and is\n%s", c.millicores, limit, message, c.xml, live)
		}
	}

	for _, at := range []string{"define", "start"} {
		d, hv := open(at)
		for _, id := range []string{"one", "two"} {
			live, limit, message := ensure(d, hv, id, "c1:1", 500)
			if strings.Contains(live, "<cputune>") || limit != "500 millicores, not enforced" ||
				message != "its CPU limit of 500 millicores is not enforced on this node, only its number of processors: cgroup cpu is required for scheduler tuning" {
				t.Errorf("libvirt refuses the quota at %s: the status has limit %q and message %q, want \"not enforced\" and the reason; the guest runs with\n%s", at, limit, message, live)
			}
		}
		if hv.refusals != 1 {
			t.Errorf("libvirt refuses the quota at %s: the driver tried %d times to set a quota, want once", at, hv.refusals)
		}
		// A restarted daemon may support quotas.
		hv.f, hv.refuses = &facts{engine: "e", arch: "x86_64", tcg: emulated}, ""
		if live, limit, message := ensure(d, hv, "one", "c1:2", 500); !strings.Contains(live, quota("50000")) || message != "" {
			t.Errorf("after a restart of the daemon the status has limit %q and message %q, want no message and a quota; the guest runs with\n%s", limit, message, live)
		}
	}
}

func TestQuotaRefusalsAreRecognised(t *testing.T) {
	for text, want := range map[string]bool{
		"unsupported configuration: cgroup cpu is required for scheduler tuning":                                   true,
		"unsupported configuration: cpu tuning is not available in session mode":                                   true,
		"unable to write to '/sys/fs/cgroup/cpu/machine/qemu-1-a.libvirt-qemu/cpu.cfs_quota_us': invalid argument": true,
		"unable to write to '/sys/fs/cgroup/machine.slice/a.scope/libvirt/cpu.max': read-only file system":         true,
		"unsupported configuration: machine type 'pc-q35-7.2' does not support cpus":                               false,
		"unable to write to '/sys/fs/cgroup/memory/machine/memory.limit_in_bytes': invalid argument":               false,
	} {
		if refusesQuota(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	if (&quotas{}).refused(&facts{}, errors.New("anything else")) {
		t.Error("refused returned true for an error that is not about quotas")
	}
}
