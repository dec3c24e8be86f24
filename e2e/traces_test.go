package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver is an OTLP/HTTP receiver that keeps every span.
type receiver struct {
	*httptest.Server

	mu    sync.Mutex
	spans map[string]received // received spans by span id
}

type received struct {
	*tracev1.Span
	service, instance string
}

func receive(t *testing.T) *receiver {
	r := &receiver{spans: map[string]received{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		in := &collectorv1.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, in)
		}
		if err != nil || req.URL.Path != "/v1/traces" {
			http.Error(w, "no traces", http.StatusBadRequest)
			return
		}
		r.keep(in)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) keep(in *collectorv1.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range in.GetResourceSpans() {
		var got received
		for _, a := range of.GetResource().GetAttributes() {
			switch a.GetKey() {
			case "service.name":
				got.service = a.GetValue().GetStringValue()
			case "service.instance.id":
				got.instance = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				got.Span = s
				r.spans[hex.EncodeToString(s.GetSpanId())] = got
			}
		}
	}
}

// path returns the spans from the first span of a trace down to a span with the given name, each as "program:
// span". whole reports whether the first span has the name root, that is, whether all spans between have
// arrived.
func (r *receiver) path(root, name string) (steps []string, whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.GetName() != name {
			continue
		}
		steps, whole = nil, false
		for at, ok := s, true; ok; at, ok = r.spans[hex.EncodeToString(at.GetParentSpanId())] {
			who := at.service
			if at.instance != "" {
				who = at.instance
			}
			steps = append(steps, who+": "+at.GetName())
			whole = len(at.GetParentSpanId()) == 0 && at.GetName() == root
		}
		slices.Reverse(steps)
		if whole {
			return steps, true
		}
	}
	return steps, false
}
