package docker_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/docker"
	"github.com/persys/compute/agent/driver/moby"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// testRegistry is an image registry on the loopback address (which the engine trusts without TLS). It counts
// requests, and can require a password, fail, hang, or send blobs slowly.
type testRegistry struct {
	*httptest.Server
	mu       sync.Mutex
	requests int
	password string
	status   int
	hang     bool
	slow     bool
	blobs    int           // number of requests for blobs while slow is set
	released chan struct{} // closing this channel ends the requests that hang
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{released: make(chan struct{})}
	inner := registry.New(registry.Logger(quiet()))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests++
		password, status, hang := r.password, r.status, r.hang
		if r.slow && req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			r.blobs++
			w = &slowly{w}
		}
		r.mu.Unlock()
		if hang {
			select {
			case <-r.released:
			case <-req.Context().Done():
			}
			return
		}
		if status != 0 {
			http.Error(w, http.StatusText(status), status)
			return
		}
		if _, given, _ := req.BasicAuth(); password != "" && given != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Server.Close)
	t.Cleanup(func() { close(r.released) })
	return r
}

// slowly makes a slow answer of the registry: it pauses after every 32 KiB. So a pull always makes progress,
// but takes longer in total than PullTimeout, which limits only the time without progress.
type slowly struct{ http.ResponseWriter }

func (s *slowly) Write(p []byte) (n int, err error) {
	for piece := range slices.Chunk(p, 32<<10) {
		if _, err := s.ResponseWriter.Write(piece); err != nil {
			return n, err
		}
		n += len(piece)
		s.ResponseWriter.(http.Flusher).Flush()
		time.Sleep(400 * time.Millisecond)
	}
	return n, nil
}

func (r *testRegistry) host() string { return strings.TrimPrefix(r.URL, "http://") }

func (r *testRegistry) set(change func(*testRegistry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *testRegistry) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// push pushes the image of the test program to the test registry and returns the reference with its digest.
// The engine's copies of the image are removed when the test ends.
func (b *bench) push(r *testRegistry, ref string) string {
	b.Helper()
	tag, err := name.NewTag(r.host() + "/" + ref)
	if err != nil {
		b.Fatal(err)
	}
	if err := remote.Write(tag, b.probe); err != nil {
		b.Fatal(err)
	}
	digest, err := b.probe.Digest()
	if err != nil {
		b.Fatal(err)
	}
	pinned := tag.Context().Name() + "@" + digest.String()
	b.Cleanup(func() {
		_ = b.removeImage(tag.Name())
		_ = b.removeImage(pinned)
	})
	return pinned
}

// enlarge adds a layer of size bytes, which the engine does not have yet, to the image that push pushes.
func (b *bench) enlarge(size int64) {
	b.Helper()
	layer, err := random.Layer(size, types.DockerLayer)
	if err != nil {
		b.Fatal(err)
	}
	small := b.probe
	if b.probe, err = mutate.AppendLayers(small, layer); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { b.probe = small })
}

func TestImagesArePulledWhenNeeded(t *testing.T) {
	t.Run("an image with a tag is pulled if it is missing and then never again", func(t *testing.T) {
		b, r := newBench(t), newRegistry(t)
		b.push(r, "tagged:v1")
		before := r.count()
		b.ensure(b.spec("tagged-1", containerBody(r.host()+"/tagged:v1")))
		pulled := r.count()
		if pulled == before {
			t.Fatal("the driver did not send a request to the registry")
		}
		b.ensure(b.spec("tagged-2", containerBody(r.host()+"/tagged:v1")))
		if again := r.count(); again != pulled {
			t.Errorf("the driver sent %d further requests to the registry for an image with a tag that the engine already has", again-pulled)
		}
	})
	t.Run("an image with a pinned digest is pulled if it is missing and then never again", func(t *testing.T) {
		b, r := newBench(t), newRegistry(t)
		pinned := b.push(r, "pinned:v1")
		b.ensure(b.spec("pinned-1", containerBody(pinned)))
		pulled := r.count()
		r.Close() // with a pinned digest the driver must not need the registry again
		b.ensure(b.spec("pinned-2", containerBody(pinned)))
		withTag := strings.Replace(pinned, "@", ":other@", 1)
		b.ensure(b.spec("pinned-3", containerBody(withTag)))
		if again := r.count(); again != pulled {
			t.Errorf("the driver sent %d further requests to the registry for a pinned image that the engine already has", again-pulled)
		}
	})
	t.Run("an image with the tag latest is renewed, and if the registry is unreachable the local image is used", func(t *testing.T) {
		b, r := newBench(t), newRegistry(t)
		b.push(r, "floating:latest")
		b.ensure(b.spec("floating-1", containerBody(r.host()+"/floating")))
		pulled := r.count()
		b.ensure(b.spec("floating-2", containerBody(r.host()+"/floating:latest")))
		if r.count() == pulled {
			t.Error("the driver did not send a request to the registry for the tag latest")
		}
		r.Close()
		b.ensure(b.spec("floating-3", containerBody(r.host()+"/floating")))
	})
	t.Run("a registry that does not answer delays the start of an image with the tag latest by the refresh timeout at most", func(t *testing.T) {
		b := newBench(t, func(o *docker.Options) { o.RefreshTimeout = 500 * time.Millisecond })
		r := newRegistry(t)
		b.push(r, "slow:latest")
		b.ensure(b.spec("slow-1", containerBody(r.host()+"/slow")))
		r.set(func(r *testRegistry) { r.hang = true })
		start := time.Now()
		b.ensure(b.spec("slow-2", containerBody(r.host()+"/slow")))
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %s", took)
		}
	})
	t.Run("the registry gets no request for an image that was built on this engine", func(t *testing.T) {
		b := newBench(t)
		local := "persys-local-" + b.run + ":latest"
		if err := b.load(b.ctx, local); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.removeImage(local) })
		start := time.Now()
		b.ensure(b.spec("local", containerBody("persys-local-"+b.run)))
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("Ensure took %s, so it probably sent a request to a registry; want no request", took)
		}
	})
	t.Run("a pull reports its progress and its end", func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		b := newBench(t, func(o *docker.Options) {
			o.Progress = func(id driver.ID, text string) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, string(id)+": "+text)
			}
		})
		r := newRegistry(t)
		b.enlarge(16 << 20)
		b.push(r, "large:v1")
		spec := b.spec("large", containerBody(r.host()+"/large:v1"))
		b.ensure(spec)
		mu.Lock()
		defer mu.Unlock()
		if len(told) < 3 || told[0] != string(spec.ID)+": pulling "+r.host()+"/large:v1" ||
			!strings.HasPrefix(told[1], told[0]+": ") || !strings.Contains(told[1], " of ") || told[len(told)-1] != string(spec.ID)+": " {
			t.Errorf("told %q", told)
		}
	})
	t.Run("credentials are used", func(t *testing.T) {
		var asked string
		b := newBench(t, func(o *docker.Options) {
			o.Credentials = func(_, ref string) (string, error) {
				asked = ref
				return moby.EncodeAuth("user", "open sesame", "")
			}
		})
		r := newRegistry(t)
		b.push(r, "private:v1")
		r.set(func(r *testRegistry) { r.password = "open sesame" })
		ref := r.host() + "/private:v1"
		b.ensure(b.spec("private", containerBody(ref)))
		if asked != ref {
			t.Errorf("the driver requested credentials for the image %q, want %q", asked, ref)
		}
	})
	t.Run("a pull with wrong credentials fails with the class "+string(driver.ImagePullAuthFailed), func(t *testing.T) {
		b := newBench(t, func(o *docker.Options) {
			o.Credentials = func(string, string) (string, error) { return moby.EncodeAuth("user", "wrong", "") }
		})
		r := newRegistry(t)
		b.push(r, "private:v1")
		r.set(func(r *testRegistry) { r.password = "open sesame" })
		err := b.d.Ensure(b.ctx, b.spec("wrong", containerBody(r.host()+"/private:v1")))
		if driver.ClassOf(err) != driver.ImagePullAuthFailed {
			t.Errorf("a pull with wrong credentials returned %v", err)
		}
	})
	t.Run("missing credentials fail only pulls of images that need them", func(t *testing.T) {
		b := newBench(t, func(o *docker.Options) {
			o.Credentials = func(string, string) (string, error) { return "", errors.New("the helper is not installed") }
		})
		r := newRegistry(t)
		b.push(r, "probe:v1")
		b.push(r, "private:v1")
		b.ensure(b.spec("public", containerBody(r.host()+"/probe:v1")))
		r.set(func(r *testRegistry) { r.password = "open sesame" })
		err := b.d.Ensure(b.ctx, b.spec("private", containerBody(r.host()+"/private:v1")))
		if driver.ClassOf(err) != driver.ImagePullAuthFailed || !strings.Contains(err.Error(), "the helper is not installed") {
			t.Errorf("a pull with a failing credential helper returned %v, want the error of the credential helper", err)
		}
	})
	t.Run("a slow pull with progress continues beyond the time limit, and its progress is reported", func(t *testing.T) {
		const limit = 10 * time.Second // many pauses of the registry, because a busy engine reports progress late
		var mu sync.Mutex
		var said []string
		b := newBench(t, func(o *docker.Options) {
			o.PullTimeout = limit
			o.Progress = func(_ driver.ID, text string) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, text)
			}
		})
		r := newRegistry(t)
		b.enlarge(1 << 20)
		b.push(r, "slow:v1")
		r.set(func(r *testRegistry) { r.slow = true })
		began := time.Now()
		b.ensure(b.spec("slow", containerBody(r.host()+"/slow:v1", "serve")))
		if took := time.Since(began); took < limit {
			t.Fatalf("the slow pull took only %s, less than the time limit, so the test did not cover a pull beyond the limit", took)
		}
		if r.blobs > 2 { // the pull needs two blobs: the image configuration and the new layer
			t.Errorf("the registry got %d requests for blobs, want at most 2: the driver started the pull again", r.blobs)
		}
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasPrefix(said[0], "pulling "+r.host()+"/slow:v1") || !strings.Contains(strings.Join(said, "; "), "iB of ") || said[len(said)-1] != "" {
			t.Errorf("said %q", said)
		}
	})
	for _, c := range []struct {
		name string
		ref  string
		set  func(*testRegistry)
		down bool
		want driver.Class
	}{
		{"a pull without the credentials that the registry requires", "private:v1", func(r *testRegistry) { r.password = "open sesame" }, false, driver.ImagePullAuthFailed},
		{"a forbidden image", "probe:v1", func(r *testRegistry) { r.status = http.StatusForbidden }, false, driver.ImagePullAuthFailed},
		{"an unknown tag", "probe:v9", nil, false, driver.InvalidImage},
		{"an unknown repository", "nobody:v1", nil, false, driver.InvalidImage},
		{"a malformed reference", "UPPER:v1", nil, false, driver.InvalidImage},
		{"a pull from a registry that answers with an error", "probe:v1", func(r *testRegistry) { r.status = http.StatusServiceUnavailable }, false, driver.ImagePullTimeout},
		{"a pull from a registry that is busy", "probe:v1", func(r *testRegistry) { r.status = http.StatusTooManyRequests }, false, driver.ImagePullTimeout},
		{"a pull from a registry that never answers", "probe:v1", func(r *testRegistry) { r.hang = true }, false, driver.ImagePullTimeout},
		{"a pull from a registry that is down", "probe:v1", nil, true, driver.NetworkUnreachable},
	} {
		t.Run(c.name+" is "+string(c.want), func(t *testing.T) {
			b := newBench(t, func(o *docker.Options) { o.PullTimeout = 3 * time.Second })
			r := newRegistry(t)
			b.push(r, "probe:v1")
			b.push(r, "private:v1")
			if c.set != nil {
				r.set(c.set)
			}
			if c.down {
				r.Close()
			}
			spec := b.spec("refused", containerBody(r.host()+"/"+c.ref))
			err := b.d.Ensure(b.ctx, spec)
			if err == nil {
				t.Fatal("no error")
			}
			if got := driver.ClassOf(err); got != c.want {
				t.Errorf("the pull returned class %s, want %s: %v", got, c.want, err)
			}
			if !strings.Contains(err.Error(), c.ref) {
				t.Errorf("the error does not name the image: %v", err)
			}
			if outage := c.want != driver.InvalidImage && c.want != driver.ImagePullAuthFailed; outage && driver.ClassOf(err).Cause() != driver.Passing {
				t.Errorf("an unreachable registry must be a temporary failure, but the error is permanent: %v", err)
			}
			if o := b.observed(spec.ID); o.State != driver.Absent {
				t.Errorf("the pull of the image failed, but a container was created: %+v", o)
			}
		})
	}
}

// TestImagesThatAreNotPulled: the driver asks no registry for an image with pull_policy never, nor for an image that was
// loaded on this node for another platform. The error for a missing image says why it was not pulled.
func TestImagesThatAreNotPulled(t *testing.T) {
	for _, c := range []struct {
		name  string
		body  func(image string) *agentv1.ContainerSpec
		class driver.Class
		says  string
	}{
		{"never", func(string) *agentv1.ContainerSpec {
			return &agentv1.ContainerSpec{Image: "127.0.0.1:1/none:v1", PullPolicy: "never"}
		},
			driver.ImageNotOnNode, "pull_policy is never"},
		{"platform", func(image string) *agentv1.ContainerSpec {
			return &agentv1.ContainerSpec{Image: image, Platform: "linux/s390x"}
		},
			driver.InvalidImage, "the specification asks for the platform linux/s390x"},
	} {
		b := newBench(t)
		err := b.d.Ensure(b.ctx, b.spec(c.name, c.body(b.image)))
		if err == nil || driver.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Ensure returned %v, want class %s and the text %q", c.name, err, c.class, c.says)
		}
	}
}
