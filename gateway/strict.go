package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/api/rest"
)

// maxNesting is the largest depth of nested values in a body. The API's messages need less than 20.
const maxNesting = 100

// decode reads a body as one JSON message. The body must be UTF-8, must not contain a field twice or half of a
// surrogate pair, and must end after the message. Field names may be in snake_case or in camelCase. The routes of the
// legacy contract ignore unknown fields; /v1 refuses them.
func decode(data []byte, m proto.Message, ignoreUnknown bool) error {
	if err := oneValue(data); err != nil {
		return err
	}
	err := protojson.UnmarshalOptions{DiscardUnknown: ignoreUnknown, RecursionLimit: maxNesting}.Unmarshal(data, m)
	if err == nil {
		return nil
	}
	// Remove the random space that the protobuf library inserts into its errors so that programs do not compare them.
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	if strings.Contains(text, "exceeded max recursion depth") {
		text = fmt.Sprintf("the values are nested deeper than %d", maxNesting)
	}
	return errors.New(text)
}

// oneValue checks that the data is exactly one JSON value. Otherwise it returns an error with the position of the
// fault.
func oneValue(data []byte) error {
	switch {
	case !utf8.Valid(data):
		return errors.New("the text is not UTF-8")
	case bytes.HasPrefix(data, []byte("\ufeff")):
		return errors.New("the text begins with a byte order mark; send UTF-8 without it")
	}
	in := json.NewDecoder(bytes.NewReader(data))
	var value json.RawMessage
	err := in.Decode(&value)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s: %w", lineOf(data, syntax.Offset-1), syntax)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON value ends in the middle")
	case err != nil:
		return err
	}
	if at := halfSurrogate(value); at >= 0 {
		at += int64(len(data) - len(bytes.TrimLeft(data, " \t\r\n")))
		return fmt.Errorf("%s: %s is half of a surrogate pair, which stands for no character", lineOf(data, at), data[at:at+6])
	}
	rest := bytes.TrimLeft(data[in.InputOffset():], " \t\r\n")
	if len(rest) > 0 {
		return fmt.Errorf("%s: there is more behind the JSON value; send one value", lineOf(data, int64(len(data)-len(rest))))
	}
	return nil
}

// halfSurrogate returns the position of an escape in valid JSON that is half of a UTF-16 surrogate pair; -1
// if there is none.
func halfSurrogate(data []byte) int64 {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		if i++; data[i] != 'u' {
			continue
		}
		switch first := escaped(data[i-1:]); {
		case utf16.DecodeRune(first, escaped(data[i+5:])) != unicode.ReplacementChar:
			i += 10
		case utf16.IsSurrogate(first):
			return int64(i - 1)
		}
	}
	return -1
}

// escaped returns the character that a JSON escape (backslash, u, four hex digits) at the beginning of a text stands for,
// or -1 if the text does not begin with one.
func escaped(data []byte) rune {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(data[2:6]), 16, 32)
	if err != nil {
		return -1
	}
	return rune(v)
}

// lineOf names a position in a text.
func lineOf(data []byte, offset int64) string {
	before := data[:max(0, min(offset, int64(len(data))))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Sprintf("line %d:%d", line, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])+1)
}

// readBody reads the whole JSON body of a request. If that fails, it writes the error to w and returns false.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	if fault := formatFault(r.Header); fault != "" {
		refuse(w, http.StatusUnsupportedMediaType, fault)
		return nil, false
	}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		return data, true
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is over %d bytes", large.Limit))
	} else {
		refuse(w, http.StatusBadRequest, "the body could not be read: "+err.Error())
	}
	return nil, false
}

// formatFault returns an error text if the headers Content-Type and Content-Encoding say that the body is not plain
// JSON in UTF-8; otherwise "". Without the header Content-Type the body is treated as JSON.
func formatFault(h http.Header) string {
	if given := h.Get("Content-Encoding"); given != "" && !strings.EqualFold(given, "identity") {
		return fmt.Sprintf("Content-Encoding %q is not supported; send the body as it is", given)
	}
	given := h.Get("Content-Type")
	if given == "" {
		return ""
	}
	kind, more, err := mime.ParseMediaType(given)
	switch charset := more["charset"]; {
	case err != nil, kind != "application/json":
		return fmt.Sprintf("Content-Type %q must be application/json", given)
	case charset != "" && !strings.EqualFold(charset, "utf-8"):
		return fmt.Sprintf("Content-Type %q: JSON must be in UTF-8", given)
	}
	return ""
}

// repeatedHeader returns the name of a header that occurs more than once although only its first value would be used;
// "" if there is none.
func repeatedHeader(h http.Header) string {
	for _, name := range []string{"Authorization", "Content-Encoding", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Persys-Cluster-ID", "X-Persys-Session", "X-Persys-Workload-Key"} {
		if len(h.Values(name)) > 1 {
			return name
		}
	}
	return ""
}

// parameters returns the query parameters of a request. If one of the names is given twice, it writes an
// error and returns false.
func parameters(w http.ResponseWriter, r *http.Request, names ...string) (url.Values, bool) {
	q := r.URL.Query()
	for _, name := range names {
		if len(q[name]) > 1 {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("parameter %q is given twice; give it once", name))
			return nil, false
		}
	}
	return q, true
}

// methodsOf returns the methods that a mux has for the path of a request, apart from the pattern "/".
func methodsOf(mux *http.ServeMux, r *http.Request) []string {
	var out []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost, http.MethodPut} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
			out = append(out, method)
		}
	}
	return out
}

// restRoute is a path of /v1 and its methods.
type restRoute struct {
	segments []string        // segments of the path; {name} matches any segment and sets that field of the message
	methods  map[string]bool // HTTP methods; the value is true if the fields are in the body, not in the query
	// conditional holds the HTTP methods of this route whose calls have no body but accept the header If-Match.
	conditional map[string]bool
}

type restRoutesOf []restRoute

// restRoutes reads the routes of /v1 from the OpenAPI document.
func restRoutes() (restRoutesOf, error) {
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				In   string `json:"in"`
				Name string `json:"name"`
			} `json:"parameters"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(rest.OpenAPI, &doc); err != nil {
		return nil, fmt.Errorf("api/rest/openapi.json: %w", err)
	}
	var out restRoutesOf
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		one := restRoute{strings.Split(path, "/"), map[string]bool{}, map[string]bool{}}
		for method, call := range doc.Paths[path] {
			body := false
			for _, p := range call.Parameters {
				body = body || p.In == "body"
				if p.In == "query" && p.Name == conditionField {
					one.conditional[strings.ToUpper(method)] = true
				}
			}
			one.methods[strings.ToUpper(method)] = body
		}
		out = append(out, one)
	}
	return out, nil
}

// match compares a path with the segments of the route. It returns the message fields that the path sets.
func (o restRoute) match(path []string) (fields map[string]string, ok bool) {
	if len(path) != len(o.segments) {
		return nil, false
	}
	for i, s := range o.segments {
		switch {
		case strings.HasPrefix(s, "{"):
			if fields == nil {
				fields = map[string]string{}
			}
			fields[strings.Trim(s, "{}")] = path[i]
		case s != path[i]:
			return nil, false
		}
	}
	return fields, true
}

// admit checks that a request has its fields in the places that the call requires. If not, it writes the
// error and returns false.
func (o restRoutesOf) admit(w http.ResponseWriter, r *http.Request) bool {
	revision, ok := condition(w, r)
	if !ok {
		return false
	}
	path := strings.Split(r.URL.Path, "/")
	var allow []string
	for _, route := range o {
		fields, ok := route.match(path)
		if !ok {
			continue
		}
		inBody, ok := route.methods[r.Method]
		switch {
		case !ok:
			allow = append(allow, slices.Collect(maps.Keys(route.methods))...)
		case inBody:
			return takeBody(w, r, fields, revision)
		case revision == "":
			return takeNoBody(w, r)
		case !route.conditional[r.Method]:
			refuse(w, http.StatusBadRequest, noCondition(r))
			return false
		default:
			q := r.URL.Query()
			if has := q.Get(conditionField); has != "" && has != revision {
				refuse(w, http.StatusBadRequest, fmt.Sprintf("parameter %q is %q, but the header If-Match or If-None-Match has %q", conditionField, has, revision))
				return false
			}
			q.Set(conditionField, revision)
			r.URL.RawQuery = q.Encode()
			return takeNoBody(w, r)
		}
	}
	if len(allow) > 0 {
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(slices.Compact(allow), ", "))
	}
	return true // the mux writes the error
}

// conditionField is the field of a gRPC call to which the gateway translates If-Match and If-None-Match.
const conditionField = "if_revision"

func noCondition(r *http.Request) string {
	return fmt.Sprintf("%s %s takes no condition; leave If-Match and If-None-Match out", r.Method, r.URL.Path)
}

func takeBody(w http.ResponseWriter, r *http.Request, fields map[string]string, revision string) bool {
	for _, name := range slices.Sorted(maps.Keys(r.URL.Query())) {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("parameter %q: %s %s takes its fields in the body", name, r.Method, r.URL.Path))
		return false
	}
	data, ok := readBody(w, r)
	if ok {
		r.Body = &content{bytes.NewReader(data), data, fields, revision, noCondition(r)}
	}
	return ok
}

func takeNoBody(w http.ResponseWriter, r *http.Request) bool {
	data, err := io.ReadAll(io.LimitReader(r.Body, 64))
	if text := string(bytes.TrimSpace(data)); err == nil && text != "" && text != "{}" {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("%s %s takes no body; give its fields as parameters, see /docs", r.Method, r.URL.Path))
		return false
	}
	r.Body = http.NoBody
	return true
}

// content is the body of a request together with the fields that the request's path sets.
type content struct {
	*bytes.Reader
	data     []byte
	fields   map[string]string
	revision string // revision in the header If-Match or If-None-Match; empty without one
	without  string // error text for a request with If-Match, if its gRPC call cannot check a revision
}

func (*content) Close() error { return nil }

// strictJSON decodes bodies with decode. A field that is also in the path must have the same value.
type strictJSON struct{ *runtime.JSONPb }

// NewDecoder implements runtime.Marshaler.
func (s strictJSON) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		m, isMessage := v.(proto.Message)
		c, isContent := r.(*content)
		if !isMessage || !isContent {
			return fmt.Errorf("a body of type %T is not supported", v)
		}
		if len(bytes.TrimSpace(c.data)) == 0 && c.revision != "" {
			c.data = []byte("{}")
		}
		if len(bytes.TrimSpace(c.data)) == 0 {
			return io.EOF
		}
		if err := decode(c.data, m, false); err != nil {
			return fmt.Errorf("the body is not valid: %w", err)
		}
		if err := knownDesired(m); err != nil {
			return fmt.Errorf("the body is not valid: %w", err)
		}
		have := m.ProtoReflect()
		for _, name := range slices.Sorted(maps.Keys(c.fields)) {
			field := have.Descriptor().Fields().ByTextName(name)
			if field != nil && have.Has(field) && have.Get(field).String() != c.fields[name] {
				return fmt.Errorf("%s: the body has %q, but the path has %q", name, have.Get(field).String(), c.fields[name])
			}
		}
		if c.revision == "" {
			return nil
		}
		field := have.Descriptor().Fields().ByTextName(conditionField)
		switch {
		case field == nil:
			return errors.New(c.without)
		case have.Has(field) && have.Get(field).String() != c.revision:
			return fmt.Errorf("%s: the body has %q, but the header If-Match or If-None-Match has %q", conditionField, have.Get(field).String(), c.revision)
		}
		have.Set(field, protoreflect.ValueOfString(c.revision))
		return nil
	})
}

// knownDesired refuses unknown values of desired_state. Schedulers treat an unknown value as Running, as the legacy
// contract says.
func knownDesired(m proto.Message) error {
	switch m := m.(type) {
	case *controlv1.ApplyWorkloadRequest:
		switch word := strings.ToLower(strings.TrimSpace(m.GetDesiredState())); word {
		case "", "running", "stopped", "stop", "deleted", "delete":
		default:
			return fmt.Errorf("desired_state %q of workload %q must be running, stopped or deleted", m.GetDesiredState(), m.GetWorkloadId())
		}
	case interface {
		GetWorkloads() []*controlv1.ApplyWorkloadRequest
	}:
		for _, w := range m.GetWorkloads() {
			if err := knownDesired(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// strictQuery refuses query parameters that the message of the call does not have, so that a misspelt filter
// does not list everything. It also refuses parameters that the path already has.
type strictQuery struct{ runtime.DefaultQueryParser }

// Parse implements runtime.QueryParameterParser.
func (q strictQuery) Parse(m proto.Message, values url.Values, filter *utilities.DoubleArray) error {
	fields := m.ProtoReflect().Descriptor().Fields()
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name, _, _ := strings.Cut(key, ".")
		name, _, _ = strings.Cut(name, "[")
		field := fields.ByTextName(name)
		if field == nil {
			field = fields.ByJSONName(name)
		}
		switch {
		case field == nil:
			return fmt.Errorf("unknown parameter %q; /docs lists those of %s", key, m.ProtoReflect().Descriptor().Name())
		case filter.HasCommonPrefix([]string{field.TextName()}):
			return fmt.Errorf("parameter %q is part of the path; leave it out", key)
		case name == key && !field.IsList():
			if first, twice := seen[field.TextName()]; twice || len(values[key]) > 1 {
				return fmt.Errorf("parameter %q is given twice (%q and %q); give it once", field.TextName(), cmp.Or(first, key), key)
			}
			seen[field.TextName()] = key
		}
	}
	return q.DefaultQueryParser.Parse(m, values, filter)
}
