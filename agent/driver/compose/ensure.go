package compose

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// member is one container of a Compose project, from the engine's list.
type member struct {
	container.Summary
	project, service string
}

// containers lists every container on the engine that Compose made for a service, for any owner.
func (d *Driver) containers(ctx context.Context, labels ...string) ([]member, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", append(labels, api.ProjectLabel)...),
	})
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	out := make([]member, 0, len(res.Items))
	for _, item := range res.Items {
		if item.Labels[api.OneoffLabel] != "True" {
			out = append(out, member{item, item.Labels[api.ProjectLabel], item.Labels[api.ServiceLabel]})
		}
	}
	return out, nil
}

// of returns the owner of a container, network or volume from its labels. Projects of legacy v1 agents do
// not carry our labels and are recognised by their folder.
func (d *Driver) of(labels map[string]string) (driver.ID, driver.Ownership) {
	if labels[driver.LabelManaged] == "" {
		id := driver.ID(labels[api.ProjectLabel])
		if id != "" && d.identity.Owns != nil && labels[api.WorkingDirLabel] == LegacyDir+"/"+string(id) && d.identity.Owns(id) {
			return id, driver.Claimed
		}
		return "", driver.Stranger
	}
	if labels[driver.LabelKind] != string(driver.Compose) {
		return "", driver.Stranger
	}
	return driver.ID(labels[driver.LabelWorkload]), d.identity.Of(labels)
}

// find returns the containers of a workload by project. After an interrupted rename there may be two projects, otherwise one.
func (d *Driver) find(ctx context.Context, id driver.ID) (map[string][]member, error) {
	all, err := d.containers(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]member{}
	for _, m := range all {
		if of, ownership := d.of(m.Labels); of == id && (ownership == driver.Ours || ownership == driver.Claimed) {
			out[m.project] = append(out[m.project], m)
		}
	}
	return out, nil
}

// projectFor returns a workload's project and its containers, or the free project name for a new one.
func (d *Driver) projectFor(ctx context.Context, id driver.ID) (string, []member, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return "", nil, err
	}
	for project, members := range have {
		return project, members, nil
	}
	for _, name := range d.names(id) {
		all, err := d.containers(ctx, api.ProjectLabel+"="+name)
		if err != nil {
			return "", nil, err
		}
		free := true
		for _, m := range all {
			if _, ownership := d.of(m.Labels); ownership == driver.Stranger {
				return "", nil, driver.Errorf(driver.InvalidConfiguration, "create",
					"Compose project %q of workload %q is taken by container %s (image %s), which is not ours; remove that project, or use another workload id",
					name, id, moby.Short(m.ID), m.Image)
			}
			free = false // a sibling's project has this name
		}
		if free {
			return name, nil, nil
		}
	}
	return "", nil, driver.Errorf(driver.InvalidConfiguration, "create",
		"every project name of workload %q is held by another agent of the cluster on this engine: %q", id, d.names(id))
}

// takenBackAtMost bounds how often a stack is examined again because a container disappeared between the
// list and its start. If the caller of a create goes away, the engine may list the new container for a
// moment and then roll it back. A container that a stack names but does not exist looks the same.
const takenBackAtMost = 3

// Ensure implements driver.Driver. An up-to-date stack costs one call. Error texts of Compose and the
// engine may repeat their input, so values of the stack's environment are masked in errors.
func (d *Driver) Ensure(ctx context.Context, spec driver.Spec) error {
	err := d.ensure(ctx, spec)
	for range takenBackAtMost {
		if err == nil || !strings.Contains(err.Error(), "No such container") || !moby.Pause(ctx) {
			break
		}
		err = d.ensure(ctx, spec)
	}
	if err != nil && strings.Contains(err.Error(), "is ambiguous") && d.dropTwins(ctx, spec.ID) {
		err = d.ensure(ctx, spec)
	}
	return masked(err, spec.Body.GetCompose().GetEnv())
}

// dropTwins removes networks of the stack that have the same name as another of its networks, and reports
// whether there were any. The engine accepts duplicate names: if the answer to a create is lost, Compose may
// create the network a second time.
func (d *Driver) dropTwins(ctx context.Context, id driver.ID) bool {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	filters := make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id), driver.LabelKind+"="+string(driver.Compose))
	networks, err := d.eng.Client.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
	if err != nil {
		return false
	}
	left := map[string]int{}
	for _, n := range networks.Items {
		left[n.Name]++
	}
	dropped := false
	for _, n := range networks.Items {
		if _, ownership := d.of(n.Labels); ownership != driver.Ours || left[n.Name] < 2 {
			continue
		}
		// The engine refuses to remove a network that a container uses; that network stays.
		if _, err := d.eng.Client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err == nil {
			left[n.Name]--
			dropped = true
		}
	}
	return dropped
}

func (d *Driver) ensure(ctx context.Context, spec driver.Spec) error {
	if err := d.identity.Check(spec); err != nil {
		return err
	}
	if spec.Body.GetCompose() == nil {
		return invalid("spec: the Compose runtime takes compose, got %T (workload %q)", spec.Body.GetSpec(), spec.ID)
	}
	project, members, err := d.projectFor(ctx, spec.ID)
	if err != nil {
		return err
	}
	rec, err := d.recordOf(project)
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	if len(members) > 0 && d.contentOf(rec, members) == spec.Content {
		return d.settle(ctx, project, members, spec.Running)
	}
	commit := ""
	if rec != nil && rec.Workload == spec.ID && rec.Content == spec.Content {
		commit = rec.Commit // the update started at this commit, so it is finished at it
	}
	if want := spec.Body.GetCompose().GetManagedVolumes(); len(want) != len(spec.Volumes) {
		return invalid("compose.managed_volumes: %d are wanted, %d are ready", len(want), len(spec.Volumes))
	}
	if rec == nil && len(members) == 0 {
		if err := d.claim(project, spec); err != nil {
			return err
		}
	}
	s, err := d.load(ctx, spec, project, commit)
	if err != nil {
		return err
	}
	if err := d.pull(ctx, spec.ID, s); err != nil {
		return err
	}
	next := record{
		Workload: spec.ID, ClusterID: spec.ClusterID, NodeID: spec.NodeID, Revision: spec.Revision, Content: spec.Content,
		Generation: spec.Generation.String(), Commit: s.commit, Repository: s.repo, Services: s.expected(),
	}
	if err := d.note(project, next); err != nil {
		return err
	}
	if err := d.up(ctx, s, spec.Running); err != nil {
		return err
	}
	if !spec.Running {
		if err := d.halt(ctx, project, d.opt.StopGrace); err != nil {
			return err
		}
	}
	if err := d.forget(project, s.commit); err != nil {
		d.log.Warn("could not remove the files of former commits", "workload", string(spec.ID), "error", err)
	}
	next.Complete = true
	return d.note(project, next)
}

// up does not abort at once when ctx ends, because the engine would carry out the requests anyway. A name
// conflict may come from such an earlier call whose container is not listed yet.
func (d *Driver) up(ctx context.Context, s *stack, running bool) error {
	deadline := time.Now().Add(d.eng.CallTimeout())
	for {
		bounded, cancel := outlive(ctx)
		err := d.run.up(bounded, s, running)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		conflict := cerrdefs.IsConflict(err) || strings.Contains(err.Error(), "is already in use by container")
		if !conflict {
			return classify(err)
		}
		if time.Now().After(deadline) || d.heldByOthers(ctx, s) || !moby.Pause(ctx) {
			return driver.Errorf(driver.InvalidConfiguration, "up", "%w", err)
		}
	}
}

// heldByOthers reports whether a container of another project has a name that the stack needs.
func (d *Driver) heldByOthers(ctx context.Context, s *stack) bool {
	for name, service := range s.project.Services {
		want := service.ContainerName
		if want == "" {
			want = s.project.Name + api.Separator + name + api.Separator + "1"
		}
		in, err := d.eng.Inspect(ctx, want)
		if err == nil && in.Config != nil && in.Config.Labels[api.ProjectLabel] != s.project.Name {
			return true
		}
	}
	return false
}

// lastWord is how long Compose may continue after its caller's context ended.
const lastWord = 3 * time.Second

func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(ctx, func() { time.AfterFunc(lastWord, cancel) })
	return bounded, func() {
		unlink()
		cancel()
	}
}

// classify classifies an error of Compose: an engine error that it wraps, or one of its own texts.
func classify(err error) error {
	text := err.Error()
	for _, p := range []struct {
		text  string
		class driver.Class
	}{
		{"dependency failed to start", driver.RuntimeError},
		{"external volume", driver.InvalidConfiguration},
		{"declared as external, but could not be found", driver.InvalidConfiguration},
		{"depends on undefined", driver.InvalidSpecification},
	} {
		if strings.Contains(text, p.text) {
			return &driver.Error{Class: p.class, Op: "up", Err: err}
		}
	}
	return moby.Classify("start", err)
}

// settle starts or stops the existing containers.
func (d *Driver) settle(ctx context.Context, project string, members []member, running bool) error {
	if !running {
		return d.halt(ctx, project, d.opt.StopGrace)
	}
	idle := false
	for _, m := range members {
		switch m.State {
		case container.StateRunning, container.StateRestarting:
		case container.StatePaused:
			callCtx, cancel := d.eng.Call(ctx)
			_, err := d.eng.Client.ContainerUnpause(callCtx, m.ID, client.ContainerUnpauseOptions{})
			cancel()
			if err != nil {
				return moby.Classify("start", err)
			}
		default:
			idle = true
		}
	}
	if !idle {
		return nil
	}
	bounded, cancel := outlive(ctx)
	defer cancel()
	if err := d.run.start(bounded, project); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return classify(err)
	}
	return nil
}

// Halt implements driver.Driver.
func (d *Driver) Halt(ctx context.Context, id driver.ID, grace time.Duration) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for project := range have {
		if err := d.halt(ctx, project, max(grace, 0)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) halt(ctx context.Context, project string, grace time.Duration) error {
	all, err := d.containers(ctx, api.ProjectLabel+"="+project)
	if err != nil {
		return err
	}
	active := slices.ContainsFunc(all, func(m member) bool {
		return m.State == container.StateRunning || m.State == container.StatePaused || m.State == container.StateRestarting
	})
	if !active {
		return nil
	}
	if err := d.run.stop(ctx, project, grace); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return moby.Classify("stop", err)
	}
	return nil
}

// Remove implements driver.Driver. It removes containers, networks, volumes and the project's folder.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error { return d.remove(ctx, id, true) }

// Leave implements driver.Leaver. Other nodes cannot reach any of an engine's resources, so only the volumes
// may stay, and the files of an inline stack that replace volumes.
func (d *Driver) Leave(ctx context.Context, id driver.ID, volumes bool) error {
	return d.remove(ctx, id, !volumes)
}

func (d *Driver) remove(ctx context.Context, id driver.ID, volumes bool) error {
	projects, err := d.traces(ctx, id)
	if err != nil {
		return err
	}
	for _, project := range projects {
		if err := d.run.down(ctx, project, volumes); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if cerrdefs.IsNotFound(err) || errors.Is(err, api.ErrNotFound) {
				continue
			}
			return moby.Classify("remove", err)
		}
	}
	// Remove leftovers of a project whose containers are gone, and folders of stacks that never started.
	if err := d.sweep(ctx, id, volumes); err != nil {
		return err
	}
	for _, project := range append(projects, d.names(id)...) {
		rec, err := d.recordOf(project)
		if err != nil {
			return &driver.Error{Class: driver.ClassOf(err), Op: "remove", Err: err}
		}
		if rec == nil && !slices.Contains(projects, project) || rec != nil && rec.Workload != id {
			continue
		}
		if err := d.erase(project, id, volumes); err != nil {
			return &driver.Error{Class: driver.ClassOf(err), Op: "remove", Err: err}
		}
	}
	return nil
}

// traces returns the projects of our containers. It fails if a stranger's container is in one of them.
func (d *Driver) traces(ctx context.Context, id driver.ID) ([]string, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []string
	for project := range have {
		all, err := d.containers(ctx, api.ProjectLabel+"="+project)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if of, _ := d.of(m.Labels); of != id {
				return nil, driver.Errorf(driver.InvalidConfiguration, "remove",
					"Compose project %q of workload %q has a container %s that is not ours; remove that container first", project, id, moby.Short(m.ID))
			}
		}
		out = append(out, project)
	}
	slices.Sort(out)
	return out, nil
}

// sweep removes the networks, and with volumes set also the volumes, that carry the workload's labels.
func (d *Driver) sweep(ctx context.Context, id driver.ID, volumes bool) error {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	filters := make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id), driver.LabelKind+"="+string(driver.Compose))
	networks, err := d.eng.Client.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
	if err != nil {
		return moby.Classify("remove", err)
	}
	for _, n := range networks.Items {
		if _, ownership := d.of(n.Labels); ownership != driver.Ours {
			continue
		}
		_, err := d.eng.Client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) && !d.leftToOthers(ctx, id, "network", n.ID, n.Name) {
			return moby.Classify("remove", err)
		}
	}
	if !volumes {
		return nil
	}
	there, err := d.eng.Client.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
	if err != nil {
		return moby.Classify("remove", err)
	}
	for _, v := range there.Items {
		if _, ownership := d.of(v.Labels); ownership != driver.Ours {
			continue
		}
		_, err := d.eng.Client.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) && !d.leftToOthers(ctx, id, "volume", v.Name, v.Name) {
			return moby.Classify("remove", err)
		}
	}
	return nil
}

// leftToOthers reports whether a network or volume that the engine refused to remove is used only by
// containers of other owners. A delete does not wait for those.
func (d *Driver) leftToOthers(ctx context.Context, id driver.ID, kind, ref, name string) bool {
	by, err := d.users(ctx, kind, ref)
	if err != nil || len(by) == 0 {
		return false
	}
	var names []string
	for _, c := range by {
		if of, ownership := d.of(c.Labels); of == id && (ownership == driver.Ours || ownership == driver.Claimed) {
			return false
		}
		names = append(names, strings.TrimPrefix(strings.Join(c.Names, " "), "/"))
	}
	d.log.Warn("a "+kind+" of a deleted stack stays, because other containers use it", "workload", string(id), kind, name, "containers", names)
	return true
}

// users returns the containers of any owner that use a network or volume.
func (d *Driver) users(ctx context.Context, kind, ref string) ([]container.Summary, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add(kind, ref)})
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	return res.Items, nil
}
