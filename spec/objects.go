package spec

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/engine"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/bounds"
	"github.com/persys/compute/stack/service"
)

// A container gets secrets and configs of its namespace as files in memory (secrets, configs) and as values of
// environment variables (env_secrets, env_configs). The services of a Compose stack get, as files, the secrets and
// configs that its Compose file declares with external: true.

// secretsFolder is the folder of secrets in a container, as in Compose.
const secretsFolder = "/run/secrets"

const (
	defaultFileMode = 0o444
	maxFileOwner    = 1<<31 - 1 // largest id of a user that Docker accepts
)

// MaxObjectFiles is the maximum size in bytes of the secrets and configs of one workload together.
const MaxObjectFiles = 2 << 20

// objectRef is one reference to a secret or a config, in a container or in a service of a stack.
type objectRef struct {
	kind, name, at string
	file           *controlv1.ObjectFile // nil for an environment variable
	variable       string
	service        string // "" in a container
}

// OnChangeRestart is the default value of on_change: if a secret or config gets a new version, the container is
// recreated.
const OnChangeRestart = "restart"

// onChange returns what a new version of the secret or config does to the workload (restart it, send a signal, or
// nothing). of is the container's own field on_change, which applies if the reference has none.
func (r *objectRef) onChange(of string) service.OnChange {
	out, _ := service.ParseOnChange(cmp.Or(strings.TrimSpace(r.file.GetOnChange()), of)) // Validate has checked it
	return out
}

// refsOf returns the references of a specification to secrets and configs.
func refsOf(s *controlv1.WorkloadSpec) []objectRef {
	out := objectRefs(s.GetContainer())
	for _, o := range s.GetCompose().GetObjects() {
		out = append(out, objectRef{kind: o.GetKind(), name: o.GetFile().GetSource(), at: "spec.compose.inline_yaml", file: o.GetFile(), service: o.GetService()})
	}
	return out
}

// objectRefs returns the references of a container to secrets and configs, in the order of its fields.
func objectRefs(c *controlv1.ContainerSpec) (out []objectRef) {
	const at = "spec.container."
	for _, l := range []struct {
		kind, field string
		files       []*controlv1.ObjectFile
	}{{fsm.KindSecret, "secrets", c.GetSecrets()}, {fsm.KindConfig, "configs", c.GetConfigs()}} {
		for i, f := range l.files {
			out = append(out, objectRef{kind: l.kind, name: f.GetSource(), at: fmt.Sprintf("%s%s[%d]", at, l.field, i), file: f})
		}
	}
	for _, m := range []struct {
		kind, field string
		names       map[string]string
	}{{fsm.KindSecret, "env_secrets", c.GetEnvSecrets()}, {fsm.KindConfig, "env_configs", c.GetEnvConfigs()}} {
		for _, k := range sortedKeys(m.names) {
			out = append(out, objectRef{kind: m.kind, name: m.names[k], at: at + m.field + "." + k, variable: k})
		}
	}
	return out
}

// objectUses returns the secrets and configs that a specification refers to, sorted by kind and name.
func objectUses(s *controlv1.WorkloadSpec) (out []*commandv1.ObjectUse) {
	for _, r := range refsOf(s) {
		on := r.onChange(s.GetContainer().GetOnChange())
		out = append(out, &commandv1.ObjectUse{Kind: r.kind, Name: r.name, Keep: on.Keep, Signal: on.Signal})
	}
	slices.SortFunc(out, func(a, b *commandv1.ObjectUse) int {
		return cmp.Or(strings.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetName(), b.GetName()))
	})
	return slices.CompactFunc(out, func(a, b *commandv1.ObjectUse) bool { return a.GetKind() == b.GetKind() && a.GetName() == b.GetName() })
}

// UnknownObjects returns an error for each reference to a secret or config for which known returns false.
func UnknownObjects(s *controlv1.WorkloadSpec, known func(kind, name string) bool) error {
	var e Errors
	for _, r := range refsOf(s) {
		name := strings.TrimSpace(r.name)
		missing := " does not exist in this namespace: persysctl " + r.kind + " put " + name + " --from-file FILE"
		switch {
		case known(r.kind, name):
		case r.service != "":
			e.add(r.at, "services."+r.service+"."+r.kind+"s: "+r.kind+" "+name+missing, "")
		default:
			e.add(r.place(), r.kind+missing, name)
		}
	}
	return e.asError()
}

// place returns the path in the API of the field that contains the name of the secret or config.
func (r *objectRef) place() string {
	if r.file != nil {
		return r.at + ".source"
	}
	return r.at
}

// objects checks the references of a container to secrets and configs. mounts holds the paths in the
// container that are mount points already.
func (e *Errors) objects(c *controlv1.ContainerSpec, mounts map[string]string) {
	const at = "spec.container"
	refs := objectRefs(c)
	if n := len(refs); n > fsm.MaxObjectUses {
		e.addf(at+".secrets", "", "has, together with configs, env_secrets and env_configs, %d entries, at most %d", n, fsm.MaxObjectUses)
		return
	}
	e.onChange(refs, at, c.GetOnChange())
	if len(refs) == 0 && strings.TrimSpace(c.GetOnChange()) != "" {
		e.add(at+".on_change", "needs secrets or configs", c.GetOnChange())
	}
	variables := map[string]string{}
	for _, r := range refs {
		if !bounds.ValidID(strings.TrimSpace(r.name)) {
			e.add(r.place(), "must be the name of a "+r.kind+", which matches "+bounds.IDRule, r.name)
		}
		if r.file == nil {
			_, plain := c.GetEnv()[r.variable]
			if other, twice := variables[r.variable]; twice || plain {
				e.add(r.at, "is set by "+orElse(other, at+".env")+" too", "")
			}
			variables[r.variable] = r.at
			continue
		}
		e.objectFile(r, mounts)
	}
	names := map[string]string{}
	for k := range variables {
		names[k] = ""
	}
	e.env(at+".env_secrets", names)
}

// onChange checks the field on_change of a container and of its files. All references of a container to one
// object must have the same on_change.
func (e *Errors) onChange(refs []objectRef, at, of string) {
	on, ok := service.ParseOnChange(of)
	if !ok {
		e.add(at+".on_change", service.OnChangeRule, of)
		return
	}
	first := map[string]objectRef{}
	for _, r := range refs {
		if _, ok := service.ParseOnChange(r.file.GetOnChange()); !ok {
			e.add(r.at+".on_change", service.OnChangeRule, r.file.GetOnChange())
			continue
		}
		if on.Signal != "" && r.file == nil {
			e.add(at+".on_change", "cannot be a signal, because the environment of a running container does not change ("+r.at+"): set on_change of the files instead", of)
			return
		}
		other, twice := first[r.kind+"/"+r.name]
		if twice && other.onChange(of) != r.onChange(of) {
			e.add(r.at, "uses "+r.kind+" "+r.name+" with another on_change than "+other.at+": set the same on_change in both", "")
		}
		first[r.kind+"/"+r.name] = r
	}
}

func (e *Errors) objectFile(r objectRef, mounts map[string]string) {
	f := r.file
	if target := objectTarget(r.kind, f); e.absolute(r.at+".target", target) {
		if strings.HasSuffix(f.GetTarget(), "/") {
			e.add(r.at+".target", "must be the path of a file, not of a folder", f.GetTarget())
		}
		e.mount(r.at+".target", target, mounts)
	}
	for _, id := range []struct{ field, value string }{{"uid", f.GetUid()}, {"gid", f.GetGid()}} {
		if n, err := strconv.ParseUint(orElse(id.value, "0"), 10, 32); err != nil || n > maxFileOwner {
			e.addf(r.at+"."+id.field, id.value, "must be a number from 0 to %d: only the image knows user names", maxFileOwner)
		}
	}
	if f.Mode != nil && f.GetMode() > 0o777 {
		e.add(r.at+".mode", "must be 0 to 0777, in octal with a leading 0", "0"+strconv.FormatUint(uint64(f.GetMode()), 8))
	}
}

// objectTarget returns the path, in the container, of the file with the value of a secret or config.
func objectTarget(kind string, f *controlv1.ObjectFile) string {
	switch target := strings.TrimSpace(f.GetTarget()); {
	case target == "" && kind == fsm.KindConfig:
		return "/" + strings.TrimSpace(f.GetSource())
	case target == "":
		return secretsFolder + "/" + strings.TrimSpace(f.GetSource())
	case kind == fsm.KindSecret && !path.IsAbs(target):
		return secretsFolder + "/" + target
	default:
		return target
	}
}

// normaliseObjects rewrites the references to secrets and configs in one canonical form.
func normaliseObjects(c *controlv1.ContainerSpec) {
	on, _ := service.ParseOnChange(c.GetOnChange()) // Validate has checked it
	c.OnChange = on.String()
	for _, r := range objectRefs(c) {
		name := strings.TrimSpace(r.name)
		if r.file == nil {
			if r.kind == fsm.KindSecret {
				c.EnvSecrets[r.variable] = name
			} else {
				c.EnvConfigs[r.variable] = name
			}
			continue
		}
		f := r.file
		f.Target, f.Source = path.Clean(objectTarget(r.kind, f)), name
		f.Uid, f.Gid = orElse(strings.TrimLeft(strings.TrimSpace(f.GetUid()), "0"), "0"), orElse(strings.TrimLeft(strings.TrimSpace(f.GetGid()), "0"), "0")
		if f.Mode == nil {
			f.Mode = new(uint32(defaultFileMode))
		}
		switch own := r.onChange(c.OnChange); {
		case own == on:
			f.OnChange = ""
		case own == service.OnChange{}:
			f.OnChange = OnChangeRestart
		default:
			f.OnChange = own.String()
		}
	}
}

// objects adds records for the references to secrets and configs. These fields were added in a later version,
// so they have no record when unset. The versions of the objects are not included, because the state machine
// tracks them.
func (e *encoder) objects(refs []objectRef) {
	for _, r := range refs {
		e.text("object.service", r.service)
		e.text("object.kind", r.kind)
		e.text("object.name", r.name)
		e.text("object.variable", r.variable)
		if f := r.file; f != nil {
			e.text("object.target", f.GetTarget())
			e.text("object.uid", f.GetUid())
			e.text("object.gid", f.GetGid())
			e.number("object.mode", int64(f.GetMode()))
			e.text("object.on_change", f.GetOnChange())
		}
	}
}

// ObjectValue is the value of a secret or a config, in the version that a workload uses.
type ObjectValue struct {
	Data []byte
	// Version is the number of the version that the workload uses; 0 means the newest version at any time.
	Version uint64
}

// AddObjects adds the values of secrets and configs to the specification in an order for an agent. value
// returns the plain value of an object. Its errors and those of AddObjects name the object and never contain
// a value.
func AddObjects(order *agentv1.WorkloadSpec, s *controlv1.WorkloadSpec, value func(kind, name string) (ObjectValue, error)) error {
	size := 0
	for _, r := range refsOf(s) {
		v, err := value(r.kind, r.name)
		if err != nil {
			return err
		}
		data, out := v.Data, order.GetContainer()
		if size += len(data); size > MaxObjectFiles {
			return fmt.Errorf("its secrets and configs have more than %d bytes together", MaxObjectFiles)
		}
		if r.file != nil {
			uid, _ := strconv.ParseUint(orElse(r.file.GetUid(), "0"), 10, 32) // uid and gid were checked at apply
			gid, _ := strconv.ParseUint(orElse(r.file.GetGid(), "0"), 10, 32)
			f := &agentv1.MemoryFile{Target: r.file.GetTarget(), Mode: r.file.GetMode(), Uid: uint32(uid), Gid: uint32(gid), Data: data, Signal: r.onChange(s.GetContainer().GetOnChange()).Signal}
			if c := order.GetCompose(); c != nil {
				f.Service, f.ValueId = r.service, r.kind+"/"+r.name+"/"+strconv.FormatUint(v.Version, 10)
				c.MemoryFiles = append(c.MemoryFiles, f)
			} else {
				out.MemoryFiles = append(out.MemoryFiles, f)
			}
			continue
		}
		text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
		if !isText(text) {
			return fmt.Errorf("%s %s has bytes that an environment variable cannot have: use it as a file", r.kind, r.name)
		}
		if rule := engine.Arg(len(r.variable) + len("=") + len(text)); rule != "" {
			return fmt.Errorf("%s %s as environment variable %s: %s: use it as a file", r.kind, r.name, r.variable, rule)
		}
		if out.Env == nil {
			out.Env = map[string]string{}
		}
		out.Env[r.variable] = text
	}
	return nil
}

// objectFields returns, for the decoder of files, the fields of a container that refer to secrets and configs.
func (d *decoder) objectFields(c *controlv1.ContainerSpec, w string) []field {
	files := func(name string, into *[]*controlv1.ObjectFile) field {
		return field{name, w + "." + name, func(_ string, n *node, at where) {
			d.list(n, at, func(n *node, at where) { *into = append(*into, d.objectFile(n, at)) })
		}}
	}
	return []field{
		files("secrets", &c.Secrets), files("configs", &c.Configs),
		{"env_secrets", w + ".env_secrets", func(_ string, n *node, at where) { c.EnvSecrets = d.pairs(n, at, false) }},
		{"env_configs", w + ".env_configs", func(_ string, n *node, at where) { c.EnvConfigs = d.pairs(n, at, false) }},
		{"on_change", w + ".on_change", func(_ string, n *node, at where) { c.OnChange = d.str(n, at) }},
	}
}

// objectFile reads a secret or config of a container: its name, or a mapping.
func (d *decoder) objectFile(n *node, here where) *controlv1.ObjectFile {
	out, w := &controlv1.ObjectFile{}, here.wire
	if n.kind != mapping {
		out.Source = d.str(n, here)
		d.places[w+".source"] = place{n.line, n.col, here.shown}
		return out
	}
	d.object(n, here, []field{
		{"source", w + ".source", func(_ string, n *node, at where) { out.Source = d.str(n, at) }},
		{"target", w + ".target", func(_ string, n *node, at where) { out.Target = d.str(n, at) }},
		{"uid", w + ".uid", func(_ string, n *node, at where) { out.Uid = d.str(n, at) }},
		{"gid", w + ".gid", func(_ string, n *node, at where) { out.Gid = d.str(n, at) }},
		{"mode", w + ".mode", func(_ string, n *node, at where) { out.Mode = new(d.fileMode(n, at)) }},
		{"on_change", w + ".on_change", func(_ string, n *node, at where) { out.OnChange = d.str(n, at) }},
	})
	return out
}

// fileMode reads permission bits: octal if the text begins with 0, as in Compose, otherwise decimal.
func (d *decoder) fileMode(n *node, here where) uint32 {
	text := strings.TrimSpace(d.str(n, here))
	if n.probe != nil {
		return 0
	}
	base := 10
	if strings.HasPrefix(text, "0") {
		base, text = 8, strings.TrimPrefix(text, "0o")
	}
	v, err := strconv.ParseUint(text, base, 32)
	if err != nil {
		d.fail(n, here, "must be permission bits such as 0440", n.text)
	}
	return uint32(v)
}
