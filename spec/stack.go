package spec

import (
	"strings"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec/composefile"
)

// isComposeFile reports whether a document is a Compose file: it has services and none of the
// fields of a specification.
func isComposeFile(root *node) bool {
	if root.kind != mapping {
		return false
	}
	services := false
	for _, e := range root.own() {
		switch snake(e.key) {
		case "services":
			services = true
		case "id", "workload_id", "container", "compose", "vm", "spec":
			return false
		}
	}
	return services
}

// stack makes a workload from a plain Compose file.
func (d *decoder) stack(root *node, text chunk) *controlv1.ApplyWorkloadRequest {
	d.places[""] = place{line: root.line, col: root.col}
	own := &node{line: root.line, col: root.col}
	for _, e := range root.own() {
		if e.key == "name" && e.value.kind == scalar {
			own = e.value
		}
	}
	name := d.options.Name
	switch {
	case name != "":
	case own.text != "":
		name = own.text
		d.places["workload_id"] = place{own.line, own.col, "name"}
	default:
		name = folderName(d.options.DefaultName)
	}
	if name == "" {
		d.fail(own, where{"workload_id", "name"}, "a Compose file needs a name for its stack: the key `name`, or --name NAME", "")
	}
	c := &controlv1.ComposeSpec{InlineYaml: text.text}
	if d.options.Env != nil {
		env, err := d.options.Env()
		if err != nil {
			d.fail(root, where{"spec.compose.env", ".env"}, err.Error(), "")
		}
		c.Env = env
	}
	d.refusedKeys(text)
	return &controlv1.ApplyWorkloadRequest{
		WorkloadId: name,
		Spec:       &controlv1.WorkloadSpec{Type: TypeCompose, Workload: &controlv1.WorkloadSpec_Compose{Compose: c}},
	}
}

// refusedKeys reports the keys that nodes refuse, so that the apply fails at once.
func (d *decoder) refusedKeys(text chunk) {
	keys, err := composefile.Keys(text.text)
	if err != nil {
		return // Validate reports the fault
	}
	for _, k := range keys {
		if k.Verdict == composefile.Refused {
			d.fail(&node{line: text.line + k.Line, col: 1}, where{"spec.compose.inline_yaml", k.Path}, "is refused by nodes: "+k.Note, "")
		}
	}
}

// folderName converts the name of a folder to a project name, as Compose does: lower case, without
// invalid characters.
func folderName(folder string) string {
	folder = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return -1
	}, strings.ToLower(folder))
	folder = strings.TrimLeft(folder, "-_")
	if len(folder) > 128 {
		return ""
	}
	return folder
}
