package translate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// source is a JSON object of the input. It records which of its fields the translation has read.
type source struct {
	path   string // path of the object in the input; "" for the root
	fields map[string]any
	read   map[string]bool
	inner  []*source
}

// parse reads a JSON object.
func parse(data []byte) (*source, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var fields map[string]any
	if err := d.Decode(&fields); err != nil {
		return nil, err
	}
	return newSource("", fields), nil
}

func newSource(path string, fields map[string]any) *source {
	return &source{path: path, fields: fields, read: map[string]bool{}}
}

func (s *source) at(key string) string {
	if s.path == "" {
		return key
	}
	return s.path + "." + key
}

func (s *source) value(key string) any {
	s.read[key] = true
	return s.fields[key]
}

// skip marks fields as read that have no effect on a workload, so that no note is made about them.
func (s *source) skip(keys ...string) {
	for _, k := range keys {
		s.read[k] = true
	}
}

// text returns a field as text; "" if the field is missing.
func (s *source) text(key string) string { return textOf(s.value(key)) }

func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	}
	return fmt.Sprint(v)
}

// number returns a field as a whole number; 0 if the field is missing or is not a number.
func (s *source) number(key string) int64 {
	n, err := json.Number(s.text(key)).Int64()
	if err != nil {
		f, _ := json.Number(s.text(key)).Float64()
		n = int64(f)
	}
	return n
}

func (s *source) truth(key string) bool { return s.text(key) == "true" }

// flag returns a boolean field; nil if the field is missing.
func (s *source) flag(key string) *bool {
	v, ok := s.value(key).(bool)
	if !ok {
		return nil
	}
	return &v
}

// has reports whether a field has a value other than the zero value of its type. It does not mark the field as read.
func (s *source) has(key string) bool { return !zero(s.fields[key]) }

// texts returns a list of texts. A field with a single text gives a list with one element.
func (s *source) texts(key string) (out []string) {
	switch v := s.value(key).(type) {
	case nil:
	case []any:
		for _, x := range v {
			out = append(out, textOf(x))
		}
	default:
		out = append(out, textOf(v))
	}
	return out
}

// pairs returns the fields of an object as texts. The value may also be a list of objects, as HCL writes
// blocks that may be repeated; then their fields are merged.
func (s *source) pairs(key string) map[string]string {
	out := map[string]string{}
	add := func(v any) {
		m, _ := v.(map[string]any)
		for k, x := range m {
			out[k] = textOf(x)
		}
	}
	switch v := s.value(key).(type) {
	case []any:
		for _, x := range v {
			add(x)
		}
	default:
		add(v)
	}
	return out
}

// object returns a field that is an object. It returns an empty object if the field is missing, and the
// first object if the field is a list.
func (s *source) object(key string) *source {
	if list := s.objects(key); len(list) > 0 {
		return list[0]
	}
	return newSource(s.at(key), nil)
}

// objects returns a list of objects. A field with a single object gives a list with one element.
func (s *source) objects(key string) (out []*source) {
	add := func(path string, v any) {
		if m, ok := v.(map[string]any); ok {
			o := newSource(path, m)
			s.inner = append(s.inner, o)
			out = append(out, o)
		}
	}
	switch v := s.value(key).(type) {
	case []any:
		for i, x := range v {
			add(fmt.Sprintf("%s[%d]", s.at(key), i), x)
		}
	default:
		add(s.at(key), v)
	}
	return out
}

// named returns a field that maps names to objects: the sorted names, and the object of each name.
func (s *source) named(key string) (names []string, by map[string]*source) {
	by = map[string]*source{}
	m, _ := s.value(key).(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if fields, ok := m[name].(map[string]any); ok {
			o := newSource(s.at(key)+"."+name, fields)
			s.inner = append(s.inner, o)
			names, by[name] = append(names, name), o
		}
	}
	return names, by
}

// seconds returns a field with a duration in nanoseconds as text such as 1m30s, rounded up to whole
// seconds; "" for 0.
func (s *source) seconds(key string) string {
	d := time.Duration(s.number(key))
	if d <= 0 {
		return ""
	}
	return ((d + time.Second - 1) / time.Second * time.Second).String()
}

// unread returns a note for each field with a value that the translation has not read, in this object and
// in the objects that were read from it.
func (s *source) unread() (out []Note) {
	for _, key := range slices.Sorted(maps.Keys(s.fields)) {
		if v := s.fields[key]; !s.read[key] && !zero(v) {
			text, _ := json.Marshal(v)
			out = append(out, Note{Field: s.at(key), Text: "has no equivalent: " + clip(string(text))})
		}
	}
	for _, o := range s.inner {
		out = append(out, o.unread()...)
	}
	return out
}

// done marks all fields as read, in this object and in the objects that were read from it.
func (s *source) done() {
	for key := range s.fields {
		s.read[key] = true
	}
	s.inner = nil
}

// clip shortens a value for a message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func zero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case json.Number:
		return v == "0"
	case []any:
		return !slices.ContainsFunc(v, func(x any) bool { return !zero(x) })
	case map[string]any:
		for _, x := range v {
			if !zero(x) {
				return false
			}
		}
		return true
	}
	return false
}
