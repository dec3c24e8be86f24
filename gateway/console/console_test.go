package console

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
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

func TestHandler(t *testing.T) {
	first := ask(t, "/ui/", nil)
	tag := first.Header.Get("ETag")
	for _, c := range []struct {
		fact, path string
		header     map[string]string
		status     int
		kind       string
	}{
		{"the page", "/ui/", nil, 200, "text/html; charset=utf-8"},
		{"a module, whatever this machine's table of types says", "/ui/app.js", nil, 200, "text/javascript; charset=utf-8"},
		{"packed", "/ui/app.js", map[string]string{"Accept-Encoding": "br, gzip"}, 200, "text/javascript; charset=utf-8"},
		{"unchanged", "/ui/", map[string]string{"If-None-Match": tag}, 304, "text/html; charset=utf-8"},
		{"unknown", "/ui/nothing.js", nil, 404, "text/plain; charset=utf-8"},
		{"above the folder", "/ui/../console.go", nil, 404, "text/plain; charset=utf-8"},
	} {
		r := ask(t, c.path, c.header)
		if r.StatusCode != c.status || r.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s: %d %s, want %d %s", c.fact, r.StatusCode, r.Header.Get("Content-Type"), c.status, c.kind)
		}
		if c.status == 200 && !strings.Contains(r.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: no policy", c.fact)
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
		t.Errorf("packed and plain differ: %v", err)
	}
}

// TestNothingFromElsewhere: no asset is fetched from another host, and text is
// never set as HTML.
func TestNothingFromElsewhere(t *testing.T) {
	elsewhere := regexp.MustCompile(`(?:src|href|url\(|from|import\()\s*[=("']+\s*(?:https?:)?//`)
	asHTML := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(`)
	imports := regexp.MustCompile(`from "\./([^"]+)"`)
	err := fs.WalkDir(assets, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := assets.ReadFile(name)
		for _, rule := range []*regexp.Regexp{elsewhere, asHTML} {
			if m := rule.Find(data); m != nil {
				t.Errorf("%s has %q", name, m)
			}
		}
		for _, m := range imports.FindAllSubmatch(data, -1) {
			if _, err := fs.Stat(assets, "assets/"+string(m[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
