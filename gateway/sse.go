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

// heartbeat is the time between comments in a silent stream. Without comments, proxies and clients would
// take the stream for dead.
const heartbeat = 15 * time.Second

// sse writes a stream as server-sent events. Each message is one event, with its JSON as data. An event
// named "error" ends a stream that failed. Events of the cluster have their sequence number as id, so that
// a client that reconnects continues after its last event.
type sse struct{ *runtime.JSONPb }

// ContentType implements runtime.Marshaler.
func (*sse) ContentType(any) string { return eventStream }

// Delimiter implements runtime.Delimited. The delimiter is empty, because Marshal ends each event.
func (*sse) Delimiter() []byte { return nil }

// Marshal implements runtime.Marshaler.
func (m *sse) Marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	switch x := v.(type) {
	case map[string]any: // a message of the stream
		v = x["result"]
		if e, ok := v.(*clusterv1.Event); ok {
			out.WriteString("id: " + strconv.FormatUint(e.GetSeq(), 10) + "\n")
		}
	case map[string]proto.Message: // the message is an error, which ends the stream
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

// streams reports whether the response is a stream, to which no timeout may apply.
func streams(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	p := r.URL.Path
	one, of := strings.CutPrefix(p, "/v1/workloads/")
	return p == "/v1/events" || strings.HasPrefix(p, "/v1/watch/") || of && strings.HasSuffix(one, "/logs") ||
		strings.Contains(r.Header.Get("Accept"), eventStream)
}

// startStream prepares the response of a stream. The returned function must be called when the stream ends.
func startStream(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func()) {
	// The server's write deadline is too short for a stream.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	if !strings.Contains(r.Header.Get("Accept"), eventStream) {
		return w, func() {}
	}
	// The library chooses the output format only if Accept has exactly this value, without further parameters.
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

// living is the response of a stream. It sends a comment whenever nothing has been sent for the time
// heartbeat.
type living struct {
	http.ResponseWriter
	mu     sync.Mutex
	status bool // the status line has been written
	failed bool // the stream has failed: send no more comments
	last   time.Time
}

// WriteHeader has no effect after a comment, which has sent status 200.
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
	_ = http.NewResponseController(l.ResponseWriter).Flush() // an error means that the client has closed the connection
}

// living has no method Unwrap, because with Unwrap http.ResponseController would use the inner writer and bypass the
// lock.

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

// fail stops the comments and reports whether the status line has been sent.
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
		// Neither an error nor a message has been sent yet. The first comment also sends status 200.
		l.ResponseWriter.Header().Set("Content-Type", eventStream)
		l.status = true
	}
	_, _ = l.ResponseWriter.Write([]byte(": still here\n\n"))
	_ = http.NewResponseController(l.ResponseWriter).Flush()
}

// trailers copies a replica's trailers to response headers: whether the answer was served
// without a leader, and its age.
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
