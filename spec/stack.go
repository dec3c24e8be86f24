package spec

import (
	"cmp"
	"errors"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/spec/composefile"
)

// isComposeFile reports whether a document is a plain Compose file: it has `services` and none of the fields
// of a specification.
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

// stack returns the request for a workload whose document is a plain Compose file.
func (d *decoder) stack(root *node, text chunk) *controlv1.ApplyWorkloadRequest {
	d.places[""] = place{line: root.line, col: root.col}
	own := &node{line: root.line, col: root.col}
	for _, e := range root.own() {
		if e.key == "name" && e.value.kind == scalar {
			own = e.value
		}
	}
	d.refusedKeys(text)
	c := &controlv1.ComposeSpec{InlineYaml: text.text}
	name, files := cmp.Or(d.options.Name, own.text), []byte(nil)
	if d.options.Stack != nil {
		if len(d.errs) > 0 {
			return nil
		}
		s, err := d.options.Stack(StackText{Text: text.text, Name: d.options.Name})
		if err != nil {
			d.stackFaults(err, text.line)
			return nil
		}
		name, c.Env, c.MainFile, files = s.Name, s.Env, s.MainFile, s.Files
	}
	if d.options.Name == "" && own.text != "" {
		d.places["workload_id"] = place{own.line, own.col, "name"}
	}
	if name == "" {
		d.fail(own, where{"workload_id", "name"}, "a Compose file needs a name for its stack: the key `name`, or --name NAME", "")
	}
	return &controlv1.ApplyWorkloadRequest{
		WorkloadId: name, Files: files,
		Spec: &controlv1.WorkloadSpec{Type: TypeCompose, Workload: &controlv1.WorkloadSpec_Compose{Compose: c}},
	}
}

// fileStack loads the Compose file in the field compose.file of a specification, on the machine of its
// author.
func (d *decoder) fileStack(req *controlv1.ApplyWorkloadRequest) {
	c := req.GetSpec().GetCompose()
	if d.beside == "" || d.options.Stack == nil || len(d.errs) > 0 || c.GetInlineYaml() == "" {
		return
	}
	env := c.GetEnv()
	if env == nil {
		env = map[string]string{}
	}
	s, err := d.options.Stack(StackText{File: d.beside, Text: c.GetInlineYaml(), Name: req.GetWorkloadId(), Env: env, Job: IsJob(req.GetSpec())})
	if err != nil {
		d.stackFaults(err, 0)
		return
	}
	c.MainFile, req.Files = s.MainFile, s.Files
}

// stackFaults adds the faults that were found in a Compose file. If a fault names no file, it is in the text of the
// document, which begins after the first lines of the file, whose number is in the parameter lines.
func (d *decoder) stackFaults(err error, lines int) {
	var faults Errors
	if !errors.As(err, &faults) {
		d.fail(&node{line: lines + 1, col: 1}, where{"spec.compose", ""}, err.Error(), "")
		return
	}
	for _, f := range faults {
		if f.File == "" && f.Line > 0 {
			f.Line += lines
		}
		if len(d.errs) < maxErrors {
			d.errs = append(d.errs, f)
		}
	}
}

// refusedKeys reports the keys of a Compose file that nodes refuse, so that the apply fails at once.
func (d *decoder) refusedKeys(text chunk) {
	keys, err := composefile.Keys(text.text)
	if err != nil {
		return // Validate reports a text that is not a Compose file
	}
	for _, k := range keys {
		if k.Verdict == composefile.Refused {
			d.fail(&node{line: text.line + k.Line, col: 1}, where{"spec.compose.inline_yaml", k.Path}, "is refused by nodes: "+k.Note, "")
		}
	}
}
