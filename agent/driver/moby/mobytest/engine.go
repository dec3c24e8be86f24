package mobytest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/persys/compute/testbed"
)

// Engine is the real Docker engine under test and what this run of a package's tests put there.
// Names carry a random part, so runs do not meet.
type Engine struct {
	Client *client.Client
	Run    string   // random
	Image  string   // of the probe; local only: it came from no registry
	Probe  v1.Image // the same, to load under other names
}

// openFor and closeFor bound what is done before the first test and after the last one.
const (
	openFor  = 2 * time.Minute
	closeFor = time.Minute
)

// Shared is the engine of one package's tests, made ready by the first that wants it. Name is in
// the names of its images.
type Shared struct {
	Name string

	once   sync.Once
	engine *Engine
	err    error
}

// Open gives the engine; t needs one.
func (s *Shared) Open(t testing.TB) *Engine {
	t.Helper()
	s.once.Do(func() { s.engine, s.err = open(s.Name) })
	testbed.Need(t, "a Docker engine", s.err)
	return s.engine
}

// Main runs the tests and exits. What they put on the engine is removed; it is a failure when
// left, nil for none, finds more of them there, or when a goroutine is left.
func (s *Shared) Main(m *testing.M, left func(context.Context, *Engine) error) {
	code := m.Run()
	if s.engine != nil {
		if err := s.engine.close(left); err != nil {
			fmt.Fprintln(os.Stderr, "cleaning up:", err)
			code = 1
		}
	}
	testbed.Exit(code)
}

func open(name string) (*Engine, error) {
	cli, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), openFor)
	defer cancel()
	e := &Engine{Client: cli, Run: strings.ToLower(rand.Text())[:8]}
	e.Image = "persys-" + name + "-probe-" + e.Run + ":v1"
	if _, err = cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err == nil {
		e.Probe, err = BuildProbe(ctx)
	}
	if err == nil {
		err = Load(ctx, cli, e.Probe, e.Image)
	}
	if err != nil {
		return nil, errors.Join(err, cli.Close())
	}
	return e, nil
}

func (e *Engine) close(left func(context.Context, *Engine) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeFor)
	defer cancel()
	var errs []error
	if left != nil {
		errs = append(errs, left(ctx, e))
	}
	return errors.Join(append(errs, e.RemoveImage(ctx, e.Image), e.Client.Close())...)
}

// RemoveImage removes an image that a test put on the engine.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.Client.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	return err
}
