// Package mobytest provides what tests of the Docker and Compose drivers need: a test image that needs no
// registry, an engine, and proxies to it.
package mobytest

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/client"
)

// BuildProbe builds the test image: an image FROM scratch that contains only the program in the
// folder probe.
func BuildProbe(ctx context.Context) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "persys-probe-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "probe")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, "github.com/persys/compute/agent/driver/moby/mobytest/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the probe: %w\n%s", err, out)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	if err := tw.WriteHeader(&tar.Header{Name: "probe", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := tw.Write(program); err != nil {
		return nil, err
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = "amd64", "linux"
	config.Config.Entrypoint = []string{"/probe"}
	return mutate.ConfigFile(img, config)
}

// Load loads an image into the engine, as if it had been built there.
func Load(ctx context.Context, cli *client.Client, probe v1.Image, ref string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarball.Write(tag, probe, pw)) }()
	res, err := cli.ImageLoad(ctx, pr)
	if err != nil {
		return err
	}
	defer res.Close()
	_, err = io.Copy(io.Discard, res)
	return err
}

// Forge loads a copy of an image that has the value "forged" for each of these labels. The image is removed when the
// test ends.
func Forge(t *testing.T, cli *client.Client, probe v1.Image, ref string, labels ...string) {
	t.Helper()
	forged := map[string]string{}
	for _, key := range labels {
		forged[key] = "forged"
	}
	Labelled(t, cli, probe, ref, forged)
}

// Labelled loads a copy of an image that has these labels. The image is removed when the test ends.
func Labelled(t *testing.T, cli *client.Client, probe v1.Image, ref string, labels map[string]string) {
	t.Helper()
	config, err := probe.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Config.Labels = labels
	img, err := mutate.ConfigFile(probe, config)
	if err == nil {
		err = Load(t.Context(), cli, img, ref)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cli.ImageRemove(context.WithoutCancel(t.Context()), ref, client.ImageRemoveOptions{Force: true})
	})
}
