package spec

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

// ErrBlankID is the only fault of an apply that is a gRPC InvalidArgument (contract/wire-control.md, "Outcomes per
// RPC"). All other faults are of type Errors. They are put into the response, with the failure reason INVALID_SPEC.
var ErrBlankID = errors.New("workload_id: must not be empty")

// FieldError is one fault of a specification: a field and the rule that it breaks.
type FieldError struct {
	File         string // name of the file; "" if the request came over the wire
	Line, Column int    // position in File, counted from 1; 0 if unknown
	Field        string // where the author wrote the field, for instance container.ports[0]
	Rule         string // the rule that Field breaks, for instance "must be 1 to 65535"
	Value        string // the value that breaks the rule; empty for secrets and missing fields
	Suggestion   string // for an unknown field or word: the most similar known one

	path string // the field's wire path, to find its line
}

// Error returns one line: position, field, rule, value, suggestion.
func (e FieldError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		b.WriteByte(':')
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", e.Line, e.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if e.Field != "" {
		b.WriteString(e.Field)
		b.WriteString(": ")
	}
	b.WriteString(e.Rule)
	if e.Value != "" {
		fmt.Fprintf(&b, ", got %q", shorten(e.Value))
	}
	if e.Suggestion != "" {
		fmt.Fprintf(&b, ", did you mean %q?", e.Suggestion)
	}
	return b.String()
}

// Errors holds all faults of one or more documents in the order of the text. It is never empty if
// it is returned as an error.
type Errors []FieldError

// Error returns one line per fault.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// maxErrors is the maximum number of faults that are reported.
const maxErrors = 100

func (e *Errors) add(path, rule, value string) {
	if len(*e) < maxErrors {
		*e = append(*e, FieldError{Field: path, path: path, Rule: rule, Value: value})
	}
}

// addf adds a fault like add, with a formatted rule.
func (e *Errors) addf(path, value, rule string, args ...any) {
	e.add(path, fmt.Sprintf(rule, args...), value)
}

func (e Errors) byPlace() {
	sort.SliceStable(e, func(i, j int) bool {
		if e[i].Line != e[j].Line {
			return e[i].Line < e[j].Line
		}
		return e[i].Column < e[j].Column
	})
}

// asError returns nil if there are no faults, so that an empty Errors is a nil error.
func (e Errors) asError() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
