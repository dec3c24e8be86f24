package gateway

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/rpc/dial"
)

const eventStream = "text/event-stream"

// A silent stream says that it lives this often, so that neither proxies nor
// browsers take it for dead.
const heartbeat = 15 * time.Second

// sse writes a stream as server-sent events: each message is one event whose
// data is its JSON, named "error" when the stream failed. Events of the
// cluster's log carry their sequence number as id, so a browser that comes back
// goes on where it was.
type sse struct{ *runtime.JSONPb }

// ContentType implements runtime.Marshaler.
func (*sse) ContentType(any) string { return eventStream }

// Delimiter implements runtime.Delimited; Marshal ends each event itself.
func (*sse) Delimiter() []byte { return nil }

// Marshal implements runtime.Marshaler.
func (m *sse) Marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	switch x := v.(type) {
	case map[string]any: // a message of a stream
		v = x["result"]
		if e, ok := v.(*clusterv1.Event); ok {
			out.WriteString("id: " + strconv.FormatUint(e.GetSeq(), 10) + "\n")
		}
	case map[string]proto.Message: // its failure
		v = x["error"]
		out.WriteString("event: error\n")
	}
	data, err := m.JSONPb.Marshal(v)
	if err != nil {
		return nil, err
	}
	out.WriteString("data: ")
	out.Write(bytes.ReplaceAll(data, []byte("\n"), []byte("\ndata: ")))
	out.WriteString("\n\n")
	return out.Bytes(), nil
}

// streams reports whether the answer goes on for as long as it is read.
func streams(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	p := r.URL.Path
	one, of := strings.CutPrefix(p, "/v1/workloads/")
	return p == "/v1/events" || strings.HasPrefix(p, "/v1/watch/") || of && strings.HasSuffix(one, "/logs") ||
		strings.Contains(r.Header.Get("Accept"), eventStream)
}

// startStream prepares the answer of a stream; the caller calls the function
// that comes with it at the end.
func startStream(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func()) {
	// A stream outlives the server's limit on writing one answer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	if !strings.Contains(r.Header.Get("Accept"), eventStream) {
		return w, func() {}
	}
	// The marshaler is found by the exact type; browsers send just that.
	r.Header.Set("Accept", eventStream)
	if last := r.Header.Get("Last-Event-ID"); last != "" && r.URL.Path == "/v1/events" {
		if _, err := strconv.ParseUint(last, 10, 64); err == nil {
			q := r.URL.Query()
			q.Set("after_seq", last)
			q.Del("tail")
			r.URL.RawQuery = q.Encode()
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	l := &living{ResponseWriter: w}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { l.keep(done) })
	return l, func() { close(done); wg.Wait() }
}

// living writes a comment into a stream that has been silent.
type living struct {
	http.ResponseWriter
	mu     sync.Mutex
	status bool // the answer has begun
	failed bool // what comes now is why it ends
	last   time.Time
}

// WriteHeader is too late once a comment has begun the answer.
func (l *living) WriteHeader(code int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status {
		return
	}
	l.status = true
	l.ResponseWriter.WriteHeader(code)
}

func (l *living) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status, l.last = true, time.Now()
	return l.ResponseWriter.Write(p)
}

func (l *living) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = http.NewResponseController(l.ResponseWriter).Flush() // the peer may be gone
}

// Unwrap is not there on purpose: whoever reached the writer below would write
// past the lock.

func (l *living) keep(done <-chan struct{}) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.ping()
		case <-done:
			return
		}
	}
}

// fail ends the comments, and reports whether one of them has begun the answer.
func (l *living) fail() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = true
	return l.status
}

func (l *living) ping() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed || time.Since(l.last) < heartbeat {
		return
	}
	if !l.status {
		// Nothing has come yet, not even an error: the stream is open.
		l.ResponseWriter.Header().Set("Content-Type", eventStream)
		l.status = true
	}
	_, _ = l.ResponseWriter.Write([]byte(": still here\n\n"))
	_ = http.NewResponseController(l.ResponseWriter).Flush()
}

// trailers shows what the replica says beside an answer: whether it was served without a
// leader, and how old it is then.
func trailers(ctx context.Context, w http.ResponseWriter, _ proto.Message) error {
	if md, ok := runtime.ServerMetadataFromContext(ctx); ok {
		showTrailers(w.Header(), md.TrailerMD.Get)
	}
	return nil
}

func showTrailers(h http.Header, get func(string) []string) {
	for key, header := range map[string]string{
		dial.KeyStale: "X-Persys-Stale", dial.KeyAgeMS: "X-Persys-Age-Ms",
	} {
		if v := get(key); len(v) == 1 {
			h.Set(header, v[0])
		}
	}
}
