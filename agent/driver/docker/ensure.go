package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
	"github.com/persys/compute/policy/asks"
)

// instance is one container of a workload, as the engine lists it.
type instance struct {
	container.Summary
	name string
}

// found holds the containers that carry the label of one workload.
type found struct {
	ours []instance
	// sibling holds the names of the workload's containers that other agents of our cluster run on this engine.
	sibling map[string]bool
}

// find lists the containers of a workload with one call.
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
		case driver.Owned, driver.Claimed:
			out.ours = append(out.ours, in)
		case driver.Sibling:
			out.sibling[in.name] = true
		}
	}
	return out, nil
}

// Foreign implements driver.Namespaced. It checks the namespace labels of the workload's containers.
func (d *Driver) Foreign(ctx context.Context, id driver.ID, namespace string) (bool, error) {
	have, err := d.find(ctx, id)
	return slices.ContainsFunc(have.ours, func(in instance) bool { return driver.OtherNamespace(in.Labels, namespace) }), err
}

func nameOf(item container.Summary) string {
	for _, n := range item.Names {
		// A name with a slash is a link that another container made to this container, not a name of its own.
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			return n
		}
	}
	return ""
}

// Ensure implements driver.Driver. It makes three calls to the engine for a new container (list, create,
// start), and one call if the container is up to date.
func (d *Driver) Ensure(ctx context.Context, spec driver.Spec) error {
	if err := d.identity.Check(spec); err != nil {
		return err
	}
	version, down := d.eng.APIVersion(ctx)
	want, err := translate(spec, version)
	if err := cmp.Or(err, down); err != nil { // a mistake in the specification is reported also while the engine is down
		return err
	}
	if want.config.Labels[driver.LabelHooks], err = d.eng.HooksLabel(want.config.Labels, want.hooks); err != nil {
		return err
	}
	if spec.DiskLimit > 0 && d.eng.SizesLayers(ctx) {
		want.host.StorageOpt = map[string]string{moby.LayerSize: strconv.FormatInt(spec.DiskLimit, 10)}
	}
	if want.host.LogConfig.Type == "" && len(want.host.LogConfig.Config) == 0 {
		want.host.LogConfig = d.eng.Rotation(ctx)
	}
	deadline := time.Now().Add(d.eng.CallTimeout())
	for {
		err := d.ensureOnce(ctx, spec, want)
		var late *inFlight
		if !errors.As(err, &late) || time.Now().After(deadline) {
			return moby.MaskFiles(err, spec.Body.GetContainer().GetMemoryFiles())
		}
		if !moby.Pause(ctx) {
			return err
		}
	}
}

// inFlight is the error of a call that found the engine still executing an earlier call for the same
// workload, whose caller has disconnected. There are two cases. The engine has reserved the container's name
// but does not list the container yet. Or the engine is removing the container but still lists it.
type inFlight struct{ cause error }

func (e *inFlight) Error() string { return "an earlier call is still under way: " + e.cause.Error() }
func (e *inFlight) Unwrap() error { return e.cause }

func (d *Driver) ensureOnce(ctx context.Context, spec driver.Spec, want settings) error {
	have, err := d.find(ctx, spec.ID)
	if err != nil {
		return err
	}
	for _, in := range have.ours {
		if err := driver.CheckNamespace(spec, "container "+in.name, in.Labels, d.of(in.Labels) == driver.Claimed); err != nil {
			return err
		}
	}
	keep, rest := d.split(have.ours, spec)
	if keep == nil {
		body := spec.Body.GetContainer()
		asked := asks.Container(body, asks.Image(body.GetImage()))
		if err := spec.Judge(driver.Container, asked, d.eng.Paths(ctx)); err != nil {
			return err
		}
		if err := d.eng.Signed(ctx, spec, asked); err != nil {
			return err
		}
		for _, text := range want.leftOut {
			d.eng.Warn(text, "workload", string(spec.ID))
		}
		if want.endpoints, err = d.join(ctx, spec, &want); err != nil {
			return err
		}
		if keep, err = d.create(ctx, spec, want, have); err != nil {
			return err
		}
	}
	for _, old := range rest {
		if active(old.State) && d.opt.Progress != nil {
			d.opt.Progress(spec.ID, "stopping the former container")
		}
		err := d.discard(ctx, old)
		if active(old.State) && d.opt.Progress != nil {
			d.opt.Progress(spec.ID, "")
		}
		if err != nil {
			return err
		}
	}
	if keep.name == stagedName(spec) {
		if err := d.takeName(ctx, spec, keep, have); err != nil {
			return d.undone(ctx, spec, keep, err)
		}
	}
	if err := d.connect(ctx, spec, keep); err != nil {
		return d.undone(ctx, spec, keep, err)
	}
	return d.undone(ctx, spec, keep, d.settle(ctx, spec.ID, keep, spec.Running, want.hooks.PostStart))
}

// undone returns an error that wraps inFlight if the error cause means that the container (parameter in)
// has disappeared. Otherwise it returns cause, which may be nil. A container may disappear after the caller
// of its create has disconnected: the engine lists the new container for a moment and then removes it.
func (d *Driver) undone(ctx context.Context, spec driver.Spec, in *instance, cause error) error {
	if !cerrdefs.IsNotFound(cause) {
		return cause
	}
	// If the error does not name the container, inspect the container, because the engine may list a removed
	// one for a moment.
	if !strings.Contains(cause.Error(), in.ID) {
		if _, err := d.eng.Inspect(ctx, in.ID); !cerrdefs.IsNotFound(err) {
			return cause // the engine reports a missing volume or network, and not the container
		}
	}
	return driver.Errorf(driver.RuntimeError, "start", "container %s of workload %q disappeared: %w", moby.Short(in.ID), spec.ID, &inFlight{cause})
}

// split returns the container that already matches spec (nil if there is none), and the workload's other
// containers, which an interrupted replacement left. If several containers match, split returns the one with
// the highest rank.
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

// rank returns a number that orders the containers of one workload: the driver keeps the container with the
// highest rank.
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

// contentOf returns the content hash of the specification from which a container was made; "" if it is not known. The
// hash is in a label. For a container without that label, contentOf returns the hash that the agent stored when it
// adopted the container; or the hash of spec, if the container's revision label equals the revision of spec.
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

// names returns the possible container names for spec, the preferred one first: the id, and the id with the
// node's name. The engine requires at least two characters, so for an id of one character names returns only
// the longer name.
func names(spec driver.Spec) []string {
	long := string(spec.ID) + "--" + spec.NodeID
	if len(spec.ID) < 2 {
		return []string{long}
	}
	return []string{string(spec.ID), long}
}

// stagedName returns the temporary name of a new container that is to replace a running one. The name
// contains the content, so that replacements with different contents never collide.
func stagedName(spec driver.Spec) string {
	sum := sha256.Sum256([]byte(spec.Content))
	return string(spec.ID) + "--" + spec.NodeID + "--" + hex.EncodeToString(sum[:4])
}

// create makes the container under its final name, or under the staged name if an older container still
// has the final name.
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
	return nil, moby.Classify("create", cmp.Or(conflict, error(driver.Errorf(driver.NameConflict, "create",
		"every possible container name of workload %q is used by another agent of the cluster on this engine: %q", spec.ID, names(spec)))))
}

// createAs creates a container, and pulls the image first if the engine reports it missing.
func (d *Driver) createAs(ctx context.Context, id driver.ID, name string, want settings) (string, error) {
	create := func(want settings) (string, error) { return d.createOnce(ctx, name, want) }
	made, err := d.withDevices(ctx, id, want, create)
	if !cerrdefs.IsNotFound(err) {
		return made, err
	}
	if _, err := d.eng.Have(ctx, want.image); err != nil { // the engine has the image, but for another platform
		return "", err
	}
	if err := d.eng.Pull(ctx, id, want.image, d.eng.PullTimeout()); err != nil {
		return "", err
	}
	made, err = d.withDevices(ctx, id, want, create)
	if cerrdefs.IsNotFound(err) {
		return "", driver.Errorf(driver.InvalidImage, "create", "image %s: pulled, but not found afterwards: %w", want.image.Name, err)
	}
	return made, err
}

func (d *Driver) createOnce(ctx context.Context, name string, want settings) (string, error) {
	ctx, cancel := d.eng.SeeThrough(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: want.config, HostConfig: want.host, NetworkingConfig: want.networking(), Name: name, Platform: want.image.Platform,
	})
	if want.host.StorageOpt != nil && d.eng.RefusesLayerSize(err) {
		want.host.StorageOpt = nil // the engine cannot enforce the disk limit; the agent will measure the disk usage instead
		res, err = d.eng.Client.ContainerCreate(ctx, client.ContainerCreateOptions{
			Config: want.config, HostConfig: want.host, NetworkingConfig: want.networking(), Name: name, Platform: want.image.Platform,
		})
	}
	if err != nil {
		return "", moby.Classify("create", err)
	}
	for _, text := range res.Warnings { // such as a limit that the kernel of this machine does not have
		d.eng.Warn("the engine warns about a new container: "+text, "container", name)
	}
	return res.ID, nil
}

// takeName renames a staged container to its final name, after the older container is removed.
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
	return nil // not fatal: the container also works under its temporary name
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

// nameTaken returns the error for a container name that is taken. If one of our containers has the name, or
// the engine lists no container with the name, the engine is still executing an earlier call. The error then
// wraps inFlight.
func (d *Driver) nameTaken(ctx context.Context, spec driver.Spec, name string, cause error) error {
	holder, err := d.eng.Inspect(ctx, name)
	if err != nil || holder.Config == nil {
		return driver.Errorf(driver.RuntimeError, "create", "name %q of workload %q: %w", name, spec.ID, &inFlight{cause})
	}
	who := "no label of ours"
	switch d.of(holder.Config.Labels) {
	case driver.Owned, driver.Claimed, driver.Sibling:
		return driver.Errorf(driver.RuntimeError, "create", "container %s of workload %q: %w", moby.Short(holder.ID), spec.ID, &inFlight{cause})
	case driver.Foreign:
		if cluster := holder.Config.Labels[driver.LabelCluster]; cluster != "" {
			who = "cluster " + cluster
		} else if holder.Config.Labels[driver.LabelManaged] == "true" {
			who = "an agent that set no node label made it, and this node's store does not know it"
		}
	}
	return driver.Errorf(driver.NameConflict, "create",
		"name %q of workload %q is taken by container %s (image %s, %s); rename or remove that container, or use another workload id",
		name, spec.ID, moby.Short(holder.ID), holder.Config.Image, who)
}

// settle starts an existing container and runs its post_start hooks if running is true, and stops it if running is false.
// If a hook fails, settle stops the container with a short grace period, so that the next start runs the hooks again.
func (d *Driver) settle(ctx context.Context, id driver.ID, in *instance, running bool, postStart []types.ServiceHook) error {
	if !running {
		if !active(in.State) {
			return nil
		}
		return d.stop(ctx, in.ID, driver.OwnGrace)
	}
	switch in.State {
	case container.StateRunning, container.StateRestarting:
		if !d.eng.Unready(in.ID) {
			return nil
		}
		if err := d.stopFailed(ctx, id, in); err != nil {
			return err
		}
	case container.StatePaused:
		callCtx, cancel := d.eng.Call(ctx)
		defer cancel()
		_, err := d.eng.Client.ContainerUnpause(callCtx, in.ID, client.ContainerUnpauseOptions{})
		return moby.Classify("start", err)
	}
	callCtx, cancel := d.eng.Call(ctx)
	defer cancel()
	if _, err := d.eng.Client.ContainerStart(callCtx, in.ID, client.ContainerStartOptions{}); err != nil {
		return moby.Classify("start", err)
	}
	if err := d.eng.PostStart(ctx, in.ID, postStart); err != nil {
		if ctx.Err() != nil {
			return ctx.Err() // a new order has arrived and must not wait for a stop; it decides whether the container is stopped
		}
		return errors.Join(err, d.stopFailed(ctx, id, in))
	}
	return nil
}

// stopFailed stops the container of a workload whose post_start hooks failed or were interrupted. Like stop, it first waits
// until nodes no longer send the container new connections.
func (d *Driver) stopFailed(ctx context.Context, id driver.ID, in *instance) error {
	if d.opt.Networks != nil {
		d.opt.Networks.Withdraw(ctx, id)
	}
	return d.eng.StopFailed(ctx, in.ID)
}

func active(state container.ContainerState) bool {
	switch state {
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		return true
	}
	return false
}

// stop stops a container. The engine kills the container after the container's own grace period, but at the
// latest after the duration most. It returns when the container has stopped or does not exist.
func (d *Driver) stop(ctx context.Context, id string, most time.Duration) error {
	in, err := d.eng.Inspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(err):
		return nil
	case err != nil:
		return moby.Classify("stop", err)
	}
	if most == driver.OwnGrace && d.opt.Networks != nil && in.State != nil && in.State.Running {
		d.opt.Networks.Withdraw(ctx, driver.ID(in.Config.Labels[driver.LabelWorkload]))
	}
	return d.eng.Stop(ctx, in, moby.StopGrace(in, most, d.opt.StopGrace))
}

// discard stops and removes a container and its anonymous volumes.
func (d *Driver) discard(ctx context.Context, in instance) error {
	if active(in.State) {
		if err := d.stop(ctx, in.ID, driver.OwnGrace); err != nil {
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
		// Another removal is in progress; wait until the container is gone.
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

// Halt implements driver.Driver.
func (d *Driver) Halt(ctx context.Context, id driver.ID, most time.Duration) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for _, in := range have.ours {
		if !active(in.State) {
			continue
		}
		if err := d.stop(ctx, in.ID, max(most, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Signal implements driver.Signaler.
func (d *Driver) Signal(ctx context.Context, id driver.ID, _, signal string) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for _, in := range have.ours {
		if err := d.eng.Signal(ctx, in.ID, signal); err != nil {
			return err
		}
	}
	return nil
}

// Remove implements driver.Driver.
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
	return d.leave(id)
}
