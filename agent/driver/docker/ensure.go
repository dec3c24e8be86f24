package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// instance is one container of a workload, as the engine's list has it.
type instance struct {
	container.Summary
	name string
}

// found is what carries one workload's label.
type found struct {
	ours []instance
	// sibling is the name that another agent of our cluster on this engine holds.
	sibling map[string]bool
}

// find costs one call, whatever the number of containers is.
func (d *Driver) find(ctx context.Context, id driver.ID) (found, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id)),
	})
	if err != nil {
		return found{}, moby.Classify("list", err)
	}
	out := found{sibling: make(map[string]bool)}
	for _, item := range res.Items {
		in := instance{Summary: item, name: nameOf(item)}
		switch d.of(item.Labels) {
		case driver.Ours, driver.Claimed:
			out.ours = append(out.ours, in)
		case driver.Sibling:
			out.sibling[in.name] = true
		}
	}
	return out, nil
}

func nameOf(item container.Summary) string {
	for _, n := range item.Names {
		// Links of other containers appear as further, longer names.
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			return n
		}
	}
	return ""
}

// Ensure is driver.Driver's. A new container costs three calls (list, create, start), one that is
// up to date costs one.
func (d *Driver) Ensure(ctx context.Context, spec driver.Spec) error {
	if err := d.identity.Check(spec); err != nil {
		return err
	}
	want, err := translate(spec)
	if err != nil {
		return err
	}
	if spec.DiskLimit > 0 && d.eng.SizesLayers(ctx) {
		want.host.StorageOpt = map[string]string{moby.LayerSize: strconv.FormatInt(spec.DiskLimit, 10)}
	}
	deadline := time.Now().Add(d.eng.CallTimeout())
	for {
		err := d.ensureOnce(ctx, spec, want)
		var late *inFlight
		if !errors.As(err, &late) || time.Now().After(deadline) {
			return err
		}
		if !moby.Pause(ctx) {
			return err
		}
	}
}

// inFlight says that the engine still carries out an earlier call for the workload, whose caller
// is gone: the name is taken by a container that cannot be seen yet, or one that was seen is taken back.
type inFlight struct{ cause error }

func (e *inFlight) Error() string { return "an earlier call is still under way: " + e.cause.Error() }
func (e *inFlight) Unwrap() error { return e.cause }

func (d *Driver) ensureOnce(ctx context.Context, spec driver.Spec, want settings) error {
	have, err := d.find(ctx, spec.ID)
	if err != nil {
		return err
	}
	keep, rest := d.split(have.ours, spec)
	if keep == nil {
		if keep, err = d.create(ctx, spec, want, have); err != nil {
			return err
		}
	}
	for _, old := range rest {
		if err := d.discard(ctx, old); err != nil {
			return err
		}
	}
	if keep.name == stagedName(spec) {
		if err := d.takeName(ctx, spec, keep, have); err != nil {
			return d.undone(ctx, spec, keep, err)
		}
	}
	return d.undone(ctx, spec, keep, d.settle(ctx, keep, spec.Running))
}

// undone tells a container that is no longer there from other failures. An engine takes back what it
// created for a caller that went away, after it has shown it for a moment: see inFlight.
func (d *Driver) undone(ctx context.Context, spec driver.Spec, in *instance, cause error) error {
	if !cerrdefs.IsNotFound(cause) {
		return cause // nil too
	}
	// The engine may still show for a moment what it says is not there.
	if !strings.Contains(cause.Error(), in.ID) {
		if _, err := d.eng.Inspect(ctx, in.ID); !cerrdefs.IsNotFound(err) {
			return cause // something that the container needs is missing
		}
	}
	return driver.Errorf(driver.RuntimeError, "start", "container %s of workload %q went away: %w", moby.Short(in.ID), spec.ID, &inFlight{cause})
}

// split picks the container that already is what spec wants. More than one container of a workload
// is what an interrupted replacement leaves; of equals the running one is kept.
func (d *Driver) split(ours []instance, spec driver.Spec) (*instance, []instance) {
	best := -1
	for i, in := range ours {
		if in.State == container.StateDead || in.State == container.StateRemoving {
			continue
		}
		if d.contentOf(in, spec) != spec.Content {
			continue
		}
		if best < 0 || rank(in) > rank(ours[best]) {
			best = i
		}
	}
	if best < 0 {
		return nil, ours
	}
	return &ours[best], slices.Delete(slices.Clone(ours), best, best+1)
}

// rank orders containers of one workload by how much they deserve to be it.
func rank(in instance) int {
	switch in.State {
	case container.StateRunning:
		return 4
	case container.StateRestarting, container.StatePaused:
		return 3
	case container.StateExited:
		return 2
	case container.StateCreated:
		return 1
	}
	return 0
}

// contentOf is the label, or for a container without it what the store noted at its adoption, or
// the spec's own content while the revision is the spec's.
func (d *Driver) contentOf(in instance, spec driver.Spec) string {
	if content := in.Labels[driver.LabelContent]; content != "" {
		return content
	}
	if d.opt.Content != nil {
		if content, ok := d.opt.Content(spec.ID, in.ID); ok {
			return content
		}
	}
	if revision := in.Labels[driver.LabelRevision]; revision != "" && revision == spec.Revision {
		return spec.Content
	}
	return ""
}

// names a container of spec may have, best first. An engine's name has at least two characters, so
// the shortest ids get only the longer one.
func names(spec driver.Spec) []string {
	long := string(spec.ID) + "--" + spec.NodeID
	if len(spec.ID) < 2 {
		return []string{long}
	}
	return []string{string(spec.ID), long}
}

// stagedName is of a replacement that waits for its predecessor's end. The content is part of it,
// so that replacements of different contents never collide.
func stagedName(spec driver.Spec) string {
	sum := sha256.Sum256([]byte(spec.Content))
	return string(spec.ID) + "--" + spec.NodeID + "--" + hex.EncodeToString(sum[:4])
}

// create makes the container under its own name, or staged if a predecessor of ours is there.
func (d *Driver) create(ctx context.Context, spec driver.Spec, want settings, have found) (*instance, error) {
	if err := d.eng.Refresh(ctx, spec.ID, want.image); err != nil {
		return nil, err
	}
	if len(have.ours) > 0 {
		name := stagedName(spec)
		id, err := d.createAs(ctx, spec.ID, name, want)
		if cerrdefs.IsConflict(err) {
			return nil, d.nameTaken(ctx, spec, name, err)
		}
		if err != nil {
			return nil, err
		}
		return &instance{Summary: container.Summary{ID: id, State: container.StateCreated}, name: name}, nil
	}
	var conflict error
	for _, name := range names(spec) {
		if have.sibling[name] {
			continue
		}
		id, err := d.createAs(ctx, spec.ID, name, want)
		switch {
		case err == nil:
			return &instance{Summary: container.Summary{ID: id, State: container.StateCreated}, name: name}, nil
		case !cerrdefs.IsConflict(err):
			return nil, err
		case !d.heldBySibling(ctx, name):
			return nil, d.nameTaken(ctx, spec, name, err)
		}
		conflict = err
	}
	return nil, moby.Classify("create", cmp.Or(conflict, error(driver.Errorf(driver.InvalidConfiguration, "create",
		"every name of workload %q is held by another agent of the cluster on this engine: %q", spec.ID, names(spec)))))
}

// createAs pulls the image if creating tells that it is missing.
func (d *Driver) createAs(ctx context.Context, id driver.ID, name string, want settings) (string, error) {
	made, err := d.createOnce(ctx, name, want)
	if !cerrdefs.IsNotFound(err) {
		return made, err
	}
	if err := d.eng.Pull(ctx, id, want.image, d.eng.PullTimeout()); err != nil {
		return "", err
	}
	made, err = d.createOnce(ctx, name, want)
	if cerrdefs.IsNotFound(err) {
		return "", driver.Errorf(driver.InvalidImage, "create", "image %s: pulled, but not found afterwards: %w", want.image.Name, err)
	}
	return made, err
}

func (d *Driver) createOnce(ctx context.Context, name string, want settings) (string, error) {
	ctx, cancel := d.eng.SeeThrough(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: want.config, HostConfig: want.host, Name: name,
	})
	if want.host.StorageOpt != nil && d.eng.RefusesLayerSize(err) {
		want.host.StorageOpt = nil // the agent measures instead
		res, err = d.eng.Client.ContainerCreate(ctx, client.ContainerCreateOptions{
			Config: want.config, HostConfig: want.host, Name: name,
		})
	}
	if err != nil {
		return "", moby.Classify("create", err)
	}
	return res.ID, nil
}

// takeName gives a staged container the workload's name after its predecessor is gone.
func (d *Driver) takeName(ctx context.Context, spec driver.Spec, in *instance, have found) error {
	for _, name := range names(spec) {
		if have.sibling[name] {
			continue
		}
		err := d.rename(ctx, in.ID, name)
		if cerrdefs.IsConflict(err) {
			if d.heldBySibling(ctx, name) {
				continue
			}
			return d.nameTaken(ctx, spec, name, err)
		}
		if err != nil {
			return moby.Classify("rename", err)
		}
		in.name = name
		return nil
	}
	return nil // the staged name serves as well as any
}

func (d *Driver) rename(ctx context.Context, id, name string) error {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	_, err := d.eng.Client.ContainerRename(ctx, id, client.ContainerRenameOptions{NewName: name})
	return err
}

func (d *Driver) heldBySibling(ctx context.Context, name string) bool {
	holder, err := d.eng.Inspect(ctx, name)
	return err == nil && holder.Config != nil && d.of(holder.Config.Labels) == driver.Sibling
}

// nameTaken says who holds the name. A holder that cannot be seen, or is ours after all, is that of
// an earlier call: see inFlight.
func (d *Driver) nameTaken(ctx context.Context, spec driver.Spec, name string, cause error) error {
	holder, err := d.eng.Inspect(ctx, name)
	if err != nil || holder.Config == nil {
		return driver.Errorf(driver.RuntimeError, "create", "name %q of workload %q: %w", name, spec.ID, &inFlight{cause})
	}
	who := "no label of ours"
	switch d.of(holder.Config.Labels) {
	case driver.Ours, driver.Claimed, driver.Sibling:
		return driver.Errorf(driver.RuntimeError, "create", "container %s of workload %q: %w", moby.Short(holder.ID), spec.ID, &inFlight{cause})
	case driver.Stranger:
		if cluster := holder.Config.Labels[driver.LabelCluster]; cluster != "" {
			who = "cluster " + cluster
		} else if holder.Config.Labels[driver.LabelManaged] == "true" {
			who = "an agent that set no node label; this node's store does not know it"
		}
	}
	return driver.Errorf(driver.InvalidConfiguration, "create",
		"name %q of workload %q is taken by container %s (image %s, %s); rename or remove that container, or use another workload id",
		name, spec.ID, moby.Short(holder.ID), holder.Config.Image, who)
}

// settle starts or stops.
func (d *Driver) settle(ctx context.Context, in *instance, running bool) error {
	if !running {
		if !active(in.State) {
			return nil
		}
		return d.stop(ctx, in.ID, d.opt.StopGrace)
	}
	callCtx, cancel := d.eng.Call(ctx)
	defer cancel()
	switch in.State {
	case container.StateRunning, container.StateRestarting:
		return nil
	case container.StatePaused:
		_, err := d.eng.Client.ContainerUnpause(callCtx, in.ID, client.ContainerUnpauseOptions{})
		return moby.Classify("start", err)
	}
	_, err := d.eng.Client.ContainerStart(callCtx, in.ID, client.ContainerStartOptions{})
	return moby.Classify("start", err)
}

func active(state container.ContainerState) bool {
	switch state {
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		return true
	}
	return false
}

// stop returns when the container has ended; one that is gone has.
func (d *Driver) stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int(math.Ceil(grace.Seconds()))
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+d.eng.CallTimeout())
	defer cancel()
	_, err := d.eng.Client.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return moby.Classify("stop", err)
}

// discard stops and deletes a container with its anonymous volumes.
func (d *Driver) discard(ctx context.Context, in instance) error {
	if active(in.State) {
		if err := d.stop(ctx, in.ID, d.opt.StopGrace); err != nil {
			return err
		}
	}
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	_, err := d.eng.Client.ContainerRemove(ctx, in.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil, cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsConflict(err):
		// Somebody else's removal is under way; it is our result too.
		return d.awaitGone(ctx, in.ID, err)
	}
	return moby.Classify("remove", err)
}

func (d *Driver) awaitGone(ctx context.Context, id string, cause error) error {
	for {
		if _, err := d.eng.Inspect(ctx, id); cerrdefs.IsNotFound(err) {
			return nil
		}
		if !moby.Pause(ctx) {
			return moby.Classify("remove", cause)
		}
	}
}

// Halt is driver.Driver's.
func (d *Driver) Halt(ctx context.Context, id driver.ID, grace time.Duration) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for _, in := range have.ours {
		if !active(in.State) {
			continue
		}
		if err := d.stop(ctx, in.ID, max(grace, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Remove is driver.Driver's. A running container gets Options.StopGrace; call Halt first for
// another.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for _, in := range have.ours {
		if err := d.discard(ctx, in); err != nil {
			return err
		}
	}
	return nil
}
