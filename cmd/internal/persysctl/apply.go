package persysctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/manifest"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// Limits of one ApplyWorkloads call. The scheduler accepts up to 1,024 workloads and 8 MiB. These limits are
// smaller, so that a call is answered well within its deadline.
const (
	maxApplies    = 256
	maxApplyBytes = 2 << 20
)

type applyOptions struct {
	files     []string
	recursive bool
	name      string
	envFiles  []string
	dryRun    bool
	discard   bool
	condition string
	waiting
}

func (c *cli) applyCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or change workloads from YAML or JSON",
		Long: `Create or change workloads from YAML or JSON: one or many documents, from files,
folders (*.yaml, *.yml, *.json) or standard input. All documents are checked before
the first is sent. Unchanged workloads are not touched, so applying again is safe. If a
file is older than the present revision of a workload, the answer names the fields that
the file sets back. "persysctl plan" names them before the apply, and --if-revision refuses
the apply.

A Compose file becomes one stack, without changes to the file, as with docker compose -f
FILE: the stack's name is that of --name, COMPOSE_PROJECT_NAME, the name in the file, or
its folder's. Variables and COMPOSE_PROFILES come from the shell and from the file .env
beside it, or from --env-file. "persysctl compose check" shows how each of its keys is
treated, and "persysctl schema" prints the JSON Schema of a specification.`,
		Example: `  persysctl apply -f web.yaml --wait
  persysctl apply -f docker-compose.yml --name shop
  persysctl apply -f deploy/ --dry-run
  persysctl apply -f web.yaml --if-revision 7
  cat web.json | persysctl apply -f -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: files are named with -f", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return c.apply(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "file", "f", nil, "file, folder, or - for standard input; may be repeated")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "read subfolders too")
	stackFlags(f, &o)
	discardFlag(f, &o.discard)
	revisionFlag(f, &o.condition)
	f.BoolVar(&o.dryRun, "dry-run", false, "only check the files, and show what would be sent")
	o.flags(f, "the workloads run, jobs have finished, or the workloads are stopped or deleted if their files say so")
	return cmd
}

func (c *cli) apply(ctx context.Context, o applyOptions) error {
	if len(o.files) == 0 {
		return failf(exitUsage, "persysctl apply -f FILE", "no file is given")
	}
	if err := o.check(); err != nil {
		return err
	}
	requests, err := c.parse(ctx, o)
	if err != nil {
		return err
	}
	if o.dryRun {
		if err := c.load(); err != nil {
			return err
		}
		if err := c.place(requests); err != nil {
			return err
		}
		return c.showDryRun(requests)
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	if err := c.place(requests); err != nil {
		return err
	}
	failures := &several{c: c}
	answers := &clusterv1.ApplyWorkloadsResponse{}
	goals, rolling := map[string]goal{}, map[string]*controlv1.Generation{}
	through, broke := 0, false
	for len(requests) > 0 {
		batch := take(&requests)
		got, err := c.send(ctx, batch)
		if err != nil {
			if len(answers.Results) == 0 {
				return err
			}
			f := c.explain(err, true)
			f.text = fmt.Sprintf("%s (%s had been applied before)", strings.TrimSuffix(f.text, "."), screen.Plural(through, "workload"))
			f.hint = cmp.Or(f.hint, "correct the fault and run the same command again: workloads that are applied already do not change")
			failures.add(f)
			broke = true
			break
		}
		answers.Index = max(answers.Index, got.GetIndex())
		for i, r := range got.GetResults() {
			answers.Results = append(answers.Results, r)
			c.applied(batch[i], r, goals, failures)
			if r.GetSuccess() {
				through++
			}
			if r.GetRollout() != nil {
				rolling[batch[i].GetWorkloadId()] = r.GetRollout()
			}
		}
	}
	if c.machine() {
		if err := c.emitMessage(answers); err != nil {
			return err
		}
	}
	if !o.wait || broke {
		return failures.err()
	}
	o.limit(goals)
	late := time.After(o.timeout)
	for _, group := range slices.Sorted(maps.Keys(rolling)) {
		awaits, err := c.awaitRollout(ctx, group, rolling[group], late)
		if err != nil {
			return waited(failures.err(), err)
		}
		if awaits {
			maps.DeleteFunc(goals, func(id string, _ goal) bool { return fsm.MadeByCount(group, id) })
		}
	}
	return waited(failures.err(), c.awaitAll(ctx, goals, answers.GetIndex(), o.timeout, late))
}

func are(n int) string {
	if n == 1 {
		return "1 specification is"
	}
	return fmt.Sprintf("%d specifications are", n)
}

// take removes the next batch of requests from the list and returns it.
func take(list *[]*controlv1.ApplyWorkloadRequest) []*controlv1.ApplyWorkloadRequest {
	n, size := 0, 0
	for n < len(*list) && n < maxApplies {
		size += proto.Size((*list)[n])
		if n > 0 && size > maxApplyBytes {
			break
		}
		n++
	}
	batch := (*list)[:n]
	*list = (*list)[n:]
	return batch
}

func (c *cli) send(ctx context.Context, batch []*controlv1.ApplyWorkloadRequest) (*clusterv1.ApplyWorkloadsResponse, error) {
	if len(batch) == 1 {
		r, err := change(ctx, c, c.control.ApplyWorkload, batch[0])
		if err != nil {
			return nil, err
		}
		return &clusterv1.ApplyWorkloadsResponse{Results: []*controlv1.ApplyWorkloadResponse{r}, Index: r.GetIndex()}, nil
	}
	r, err := change(ctx, c, c.cluster.ApplyWorkloads, &clusterv1.ApplyWorkloadsRequest{Workloads: batch})
	if err == nil && len(r.GetResults()) != len(batch) {
		err = failf(exitFailed, "persysctl list", "the scheduler answered for %d of %d workloads", len(r.GetResults()), len(batch))
	}
	return r, err
}

// applied prints the result r that ApplyWorkloads returned for the workload in req. It adds the states for which --wait
// must wait to goals.
func (c *cli) applied(req *controlv1.ApplyWorkloadRequest, r *controlv1.ApplyWorkloadResponse, goals map[string]goal, failures *several) {
	id := req.GetWorkloadId()
	if !r.GetSuccess() {
		text := cmp.Or(r.GetErrorMessage(), r.GetFailureReason().String())
		if reasons := c.located(id, text); len(reasons) > 1 {
			c.tell(reasons)
			failures.add(failf(exitFailed, "", "%s was refused", id))
		} else {
			failures.add(failf(exitFailed, "", "%s was refused: %s", id, strings.Join(reasons, "")))
		}
		return
	}
	ids := r.GetWorkloadIds()
	if len(ids) == 0 {
		ids = []string{id}
	}
	state, none := req.GetDesiredState(), req.GetSpec() != nil && req.Spec.Count != nil && req.Spec.GetCount() == 0
	if none && spec.DesiredState(state) == fsm.DesiredRunning {
		state = "stopped"
	}
	for _, id := range ids {
		if spec.OnEveryNode(req.GetSpec()) && id != req.GetWorkloadId() {
			continue // --wait waits for the members of a system workload together with it
		}
		goals[id] = desiredGoal(state)
		switch {
		case spec.DesiredState(state) != fsm.DesiredRunning:
		case req.GetSpec().GetAutoscale() != nil:
			goals[id] = goalKept() // a group that a person scaled to 0 keeps 0 members
		case spec.IsJob(req.GetSpec()) && !spec.IsTemplate(req.GetSpec()):
			g := goalFinished()
			if spec.OnEveryNode(req.GetSpec()) { // the members finish, and not the workload that makes them
				g = goalStatus("Running")
				g.job = true
			}
			goals[id] = g
		}
	}
	for _, id := range r.GetRemovedWorkloadIds() {
		goals[id] = goalDeleted()
	}
	if c.machine() {
		return
	}
	what, s := "applied", screen.Good
	if r.GetRollout() != nil {
		what = "applied, a few members at a time"
	}
	if r.GetUnchanged() {
		what, s = "unchanged", screen.Dim
	}
	line := id + " " + c.paint.Paint(s, what)
	if len(ids) > 1 || ids[0] != id {
		line += fmt.Sprintf(": %s to %s", ids[0], ids[len(ids)-1])
		if len(ids) == 1 {
			line = id + " " + c.paint.Paint(s, what) + ": " + ids[0]
		}
		if none {
			line += ", stopped; none runs"
		}
	}
	line += removed(r.GetRemovedWorkloadIds())
	if c.output == outWide {
		line += fmt.Sprintf("  revision %s, generation %d, index %d", cmp.Or(r.GetRevisionId(), screen.None), r.GetGeneration().GetSequence(), r.GetIndex())
	}
	writeLines(c.out, append([]string{line}, c.takenBack("  ", r.GetTakesBack())...))
}

// removed is the text about the members of a group that a change deletes; "" if there are none.
func removed(ids []string) string {
	switch len(ids) {
	case 0:
		return ""
	case 1:
		return "; deletes " + ids[0]
	}
	return "; deletes " + ids[0] + " to " + ids[len(ids)-1]
}

// takenBack returns a line for each field that an apply sets back to an earlier value. An apply does that
// if its file is older than the workload's present revision.
func (c *cli) takenBack(before string, list []*controlv1.TakenBack) (lines []string) {
	for _, b := range list {
		text := before + c.paint.Paint(screen.Warn, "takes back ") + screen.Clean(b.GetField())
		if b.GetBefore() != "" || b.GetAfter() != "" {
			text += ": " + screen.Clean(cmp.Or(b.GetBefore(), screen.None)) + " → " + screen.Clean(cmp.Or(b.GetAfter(), screen.None))
		}
		if b.GetRevision() > 0 {
			text += ", set"
			if by := b.GetBy(); by != "" {
				text += " by " + screen.Clean(by[strings.LastIndexByte(by, '/')+1:])
			}
			text += fmt.Sprintf(" in revision %d", b.GetRevision())
			if at := c.ago(b.GetAppliedAt()); at != screen.None {
				text += ", " + at
			}
		}
		lines = append(lines, text)
	}
	return lines
}

// revisionFlag defines --if-revision, the condition under which a change is made.
func revisionFlag(f *pflag.FlagSet, condition *string) {
	f.StringVar(condition, "if-revision", "", "refuse unless this is the workload's present revision: its number (see persysctl history) or etag; 0 = it does not exist")
}

// located splits text, the scheduler's reason for refusing workload id, into lines. To each error about a field it
// adds the file and line of that field, if they are known.
func (c *cli) located(id, text string) []string {
	doc := c.documents[id]
	if cut := strings.LastIndexByte(id, '-'); doc == nil && cut > 0 {
		doc = c.documents[id[:cut]] // id is a member of a workload with count, as web-0 of web
	}
	if doc != nil {
		text = doc.Locate(text)
	}
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, screen.Clean(line))
	}
	return lines
}

// tell prints lines to stderr.
func (c *cli) tell(lines []string) {
	for _, line := range lines {
		fmt.Fprintln(c.err, line)
	}
}

func refusalText(r *controlv1.ApplyWorkloadResponse) string {
	text := screen.Clean(r.GetErrorMessage())
	if text == "" {
		text = r.GetFailureReason().String()
	}
	return text
}

// parse reads and checks all files. It prints every fault to stderr.
func (c *cli) parse(ctx context.Context, o applyOptions) ([]*controlv1.ApplyWorkloadRequest, error) {
	if slices.Contains(o.files, "") {
		return nil, usagef("-f must name a file, a folder or -")
	}
	sources, err := manifest.Read(o.files, o.recursive, c.in)
	if err != nil {
		return nil, fileFailure(err)
	}
	var out []*controlv1.ApplyWorkloadRequest
	var faults []string
	first := map[string]string{}
	c.documents = map[string]*spec.Document{}
	packer := c.packer(ctx, o.envFiles)
	for _, s := range sources {
		packer.from = s.Name
		docs, err := spec.Documents(s.Name, s.Data, s.Options(o.name, c.readFile, packer.pack))
		if err != nil {
			faults = append(faults, strings.Split(err.Error(), "\n")...)
			continue
		}
		for i := range docs {
			r := docs[i].Request
			out, c.documents[r.GetWorkloadId()] = append(out, r), &docs[i]
			if r.GetSpec() == nil && r.GetDesiredState() == "" {
				faults = append(faults, fmt.Sprintf("%s: workload %q has no specification: give it one of container, compose and vm", s.Name, r.GetWorkloadId()))
			}
			if other, twice := first[r.GetWorkloadId()]; twice {
				faults = append(faults, fmt.Sprintf("%s: id %q is also in %s", s.Name, r.GetWorkloadId(), other))
			}
			first[r.GetWorkloadId()] = s.Name
		}
	}
	if len(faults) == 0 && o.name != "" {
		if n := len(out); n != 1 || out[0].GetWorkloadId() != o.name || out[0].GetSpec().GetCompose() == nil {
			return nil, failf(exitUsage, "", "--name %s names the stack of one Compose file; %s given", o.name, are(n))
		}
	}
	if len(faults) == 0 && o.condition != "" && len(out) != 1 {
		return nil, failf(exitUsage, "", "--if-revision is the condition of one workload; %s given", are(len(out)))
	}
	if len(faults) == 0 {
		for _, r := range out {
			r.DiscardData, r.IfRevision = o.discard, o.condition
		}
		packer.tell(c.err)
		return out, nil
	}
	for i := range faults {
		faults[i] = screen.Clean(faults[i])
	}
	c.tell(faults)
	return nil, failf(exitFailed, "", "%s, nothing was sent", screen.Plural(len(faults), "mistake"))
}

// fileFailure is the error for a file that cannot be read or written.
func fileFailure(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return failf(exitFailed, "", "%s: %v", at.Path, at.Err)
	}
	return failf(exitFailed, "", "%v", err)
}

// showDryRun lists the workloads that would be sent. It does not call a scheduler.
func (c *cli) showDryRun(requests []*controlv1.ApplyWorkloadRequest) error {
	if c.machine() {
		return c.emitMessage(&clusterv1.ApplyWorkloadsRequest{Workloads: requests})
	}
	t := screen.NewTable(
		screen.Column{Title: "WORKLOAD", Gives: 1, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "TYPE"}, screen.Column{Title: "DESIRED"},
		screen.Column{Title: "COUNT", Right: true}, screen.Column{Title: "CPU", Right: true}, screen.Column{Title: "MEMORY", Right: true},
		screen.Column{Title: "IMAGE OR SOURCE", Gives: 2, Least: 16, Keeps: screen.Tail})
	for _, r := range requests {
		s, res := r.GetSpec(), r.GetSpec().GetResources()
		cpu, memory := screen.None, screen.None
		if v := res.GetCpuMillicores(); v > 0 {
			cpu = screen.Cores(v)
		}
		if v := res.GetMemoryMb(); v > 0 {
			memory = screen.MiB(v)
		}
		t.Add(screen.Text(r.GetWorkloadId()), screen.Text(s.GetType()), screen.Text(cmp.Or(r.GetDesiredState(), "running")),
			screen.Text(copies(s)), screen.Text(cpu), screen.Text(memory), screen.Text(origin(s)))
	}
	c.print(t)
	fmt.Fprintf(c.err, "%s checked, nothing was sent\n", screen.Plural(len(requests), "workload"))
	return nil
}

// copies returns the number of members of a specification: its count, or 1.
func copies(s *controlv1.WorkloadSpec) string {
	if j := s.GetJob(); j != nil && j.Completions != nil {
		return fmt.Sprint(j.GetCompletions())
	}
	if s == nil || s.Count == nil {
		return "1"
	}
	return fmt.Sprint(s.GetCount())
}

// origin returns the source of a workload: its image, Git repository or disk image.
func origin(s *controlv1.WorkloadSpec) string {
	switch {
	case s.GetContainer() != nil:
		return s.GetContainer().GetImage()
	case s.GetCompose().GetGitRepo() != "":
		return s.GetCompose().GetGitRepo()
	case s.GetCompose() != nil:
		return "inline"
	}
	return s.GetVm().GetOsImage()
}
