package restconn

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	"github.com/persys/compute/api/rest"
)

// route describes how the HTTP request for one gRPC method is built.
type route struct {
	method, path string // {name} in the path is a field of the message
	body         bool
}

// routes reads the rules in rest.yaml. The keys are the full names of gRPC methods.
func routes() (map[string]route, error) {
	var doc struct {
		HTTP struct {
			Rules []struct {
				Selector               string
				Get, Post, Put, Delete string
				Body                   string
			}
		}
	}
	if err := yaml.Unmarshal(rest.Rules, &doc); err != nil {
		return nil, fmt.Errorf("api/rest/rest.yaml: %w", err)
	}
	out := make(map[string]route, len(doc.HTTP.Rules))
	for _, r := range doc.HTTP.Rules {
		to := route{body: r.Body == "*"}
		for _, m := range []struct{ method, path string }{{http.MethodGet, r.Get}, {http.MethodPost, r.Post}, {http.MethodPut, r.Put}, {http.MethodDelete, r.Delete}} {
			if m.path != "" {
				to.method, to.path = m.method, m.path
			}
		}
		cut := strings.LastIndexByte(r.Selector, '.')
		if to.path == "" || cut < 0 || r.Body != "" && !to.body {
			return nil, fmt.Errorf("api/rest/rest.yaml: %s: rules of this form are not supported", r.Selector)
		}
		out["/"+r.Selector[:cut]+"/"+r.Selector[cut+1:]] = to
	}
	return out, nil
}

// request returns the path with its query, and the body, of the HTTP request for a message.
func (r route) request(m proto.Message) (path string, body []byte, err error) {
	used := map[string]bool{}
	var b strings.Builder
	rest := r.path
	for {
		before, after, ok := strings.Cut(rest, "{")
		b.WriteString(before)
		if !ok {
			break
		}
		name, tail, _ := strings.Cut(after, "}")
		fd := m.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			return "", nil, fmt.Errorf("%s has no field %s", m.ProtoReflect().Descriptor().Name(), name)
		}
		value := scalar(fd, m.ProtoReflect().Get(fd))
		if value == "" {
			return "", nil, fmt.Errorf("%s must not be empty", name)
		}
		b.WriteString(url.PathEscape(value))
		used[name] = true
		rest = tail
	}
	if r.body {
		body, err = protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		return b.String(), body, err
	}
	q := url.Values{}
	query(q, "", m.ProtoReflect(), used)
	if len(q) > 0 {
		b.WriteString("?" + q.Encode())
	}
	return b.String(), nil, nil
}

// query adds the set fields of m to the query q, except fields in used, which the path or body already has.
// The generated handlers parse this form.
func query(q url.Values, prefix string, m protoreflect.Message, used map[string]bool) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := prefix + string(fd.Name())
		switch {
		case prefix == "" && used[name]:
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				q.Add(name+"["+k.String()+"]", scalar(fd.MapValue(), v))
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				q.Add(name, scalar(fd, v.List().Get(i)))
			}
		case fd.Kind() == protoreflect.MessageKind:
			query(q, name+".", v.Message(), nil)
		default:
			q.Add(name, scalar(fd, v))
		}
		return true
	})
}

func scalar(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			return string(e.Name())
		}
		return strconv.Itoa(int(v.Enum()))
	case protoreflect.BoolKind:
		return strconv.FormatBool(v.Bool())
	}
	return v.String()
}
