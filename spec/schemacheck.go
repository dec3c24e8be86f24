package spec

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	fault "github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// compiled returns the JSON Schema of specifications in the form that the validator needs. It is compiled at the first
// use.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	text, err := Schema()
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(SchemaID, doc); err != nil {
		return nil, err
	}
	return c.Compile(SchemaID)
})

// bySchema checks a document against the published schema and returns faults with line and column. The
// decoder reports most of these faults with better messages. The schema also finds faults that the decoder
// does not reach after its first fault, such as a word that is not allowed.
func bySchema(root *node) Errors {
	s, err := compiled()
	if err != nil {
		return Errors{{Line: root.line, Column: root.col, Rule: "the schema cannot be compiled:  " + err.Error()}}
	}
	var verr *jsonschema.ValidationError
	if !errors.As(s.Validate(root.value()), &verr) {
		return nil
	}
	var out Errors
	leaves(verr, func(e *jsonschema.ValidationError) {
		if len(out) >= maxErrors {
			return
		}
		switch k := e.ErrorKind.(type) {
		case *fault.AdditionalProperties:
			for _, name := range slices.Sorted(slices.Values(k.Properties)) {
				line, col, shown := root.whereIs(e.InstanceLocation, name)
				out = append(out, FieldError{Line: line, Column: col, Field: shown, Rule: fmt.Sprintf("unknown field %q", shorten(name))})
			}
		default:
			line, col, shown := root.whereIs(e.InstanceLocation, "")
			out = append(out, FieldError{Line: line, Column: col, Field: shown, Rule: ruleOf(e.ErrorKind)})
		}
	})
	return out
}

// leaves calls visit for those errors in the tree e that name what the author did wrong. If a value matches none of
// several alternatives, it visits only the faults of the alternative for this kind of value (such as a list), which
// the author most likely meant.
func leaves(e *jsonschema.ValidationError, visit func(*jsonschema.ValidationError)) {
	if _, ok := e.ErrorKind.(*fault.AnyOf); ok {
		var meant []*jsonschema.ValidationError
		for _, c := range e.Causes {
			if _, ok := c.ErrorKind.(*fault.Type); !ok || len(c.InstanceLocation) > len(e.InstanceLocation) {
				meant = append(meant, c)
			}
		}
		switch {
		case len(meant) == 1:
			leaves(meant[0], visit)
		case len(meant) > 1 && slices.ContainsFunc(meant, isEnum):
			visit(meant[slices.IndexFunc(meant, isEnum)])
		default:
			visit(e)
		}
		return
	}
	if len(e.Causes) == 0 {
		visit(e)
		return
	}
	for _, c := range e.Causes {
		leaves(c, visit)
	}
}

func isEnum(e *jsonschema.ValidationError) bool {
	_, ok := e.ErrorKind.(*fault.Enum)
	return ok
}

// ruleOf describes the violated rule of the schema. The text never contains the value, which may be a secret.
func ruleOf(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *fault.Enum:
		var words []string
		for _, w := range k.Want {
			words = append(words, fmt.Sprint(w))
		}
		return "must be one of " + strings.Join(words, ", ")
	case *fault.Minimum:
		return "must be at least " + k.Want.RatString()
	case *fault.Maximum:
		return "must be at most " + k.Want.RatString()
	case *fault.Pattern:
		return "must match " + k.Want
	case *fault.Type:
		return "must be " + strings.Join(k.Want, " or ")
	}
	return "is not valid here"
}
