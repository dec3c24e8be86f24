package console

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func ask(t *testing.T, path string, header map[string]string) *http.Response {
	t.Helper()
	h, err := Handler("/ui/")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for k, v := range header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestHandlerServesTheAssets(t *testing.T) {
	first := ask(t, "/ui/", nil)
	tag := first.Header.Get("ETag")
	for _, c := range []struct {
		fact, path string
		header     map[string]string
		status     int
		kind       string
	}{
		{"the start page", "/ui/", nil, 200, "text/html; charset=utf-8"},
		{"a module has the media type of JavaScript, whatever the machine's table of media types says", "/ui/app.js", nil, 200, "text/javascript; charset=utf-8"},
		{"a module with gzip", "/ui/app.js", map[string]string{"Accept-Encoding": "br, gzip"}, 200, "text/javascript; charset=utf-8"},
		{"an unchanged file", "/ui/", map[string]string{"If-None-Match": tag}, 304, "text/html; charset=utf-8"},
		{"an unknown file", "/ui/nothing.js", nil, 404, "text/plain; charset=utf-8"},
		{"a file above the folder", "/ui/../console.go", nil, 404, "text/plain; charset=utf-8"},
	} {
		r := ask(t, c.path, c.header)
		if r.StatusCode != c.status || r.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s: the answer has status %d and type %s, want %d and %s", c.fact, r.StatusCode, r.Header.Get("Content-Type"), c.status, c.kind)
		}
		if c.status == 200 && !strings.Contains(r.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: the answer has no Content-Security-Policy", c.fact)
		}
	}
	packed := ask(t, "/ui/app.js", map[string]string{"Accept-Encoding": "gzip"})
	z, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	want, _ := io.ReadAll(ask(t, "/ui/app.js", nil).Body)
	if err != nil || string(plain) != string(want) {
		t.Errorf("the gzip content of an asset differs from its plain content: %v", err)
	}
}
