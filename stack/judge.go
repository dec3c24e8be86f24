package stack

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"

	"github.com/persys/compute/engine"
	"github.com/persys/compute/policy"
)

// judge checks a loaded project. It finds values that compose-go accepts but that an engine or the kernel will
// refuse.
type judge struct {
	p         *types.Project
	dir, main string
	docs      map[string][]*yaml.Node
	faults    Faults
	warnings  []string
	grace     time.Duration     // largest stop_grace_period, see Source.MaxStopGrace
	job       bool              // see Source.Job
	mask      bool              // true if faults must not repeat values of the stack (Source.Mask)
	labelled  map[string]Fault  // see loading.labelled
	addresses map[string]string // for each network and fixed address: the service that has the address
}

func (j *judge) fault(rule string, at ...string) {
	f := Fault{File: j.main, At: strings.Join(at, "."), Rule: rule}
	f.line(j.docs, at)
	j.faults.add(f)
}

// warn adds a warning about a value. at holds the keys that lead to the value in the Compose file.
func (j *judge) warn(text string, at ...string) {
	f := Fault{File: j.main, At: strings.Join(at, "."), Rule: text}
	f.line(j.docs, at)
	j.warnings = append(j.warnings, f.String())
}

// value adds a fault for a value of the stack that breaks a rule; if rule is "", it adds none. at holds the
// keys that lead to the value in the Compose file.
func (j *judge) value(rule, value string, at ...string) {
	if rule == "" {
		return
	}
	if !j.mask {
		if len(value) > 80 {
			value = strings.ToValidUTF8(value[:80], "") + "…"
		}
		rule += fmt.Sprintf(", got %q", value)
	}
	j.fault(rule, at...)
}

func (j *judge) all() {
	if len(j.p.Services) == 0 {
		j.fault("no service is enabled; set COMPOSE_PROFILES in .env beside the file or in compose.env", "services")
		return
	}
	most := 0
	for _, s := range j.p.Services {
		most = max(most, s.GetScale())
	}
	if most < 1 {
		j.fault("every service has 0 replicas; give at least one service a replica, or stop the stack with desired: stopped", "services")
	}
	named, published := map[string]string{}, []claim{}
	for _, name := range slices.Sorted(maps.Keys(j.p.Services)) {
		s := j.p.Services[name]
		j.image(s)
		j.stopping(s)
		j.service(s)
		if c := s.ContainerName; c != "" {
			if other, taken := named[c]; taken {
				j.fault(fmt.Sprintf("%q is also the container_name of service %s; names are unique on an engine", c, other), "services", name, "container_name")
			}
			named[c] = name
		}
		if s.GetScale() > 0 {
			published = j.ports(s, published)
		}
	}
	j.files()
	j.objects()
}

func (j *judge) image(s types.ServiceConfig) {
	switch {
	case s.Provider != nil:
		j.fault("nodes run containers only", "services", s.Name, "provider")
	case len(s.Models) > 0:
		j.fault("nodes have no model runner", "services", s.Name, "models")
	case s.Image == "" && s.Build != nil:
		j.fault("nodes build no images; build and push one, and name it in image", "services", s.Name, "build")
	case s.Image == "":
		j.fault("must be set", "services", s.Name, "image")
	default:
		j.value(engine.Image(s.Image), s.Image, "services", s.Name, "image")
	}
}

// stopping checks the settings of a service that say how it is stopped.
func (j *judge) stopping(s types.ServiceConfig) {
	if g := s.StopGracePeriod; g != nil && time.Duration(*g) < 0 {
		j.fault("must not be negative", "services", s.Name, "stop_grace_period")
	} else if g != nil && j.grace > 0 && time.Duration(*g) > j.grace {
		j.fault(fmt.Sprintf("is %s, and no cluster waits longer than %s for a container to stop: write %s or less", g, short(j.grace), short(j.grace)),
			"services", s.Name, "stop_grace_period")
	}
	if s.StopSignal != "" && !policy.Signal(s.StopSignal) {
		j.value("must be a signal of Linux, such as SIGTERM, SIGQUIT or 15", s.StopSignal, "services", s.Name, "stop_signal")
	}
}

// short formats a duration as people write it in a Compose file: 10m, not 10m0s.
func short(d time.Duration) string {
	text := d.String()
	if d >= time.Minute && d%time.Minute == 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// claim is a host port, or a range of host ports, that a service publishes, with the protocol and the host
// address.
type claim struct {
	service     string
	first, last int
	address     netip.Addr // address of the host; zero means all addresses
	protocol    string
}

// ports checks the host ports of a service. Two services must not publish the same port, so ports returns the
// fixed ports of this service together with those of the earlier services.
func (j *judge) ports(s types.ServiceConfig, before []claim) []claim {
	for i, p := range s.Ports {
		at := []string{"services", s.Name, "ports", strconv.Itoa(i)}
		j.value(engine.Protocol(p.Protocol), p.Protocol, at...)
		if p.Mode != "" && p.Mode != "ingress" && p.Mode != "host" {
			j.value("must have the mode ingress or host", p.Mode, at...)
		}
		if p.Published == "" {
			continue
		}
		low, high, isRange := strings.Cut(p.Published, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(high)
		}
		switch {
		case err != nil || first < 0 || last > 65535:
			j.fault(fmt.Sprintf("published port %q must be 1 to 65535 or a range of them", p.Published), at...)
			continue
		case first > last:
			j.fault(fmt.Sprintf("range of ports %q is backwards", p.Published), at...)
			continue
		case first == 0:
			continue
		}
		if n := s.GetScale(); n > last-first+1 {
			j.fault(fmt.Sprintf("host port %s is for one container, and the service has %d replicas; leave the host port out, give a range of %d ports, or run one replica", p.Published, n, n), at...)
			continue
		}
		address, _ := netip.ParseAddr(p.HostIP)
		if address.IsUnspecified() {
			address = netip.Addr{}
		}
		if isRange && first != last {
			continue // from a range of ports, the engine chooses a free one
		}
		c := claim{s.Name, first, last, address, p.Protocol}
		for _, o := range before {
			if o.protocol == c.protocol && o.first <= c.last && c.first <= o.last && (!o.address.IsValid() || !c.address.IsValid() || o.address == c.address) {
				j.fault(fmt.Sprintf("host port %d/%s is also published by service %s", first, p.Protocol, o.service), at...)
			}
		}
		before = append(before, c)
	}
	return before
}

// files checks that secrets and configs are files in the stack's folder.
func (j *judge) files() {
	check := func(section, name, file string) {
		if file != "" && !strings.HasPrefix(file, j.dir+"/") {
			j.fault(strconv.Quote(file)+" "+outside+"; only files in it can be used", section, name, "file")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Secrets)) {
		check("secrets", name, j.p.Secrets[name].File)
	}
	for _, name := range slices.Sorted(maps.Keys(j.p.Configs)) {
		check("configs", name, j.p.Configs[name].File)
	}
}

// explain adds advice on what to change to the text of a fault, if compose-go's error is one of those that
// users often meet.
func explain(f Fault) Fault {
	for _, h := range []struct{ in, out string }{
		{"additional properties", "Compose knows no such key here"},
		{"refers to undefined volume", "declare it under the top-level key volumes"},
		{"refers to undefined network", "declare it under the top-level key networks"},
		{"refers to undefined secret", "declare it under the top-level key secrets"},
		{"refers to undefined config", "declare it under the top-level key configs"},
		{"behind the profile", ""},
		{"depends on undefined service", "name a service of this file"},
		{"cycle detected", "remove one of these dependencies"},
		{"invalid hostPort", "a host port is 1 to 65535, or a range of them from low to high"},
		{"invalid containerPort", "a port is 1 to 65535, or a range of them from low to high"},
		{"invalid ranges", "give ranges of the same length, or one port of the container"},
		{"invalid proto", "want tcp, udp or sctp"},
		{"invalid duration", "write a duration with its unit, such as 30s or 1m30s"},
		{"invalid size", "write bytes with a unit, such as 512m"},
		{"invalid boolean", "write true or false"},
		{"overflows uint", "must be 0 or more"},
		{"oom_score_adj must be", "write a whole number from -1000 to 1000"},
		{"_grace_period must be", "write a duration with its unit, such as 30s or 1m30s"},
		{"interval must be", "write a duration with its unit, such as 30s or 1m30s"},
		{"timeout must be", "write a duration with its unit, such as 30s or 1m30s"},
		{"start_period must be", "write a duration with its unit, such as 30s or 1m30s"},
		{".mode'", "write the mode in octal, such as 0440"},
		{"missing IP", "write name=10.0.0.5, or name=host-gateway for the node"},
		{"invalid command line string", "a quotation mark is not closed; a list of words needs no quotes"},
	} {
		if strings.Contains(f.Rule, h.in) {
			if h.out != "" {
				f.Rule += ": " + h.out
			}
			return f
		}
	}
	return f
}
