// Package asks derives, from the specification of a workload, the list of things that the workload asks of
// its machine (policy.Ask). The specification is a container, a virtual machine, or a loaded Compose project
// in which variables, extends and include are resolved. Schedulers and agents use the same derivation.
package asks

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	agentv1 "github.com/persys/compute/api/agent/v1"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/stack/service"
)

// MaxAsks is the largest number of things (policy.Ask) that one workload may request from its
// machine.
const MaxAsks = 4096

// Image returns the full reference of an image, such as docker.io/library/nginx:latest for nginx;
// if ref is not a valid reference, it returns ref.
func Image(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.TagNameOnly(named).String()
}

// list collects asks.
type list []policy.Ask

func (l *list) add(rule, field, value string) {
	*l = append(*l, policy.Ask{Rule: rule, Value: value, Field: field})
}

func index(field string, i int) string { return field + "[" + strconv.Itoa(i) + "]" }

// unit describes one container: a container workload, or a service of a stack.
type unit struct {
	Field string // field of the specification: container, or services.NAME
	Image string // full reference of the image, with registry and tag
	User  string

	Privileged                   bool
	CapAdd, CapDrop, SecurityOpt []string
	// Pids is the limit on processes. 0 means the agents' default, a negative value no limit.
	Pids              int64
	HasCPU, HasMemory bool // whether the specification limits the resource
	Mounts            []mount
	Ports             []port
}

// mount is a folder or file of the host that is mounted in a container.
type mount struct {
	Path     string
	ReadOnly bool
	Field    string
}

// port is a published port. Published is the port of the host, a number or a range; if it is empty or 0, the
// engine chooses the port.
type port struct {
	Address, Published, Protocol string
	Field                        string
}

// Container returns the asks of a container (the things that it requests from its machine), as the
// agent API describes it. image is the full reference of its image.
func Container(c *agentv1.ContainerSpec, image string) []policy.Ask {
	r := c.GetResources()
	u := unit{
		Field: "container", Image: image, User: c.GetUser(), Privileged: c.GetPrivileged(),
		CapAdd: c.GetCapAdd(), CapDrop: c.GetCapDrop(), SecurityOpt: c.GetSecurityOpt(), Pids: c.GetPidsLimit(),
		HasCPU: r.GetCpuMillicores() > 0 || c.GetCpuMillicores() > 0, HasMemory: r.GetMemoryBytes() > 0,
	}
	for i, v := range c.GetVolumes() {
		u.Mounts = append(u.Mounts, mount{v.GetHostPath(), v.GetReadOnly(), index("container.volumes", i) + ".host_path"})
	}
	for i, p := range c.GetPorts() {
		u.Ports = append(u.Ports, port{p.GetAddress(), strconv.Itoa(int(p.GetHostPort())), p.GetProtocol(), index("container.ports", i)})
	}
	d := project{out: make(list, 0, 2+len(u.Mounts)+len(u.Ports))}
	d.out.unit(u)
	s := service.Of(c)
	d.sharing(u.Field, s)
	d.devices(u.Field, s, nil, nil)
	for _, kind := range slices.Sorted(maps.Keys(c.GetCountedDevices())) {
		d.out.add(policy.RuleDevice, "resources.devices."+kind, kind)
	}
	d.options(u.Field, s)
	d.hooks(u.Field, s)
	for i, g := range c.GetGroupAdd() {
		d.out.group(index(u.Field+".group_add", i), g)
	}
	return d.out
}

func (l *list) unit(u unit) {
	at := u.Field
	l.add(policy.RuleImage, at+".image", u.Image)
	if u.Privileged {
		l.add(policy.RulePrivileged, at+".privileged", "true")
	}
	for i, m := range u.Mounts {
		l.mount(m, index(at+".volumes", i))
	}
	for i, c := range u.CapAdd {
		l.add(policy.RuleCapability, index(at+".cap_add", i), Capability(c))
	}
	for i, o := range u.SecurityOpt {
		l.add(policy.RuleSecurity, index(at+".security_opt", i), SecurityOption(o))
	}
	if u.User != "" {
		l.add(policy.RuleUser, at+".user", u.User)
	}
	if u.Pids != 0 {
		l.add(policy.RulePids, at+".pids_limit", strconv.FormatInt(max(u.Pids, -1), 10))
	}
	for i, p := range u.Ports {
		l.port(p, index(at+".ports", i))
	}
	if lacks := u.lacks(); lacks != "" {
		l.add(policy.RuleLacks, at, lacks)
	}
}

// group adds a supplementary group of the container to the list of asks.
func (l *list) group(field, group string) { l.add(policy.RuleUser, field, group) }

func (l *list) mount(m mount, field string) {
	if m.Field != "" {
		field = m.Field
	}
	rule := policy.RuleHostPath
	if m.ReadOnly {
		rule = policy.RuleHostPathRead
	}
	l.add(rule, field, m.Path)
}

// IngressPort returns the asks (requests for rights on the machine) for a container's port in
// ingress mode, which is published on every node.
func IngressPort(published int32, protocol, field string) []policy.Ask {
	var out list
	out.port(port{Published: strconv.Itoa(int(published)), Protocol: protocol}, field)
	return out
}

func (l *list) port(p port, field string) {
	if p.Field != "" {
		field = p.Field
	}
	published := p.Published
	if published == "" {
		published = "0"
	}
	address := p.Address
	if address == "0.0.0.0" || address == "::" || address == "[::]" {
		address = ""
	}
	protocol := strings.ToLower(p.Protocol)
	if protocol == "" {
		protocol = "tcp"
	}
	l.add(policy.RulePort, field, policy.PortValue(address, published, protocol))
}

// lacks returns the protections in policy.Policy.Requires that the container does not have, separated by commas.
func (u *unit) lacks() string {
	words := make([]string, 0, 5)
	if policy.Root(u.User) {
		words = append(words, "user")
	}
	if u.User == "" {
		words = append(words, policy.LacksUser)
	}
	if !dropsAll(u.CapDrop) {
		words = append(words, "cap_drop")
	}
	if !u.HasCPU {
		words = append(words, "cpu")
	}
	if !u.HasMemory {
		words = append(words, "memory")
	}
	return strings.Join(words, ",")
}

func dropsAll(list []string) bool {
	for _, c := range list {
		if Capability(c) == "ALL" {
			return true
		}
	}
	return false
}

// Capability returns the name of a capability as the kernel's documentation writes it, but without CAP_.
func Capability(name string) string {
	return strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "CAP_")
}

// SecurityOption returns an entry of security_opt as KEY=VALUE. The engine also accepts KEY:VALUE, and
// no-new-privileges without a value.
func SecurityOption(o string) string {
	o = strings.TrimSpace(o)
	i := strings.IndexAny(o, "=:")
	switch {
	case i >= 0:
		return o[:i] + "=" + o[i+1:]
	case o == "no-new-privileges":
		return o + "=true"
	}
	return o
}

// vmImages is the default folder of images and disks, for a specification that gives no folder
// (contract/wire-agent.md).
const vmImages = "/var/lib/libvirt/images"

// Machine says which files and folders of a node are those of one virtual machine. A policy does not treat them as
// paths of the host, so the virtual machine needs no permission for them.
type Machine struct {
	// Names are the names of the virtual machine: the workload id, and on an agent also the name of its
	// libvirt domain.
	Names []string
	// Images is the folder of images, and of disks whose path is not given; "" means the folder that schedulers assume
	// (/var/lib/libvirt/images).
	Images string
	// IsDisk reports whether a file in the folder Images is the disk of a virtual machine. Schedulers cannot
	// read the folder and pass nil.
	IsDisk func(path string) bool
}

// VM returns the asks of a virtual machine (the things that it requests from its machine), such as
// existing disks. A disk that the agent creates for the workload is not among them.
func VM(v *agentv1.VMSpec, m Machine) []policy.Ask {
	if m.Images == "" {
		m.Images = vmImages
	}
	var out list
	if image := v.GetOsImage(); image != "" && (!plainName(image) || m.IsDisk != nil && m.IsDisk(path.Join(m.Images, image))) {
		out.add(policy.RuleDisk, "vm.image", m.at(image))
	}
	for i, d := range v.GetDisks() {
		if p := d.GetPath(); p != "" && d.GetPool() == "" && !m.own(p, d) {
			out.add(policy.RuleDisk, index("vm.disks", i)+".path", m.at(p))
		}
	}
	for i, n := range v.GetNetworks() {
		name := n.GetNetwork()
		if name == "" {
			name = "default"
		}
		out.add(policy.RuleNetwork, index("vm.networks", i)+".network", name)
	}
	return out
}

// own reports whether p, the path of disk d, is the path that the agent itself chooses for the
// disk.
func (m *Machine) own(p string, d *agentv1.DiskConfig) bool {
	dir, file := path.Split(path.Clean(p))
	extension := ".qcow2"
	if strings.EqualFold(d.GetFormat(), "raw") {
		extension = ".img"
	}
	if dir = path.Clean(dir); dir != vmImages && dir != path.Clean(m.Images) || strings.EqualFold(d.GetType(), "cdrom") {
		return false
	}
	for _, name := range m.Names {
		if file == name+"-"+d.GetDevice()+extension {
			return true
		}
	}
	return false
}

// plainName reports whether an image is given by its name alone, without a folder.
func plainName(image string) bool {
	return !strings.Contains(image, "/") && image != "." && image != ".."
}

func (m *Machine) at(p string) string {
	switch {
	case path.IsAbs(p):
		return path.Clean(p)
	case strings.Contains(p, ":"):
		return p // a network disk: the path is its name
	}
	return path.Join(m.Images, p)
}

// tooMany returns the error for a workload that requests n things from its machine, which is more
// than MaxAsks.
func tooMany(n int) error {
	return fmt.Errorf("asks for %d things (images, ports, mounts, …), at most %d", n, MaxAsks)
}
