package spec

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	controlv1 "github.com/persys/compute/api/control/v1"
)

// Document is one document of a file, with the positions of its fields.
type Document struct {
	Request *controlv1.ApplyWorkloadRequest

	file   string
	places map[string]place // positions of the fields, by wire path
	stack  stackPlace
}

// stackPlace is the position of a Compose file's text.
type stackPlace struct {
	text  string
	file  string // the file named by compose.file; "" = the text is in the document itself
	lines int    // number of lines of the file before the text; -1 if the lines of the text are not lines of a file
}

var (
	// fieldPattern matches a line of an error that begins with a field, or with the name of a workload and a
	// field.
	fieldPattern = regexp.MustCompile(`^(?:workload \S+: )?((?:[A-Za-z_][\w-]*)(?:\.[\w./-]+|\[\d+\])*): (.*)$`)
	// stackPattern matches an error about the text of a Compose file: the file, if it is not the main one,
	// and the line.
	stackPattern = regexp.MustCompile(`^(?:([^:\s]+):|line )(\d+): (.*)$`)
	// entryPattern matches a field in an entry of a container's list, and violationPattern the text of a
	// policy.Violation after its field.
	entryPattern     = regexp.MustCompile(`^container\.(\w+)\[\d+\](.*)$`)
	violationPattern = regexp.MustCompile(`^("(?:[^"\\]|\\.)*") is not allowed .*\(rule \w+\)`)
)

// Locate adds file, line and column to each line of an error text that begins with a field of the document,
// and names the field as the author wrote it. Other lines stay unchanged.
func (d *Document) Locate(refusal string) string {
	lines := strings.Split(refusal, "\n")
	for i, line := range lines {
		m := fieldPattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if e, ok := d.locate(d.authored(m[1], m[2]), m[2]); ok {
			lines[i] = e.Error()
		}
	}
	return strings.Join(lines, "\n")
}

// authored returns the field of the document that violates a policy. field and rule are the two parts of a line of
// the refusal. Policies judge the normalised specification, whose lists are sorted, so the index in field may not be
// that in the document. authored looks for the entry that asks for the value in the refusal. If the line is about
// another fault, or no entry asks for the value, it returns field.
func (d *Document) authored(field, rule string) string {
	entry, violation := entryPattern.FindStringSubmatch(field), violationPattern.FindStringSubmatch(rule)
	c := d.Request.GetSpec().GetContainer()
	if entry == nil || violation == nil || c == nil {
		return field
	}
	list := c.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(entry[1]))
	value, err := strconv.Unquote(violation[1])
	if err != nil || list == nil || !list.IsList() {
		return field
	}
	for i := range c.ProtoReflect().Get(list).List().Len() {
		s := d.Request.GetSpec().CloneVT()
		entries := s.GetContainer().ProtoReflect().Mutable(list).List()
		only := entries.Get(i)
		entries.Truncate(0)
		entries.Append(only)
		Normalise(s)
		for _, a := range asksOf(d.Request.GetWorkloadId(), s) {
			if strings.HasPrefix(a.Field, "container."+entry[1]+"[0]") && a.Shows(value) {
				return "container." + entry[1] + "[" + strconv.Itoa(i) + "]" + entry[2]
			}
		}
	}
	return field
}

func (d *Document) locate(field, rule string) (FieldError, bool) {
	e := FieldError{File: d.file, Field: field, Rule: rule}
	if field == "services" || strings.HasPrefix(field, "services.") || strings.HasPrefix(field, "networks.") || strings.HasPrefix(field, "volumes.") {
		return d.inStack(e, lineIn(d.stack.text, field))
	}
	wire := "spec." + strings.TrimPrefix(field, "spec.")
	if field == "workload_id" || field == "desired_state" || field == "revision_id" {
		wire = field
	}
	p, exact := d.placed(wire)
	if m := stackPattern.FindStringSubmatch(rule); m != nil && wire == "spec.compose.inline_yaml" {
		n, _ := strconv.Atoi(m[2]) // ignore an error: without a line number, n is 0, and the position is that of the field
		e.Field, e.Rule = "", m[3]
		if m[1] == "" {
			return d.inStack(e, n)
		}
		e.File, e.Line, e.Column = filepath.Join(filepath.Dir(d.file), filepath.Dir(d.stack.file), m[1]), n, 1
		return e, true
	}
	if p.line == 0 {
		return e, false
	}
	e.Line, e.Column, e.Field = p.line, p.col, strings.TrimPrefix(field, "spec.")
	if exact {
		e.Field = p.shown
	}
	return e, true
}

// inStack sets the position of an error to a line of the Compose file, which may be a part of the document or another
// file.
func (d *Document) inStack(e FieldError, line int) (FieldError, bool) {
	switch {
	case line == 0 || d.stack.text == "":
		return e, false
	case d.stack.file != "":
		e.File = filepath.Join(filepath.Dir(d.file), d.stack.file)
	case d.stack.lines < 0:
		p, _ := d.placed("spec.compose.inline_yaml")
		e.Line, e.Column, e.Rule = p.line, p.col, "line "+strconv.Itoa(line)+" of the text: "+e.Rule
		return e, p.line > 0
	}
	e.Line, e.Column = d.stack.lines+line, 1
	return e, true
}

// placed returns the position of a field, or of the nearest field around it. exact is true for the field
// itself.
func (d *Document) placed(wire string) (p place, exact bool) {
	if p, exact = d.places[wire]; exact {
		return p, p.shown != ""
	}
	return (&decoder{places: d.places}).place(wire), false
}

// lineIn returns the line of a field such as services.web.ports[0] in a YAML text, or of the nearest value
// around it; 0 if there is none.
func lineIn(text, field string) int {
	n, err := chunk{text: text}.tree()
	if err != nil {
		return 0
	}
	line := 0
	for _, key := range strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		var next *node
		switch n.kind {
		case mapping:
			for _, e := range n.own() {
				if e.key == key {
					line, next = e.line, e.value
				}
			}
		case sequence:
			if i, err := strconv.Atoi(key); err == nil && i < len(n.items) {
				next = n.items[i]
				line = next.line
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return line
}
