package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var assets embed.FS

// policy allows a page only to load files from this server and to send requests to it. No page may frame
// it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is a file of the console (a script, style sheet or page) with the HTTP headers of its response.
type file struct {
	kind   string // value of Content-Type
	tag    string // value of ETag
	plain  []byte
	packed []byte // content compressed with gzip; nil if that is not smaller than plain
}

// Handler serves the console below prefix, e.g. "/ui/".
func Handler(prefix string) (http.Handler, error) {
	files := map[string]*file{}
	err := fs.WalkDir(assets, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := load(name)
		files[strings.TrimPrefix(name, "assets/")] = f
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, prefix)
		if name == "" {
			name = "index.html"
		}
		f := files[name]
		if f == nil {
			http.NotFound(w, r)
			return
		}
		f.serve(w, r)
	}), nil
}

func load(name string) (*file, error) {
	data, err := assets.ReadFile(name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	f := &file{kind: mime.TypeByExtension(path.Ext(name)), plain: data, tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
	if strings.HasSuffix(name, ".js") {
		f.kind = "text/javascript; charset=utf-8" // a fixed media type, because the machine's table may have another one for .js files
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() < len(data) {
		f.packed = b.Bytes()
	}
	return f, nil
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	// The browser revalidates at each load and usually gets 304, so an upgrade takes effect at once.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if f.packed != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.packed
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // an error means that the client has closed the connection
	}
}
