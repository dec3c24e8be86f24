package harness

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/testbed"
)

// Engine is a client of the Docker engine of this machine, at DOCKER_HOST.
type Engine struct{ cli *client.Client }

// OpenEngine connects to the Docker engine. The error names the address.
func OpenEngine(ctx context.Context) (*Engine, error) {
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	return openEngine(ctx, host)
}

// openEngine connects to the engine at an address.
func openEngine(ctx context.Context, host string) (*Engine, error) {
	cli, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		return nil, fmt.Errorf("DOCKER_HOST %q: %w", host, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, errors.Join(fmt.Errorf("no Docker engine answers at %s (%w)", host, err), cli.Close())
	}
	return &Engine{cli}, nil
}

// Close ends the connection.
func (e *Engine) Close() error { return e.cli.Close() }

// aloneLimit is how long a test waits until all other tests have released the engine.
const aloneLimit = 20 * time.Minute

// Alone waits until no other test process on this machine uses the engine, reserves it until release or until
// this process ends, and removes containers that former test runs have left.
func (e *Engine) Alone(ctx context.Context) (release func(), err error) {
	release, err = testbed.Lock(ctx, aloneLimit, filepath.Join(os.TempDir(), fmt.Sprintf("persys-engine-%d.lock", os.Getuid())))
	if err != nil {
		return nil, err
	}
	if err := e.removeLeftContainers(ctx); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// removeLeftContainers removes the containers that former test runs have left: a run may have been killed,
// or the engine may have created a container for a killed agent after the run had removed its containers.
// It finds them by runLabel, which containers take over from their images.
func (e *Engine) removeLeftContainers(ctx context.Context) error {
	res, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", runLabel)})
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range res.Items {
		if err := e.Remove(ctx, c.ID); err != nil && !cerrdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// runLabel is a label of the images that test runs build; its value is unique to a run. No run lasts longer
// than leftAfter, so an image that is older was left by a run that was killed.
const (
	runLabel  = "persys.run"
	leftAfter = 24 * time.Hour
)

// BuildForRun builds an image as BuildGo does. The image's name begins with ref and is unique to this run.
// BuildForRun also removes images that killed runs have left.
func (e *Engine) BuildForRun(ctx context.Context, ref, pkg string) (string, error) {
	if err := e.removeLeft(ctx, runLabel, time.Now().Add(-leftAfter)); err != nil {
		return "", err
	}
	run := strings.ToLower(rand.Text())[:12]
	ref += "-" + run
	return ref, e.BuildGo(ctx, ref, pkg, map[string]string{runLabel: run})
}

// removeLeft removes the images that have the label and were created before the given time.
func (e *Engine) removeLeft(ctx context.Context, label string, before time.Time) error {
	res, err := e.cli.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", label)})
	if err != nil {
		return err
	}
	for _, image := range res.Items {
		if !time.Unix(image.Created, 0).Before(before) {
			continue
		}
		for _, ref := range image.RepoTags {
			// An image that is not found is no error: another test run may have removed it at the same time.
			if err := e.RemoveImage(ctx, ref); err != nil && !cerrdefs.IsNotFound(err) {
				return err
			}
		}
	}
	return nil
}

// BuildGo builds a static Go program of this module into an image FROM scratch. It
// pulls nothing.
func (e *Engine) BuildGo(ctx context.Context, ref, pkg string, labels map[string]string) error {
	root, err := testbed.Root(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "persys-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "program")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	body, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	name := filepath.Base(pkg)
	dockerfile := fmt.Sprintf("FROM scratch\nCOPY %s /%s\nENTRYPOINT [\"/%s\"]\n", name, name, name)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		mode int64
		body []byte
	}{{"Dockerfile", 0o644, []byte(dockerfile)}, {name, 0o755, body}} {
		// Give the files a fixed time, so that the same program always makes the same image layer.
		if err := tw.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.body)), ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		if _, err := tw.Write(f.body); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	res, err := e.cli.ImageBuild(ctx, &buf, client.ImageBuildOptions{Tags: []string{ref}, Remove: true, ForceRemove: true, Labels: labels})
	if err != nil {
		return fmt.Errorf("building image %s: %w", ref, err)
	}
	defer res.Body.Close()
	return buildOutcome(ref, res.Body)
}

// buildOutcome reads the progress messages of a build and returns an error that they contain.
func buildOutcome(ref string, body io.Reader) error {
	dec := json.NewDecoder(body)
	for {
		var m struct {
			Error string `json:"error"`
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("building image %s: %w", ref, err)
		case m.Error != "":
			return fmt.Errorf("building image %s: %s", ref, strings.TrimSpace(m.Error))
		}
	}
}

// HasImage reports whether the engine has an image.
func (e *Engine) HasImage(ctx context.Context, ref string) bool {
	_, err := e.cli.ImageInspect(ctx, ref)
	return err == nil
}

// RemoveImage removes a tag.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.cli.ImageRemove(ctx, ref, client.ImageRemoveOptions{Force: true, PruneChildren: true})
	return err
}

// Containers returns all containers of a cluster, stopped ones too.
func (e *Engine) Containers(ctx context.Context, clusterID string) ([]container.Summary, error) {
	if clusterID == "" {
		return nil, errors.New("the cluster id must not be empty")
	}
	res, err := e.cli.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", driver.LabelCluster+"="+clusterID),
	})
	return res.Items, err
}

// Workload returns the containers of one workload of a cluster.
func (e *Engine) Workload(ctx context.Context, clusterID, id string) ([]container.Summary, error) {
	all, err := e.Containers(ctx, clusterID)
	if err != nil {
		return nil, err
	}
	out := all[:0]
	for _, c := range all {
		if c.Labels[driver.LabelWorkload] == id {
			out = append(out, c)
		}
	}
	return out, nil
}

// Started returns the time of the last start of a container, in the format of the
// engine.
func (e *Engine) Started(ctx context.Context, id string) (string, error) {
	res, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	return res.Container.State.StartedAt, nil
}

// PID returns the id of a container's first process; 0 if the container does not run.
func (e *Engine) PID(ctx context.Context, id string) (int, error) {
	res, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil || res.Container.State == nil {
		return 0, err
	}
	return res.Container.State.Pid, nil
}

// Restarts returns the number of times that the engine has restarted a container.
func (e *Engine) Restarts(ctx context.Context, id string) (int, error) {
	res, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	return res.Container.RestartCount, err
}

// RemoveAll removes every container of a cluster.
func (e *Engine) RemoveAll(ctx context.Context, clusterID string) error {
	all, err := e.Containers(ctx, clusterID)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range all {
		_, err := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Run starts a container that no agent manages.
func (e *Engine) Run(ctx context.Context, name, image string, labels map[string]string) (id string, err error) {
	res, err := e.cli.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: &container.Config{Image: image, Labels: labels}})
	if err != nil {
		return "", err
	}
	_, err = e.cli.ContainerStart(ctx, res.ID, client.ContainerStartOptions{})
	return res.ID, err
}

// Kill kills the process in a container and keeps the container.
func (e *Engine) Kill(ctx context.Context, id string) error {
	_, err := e.cli.ContainerKill(ctx, id, client.ContainerKillOptions{})
	return err
}

// Remove removes a container, even if it runs.
func (e *Engine) Remove(ctx context.Context, id string) error {
	_, err := e.cli.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return err
}

// HasLabel reports whether an image has a label.
func (e *Engine) HasLabel(ctx context.Context, ref, label string) bool {
	res, err := e.cli.ImageInspect(ctx, ref)
	if err != nil || res.Config == nil {
		return false
	}
	_, ok := res.Config.Labels[label]
	return ok
}

// Publisher returns the name of the container that publishes the given TCP port on this machine, or "" if
// there is none.
func (e *Engine) Publisher(ctx context.Context, port int) string {
	res, err := e.cli.ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return ""
	}
	for _, c := range res.Items {
		for _, p := range c.Ports {
			if int(p.PublicPort) == port && len(c.Names) > 0 {
				return strings.TrimPrefix(c.Names[0], "/")
			}
		}
	}
	return ""
}

// MountedFile returns the content of a file in a container. The file must be in one of the container's
// mounts, from where MountedFile reads it.
func (e *Engine) MountedFile(ctx context.Context, id, path string) (string, error) {
	res, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	for _, m := range res.Container.Mounts {
		if rest, ok := strings.CutPrefix(path, m.Destination); ok && (rest == "" || rest[0] == '/') {
			data, err := os.ReadFile(m.Source + rest)
			return string(data), err
		}
	}
	return "", fmt.Errorf("%s is in no mount of container %s", path, id)
}

// Environment returns the environment of a container, as "NAME=value".
func (e *Engine) Environment(ctx context.Context, id string) ([]string, error) {
	res, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	return res.Container.Config.Env, nil
}
