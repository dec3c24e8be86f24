package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	agentv1 "github.com/persys/compute/api/agent/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm/bounds"
)

// localData returns the data that a workload keeps on its node and that no other node can reach, sorted by name. If
// the specification does not show where the data is, the data is treated as local, because that mistake is the smaller
// one: a workload that is kept on its node without need can be moved by a user, but a workload that is moved by
// mistake starts without its data.
//
// Bind mounts of absolute paths are not local data in this sense. They belong to the machine, and nothing deletes
// them.
//
// The text of a Compose file does not show the volumes of services in other files; SetStackData adds them from the
// loaded project.
func localData(s *controlv1.WorkloadSpec) []*commandv1.LocalData {
	if c := s.GetCompose(); s.GetType() == TypeCompose && !isGit(c) {
		seen, unread := composeData(c)
		if unread {
			seen = append(seen, "volumes of the services that the stack takes from other files (include, extends)")
		}
		return dataWith(s, seen)
	}
	return dataWith(s, nil)
}

// SetStackData sets, in the demand of an inline Compose stack (the part that the planner reads), the data that the
// stack keeps on its node. data lists the volumes and folders of the loaded project, such as "volume db". It returns
// an error if the update policy does not allow local data.
func SetStackData(d *commandv1.Demand, s *controlv1.WorkloadSpec, data []string) error {
	d.LocalData = dataWith(s, data)
	var faults Errors
	if len(d.LocalData) > 0 && startsFirst(s.GetUpdate()) {
		faults.dataStartsFirst(s.GetUpdate())
	}
	return faults.asError()
}

// dataWith returns the local data of a workload. stack has the data of an inline Compose stack, without its managed
// volumes.
func dataWith(s *controlv1.WorkloadSpec, stack []string) []*commandv1.LocalData {
	var out []*commandv1.LocalData
	add := func(pool, kind, name string) {
		out = append(out, &commandv1.LocalData{Name: clipData(strings.TrimSpace(kind + " " + name)), Pool: pool})
	}
	managed := func(volumes []*agentv1.ManagedVolumeSpec) {
		for _, v := range volumes {
			if driverOf(v.GetDriver()) == "local" {
				add("", "volume", strings.TrimSpace(v.GetName()))
			}
		}
	}
	switch s.GetType() {
	case TypeContainer:
		managed(fromControlVolumes(s.GetContainer().GetManagedVolumes()))
	case TypeCompose:
		c := s.GetCompose()
		managed(fromControlVolumes(c.GetManagedVolumes()))
		if isGit(c) {
			add("", "volumes of", "the stack, which only its Git repository lists")
			break
		}
		for _, v := range stack {
			add("", "", v)
		}
	case TypeVM:
		v, _ := vmOf(s)
		managed(v.GetManagedVolumes())
		for _, d := range v.GetDisks() {
			if d.GetType() != "cdrom" && !sharedPath(d.GetPath()) {
				add(d.GetPool(), "disk", d.GetDevice())
			}
		}
	}
	slices.SortFunc(out, func(a, b *commandv1.LocalData) int {
		return strings.Compare(a.Name+"\x00"+a.Pool, b.Name+"\x00"+b.Pool)
	})
	out = slices.CompactFunc(out, func(a, b *commandv1.LocalData) bool { return a.Name == b.Name && a.Pool == b.Pool })
	if more := len(out) - bounds.MaxLocalData; more > 0 {
		out = append(out[:bounds.MaxLocalData-1], &commandv1.LocalData{Name: fmt.Sprintf("%d more volumes", more+1)})
	}
	return out
}

// clipData shortens the name of a disk, volume or folder to the length that a command of the Raft log may have.
func clipData(name string) string {
	if len(name) <= bounds.MaxDataName {
		return name
	}
	end := bounds.MaxDataName - len("…")
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end] + "…"
}

// sharedPath reports whether the path of a VM's disk is a URL of network storage, which other nodes can reach too.
func sharedPath(p string) bool {
	return p != "" && !path.IsAbs(p)
}

// composeData returns the data that the services in the text of an inline Compose file keep: volumes of the engine and
// folders beside the file. It skips volumes that managed_volumes names, and volumes on a file server. unread is true if
// there may be more data, because the stack has services from other files, or services that extend others.
func composeData(c *controlv1.ComposeSpec) (out []string, unread bool) {
	skip := map[string]bool{}
	// Files that came with the request are mounted as copies. Every node can make such a copy, so these files
	// are not local data.
	copied := func(source string) bool {
		at := path.Clean(source)
		return slices.ContainsFunc(c.GetFiles(), func(f *controlv1.StackFile) bool {
			return at == "." || f.GetPath() == at || strings.HasPrefix(f.GetPath(), at+"/")
		})
	}
	for _, v := range c.GetManagedVolumes() {
		skip[strings.TrimSpace(v.GetName())] = true
	}
	text := chunk{text: c.GetInlineYaml()}
	root, err := text.tree()
	if err != nil {
		return nil, false // Validate reports a text that is not a Compose file
	}
	for _, e := range root.at("volumes").entriesOf() {
		if OnFileServer(textOf(e.value.at("driver_opts", "type"))) || skip[textOf(e.value.at("name"))] {
			skip[e.key] = true
		}
	}
	unread = root.at("include") != nil
	for _, service := range enabledServices(c) {
		unread = unread || service.at("extends") != nil
		for _, m := range service.at("volumes").itemsOf() {
			source, readOnly, isBind := composeMount(m)
			switch {
			case isBind && (readOnly || path.IsAbs(source) || strings.HasPrefix(source, "~")):
			case isBind && copied(source):
			case isBind:
				out = append(out, "folder "+source)
			case source == "":
				out = append(out, "unnamed volume at "+textOr(m.at("target"), m.text))
			case source != notStored && !skip[source]:
				out = append(out, "volume "+source)
			}
		}
	}
	return out, unread
}

// OnFileServer reports whether a volume whose driver option type has this value is on a file server, so that other
// nodes can reach it too.
func OnFileServer(kind string) bool {
	kind = strings.ToLower(kind)
	return strings.HasPrefix(kind, "nfs") || kind == "cifs"
}

// notStored is the source of a mount that stores nothing, such as a tmpfs.
const notStored = "\x00"

// composeMount returns the source and kind of a mount of a service. If a mount has no source, it is an
// unnamed volume.
func composeMount(m *node) (source string, readOnly, isBind bool) {
	if m.kind == mapping {
		source = textOf(m.at("source"))
		if source == "" {
			source = textOf(m.at("src"))
		}
		readOnly = textOf(m.at("read_only")) == "true"
		switch textOf(m.at("type")) {
		case "bind":
			return source, readOnly, true
		case "", "volume":
			return source, readOnly, false
		}
		return notStored, readOnly, false
	}
	source, rest, named := strings.Cut(m.text, ":")
	if !named {
		return "", false, false
	}
	if strings.HasPrefix(source, "${") { // skip variables such as "${NAME:-default}", which contain a colon
		if end := strings.IndexByte(m.text, '}'); end > 0 {
			source, rest, _ = strings.Cut(m.text[end+1:], ":")
			source = m.text[:end+1] + source
		}
	}
	for option := range strings.SplitSeq(rest[strings.LastIndexByte(rest, ':')+1:], ",") {
		readOnly = readOnly || option == "ro"
	}
	return source, readOnly, strings.HasPrefix(source, ".") || path.IsAbs(source) || strings.HasPrefix(source, "~")
}

func textOr(n *node, otherwise string) string { return orElse(textOf(n), otherwise) }

// entriesOf returns the entries of a mapping, itemsOf the items of a list. For other kinds of nodes they
// return none.
func (n *node) entriesOf() []entry {
	if n == nil || n.kind != mapping {
		return nil
	}
	return n.own()
}

func (n *node) itemsOf() []*node {
	if n == nil {
		return nil
	}
	return n.items
}
