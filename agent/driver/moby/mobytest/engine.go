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

// Engine is the machine's Docker engine, which tests use. Its random id Run belongs to one run of a package's
// tests. It is part of the names of the objects that they create, so that concurrent runs do not collide.
type Engine struct {
	Client *client.Client
	Run    string   // random id of this test run
	Image  string   // id of the probe's image, which exists only on this engine
	Probe  v1.Image // the probe's image; tests load it under further names
}

// openFor is the time limit of the set-up before the first test, and closeFor that of the clean-up after the
// last test.
const (
	openFor  = 10 * time.Minute
	closeFor = time.Minute
)

// Shared is the engine that the tests of one package share. The first test that needs the engine sets it up.
// Name becomes a part of the names of the test images.
type Shared struct {
	Name string

	once   sync.Once
	engine *Engine
	err    error
}

// Open returns the engine, or skips t (fails it with CI=true) if this machine has none.
func (s *Shared) Open(t testing.TB) *Engine {
	t.Helper()
	s.once.Do(func() { s.engine, s.err = open(s.Name) })
	testbed.Need(t, "a Docker engine", s.err)
	return s.engine
}

// Main runs the tests of a package, removes their objects from the engine, and exits. The run fails if the
// function left (which may be nil) returns an error because the tests left objects on the engine, or if a
// goroutine leaks.
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

// RemoveImage removes an image that a test loaded into the engine.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.Client.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	return err
}
