package mobytest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"
)

// TakeBackFirst puts a proxy before the engine to which cli is connected. Just before the first start of a
// container through the proxy, the proxy removes that container, but answers the next inspection of it as if
// it still existed. A real engine does the same with a container if the client that created the container
// disconnects. TakeBackFirst returns the proxy's address for a driver, and a function that returns the
// removed container's id ("" for none yet). The engine must listen on a Unix socket.
func TakeBackFirst(t *testing.T, cli *client.Client) (host string, taken func() string) {
	t.Helper()
	target, ok := strings.CutPrefix(cli.DaemonHost(), "unix://")
	if !ok {
		t.Fatalf("the engine is at %s; this test needs a unix socket", cli.DaemonHost())
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "engine"}) },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", target)
			},
			DisableKeepAlives: true,
		},
	}
	var mu sync.Mutex
	first := ""
	var shown []byte // the engine's answer about the container before its removal, which the proxy returns once more
	take := func(id string) {
		mu.Lock()
		defer mu.Unlock()
		if first != "" {
			return
		}
		first = id
		was, err := cli.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		if err != nil {
			t.Error(err)
		}
		shown = was.Raw
		if _, err := cli.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}
	again := func(path string) (last []byte) {
		mu.Lock()
		defer mu.Unlock()
		if first != "" && strings.HasSuffix(path, first+"/json") {
			last, shown = shown, nil
		}
		return last
	}
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutSuffix(r.URL.Path, "/start"); ok {
			take(rest[strings.LastIndexByte(rest, '/')+1:])
		}
		if last := again(r.URL.Path); last != nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(last) // an error means that the client has closed the connection
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	return "unix://" + path, func() string {
		mu.Lock()
		defer mu.Unlock()
		return first
	}
}
