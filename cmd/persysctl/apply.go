package main

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
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/manifest"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
)

// Limits of one ApplyWorkloads call. The scheduler accepts 1,024 workloads and 8 MiB;
// smaller calls are answered well within their deadline.
const (
	maxApplies    = 256
	maxApplyBytes = 2 << 20
)

type applyOptions struct {
	files     []string
	recursive bool
	name      string
	dryRun    bool
	waiting
}

func (c *cli) applyCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or change workloads from YAML or JSON",
		Long: `Create or change workloads from YAML or JSON: one or many documents, from files,
folders (*.yaml, *.yml, *.json) or standard input. All documents are checked before
the first is sent. Unchanged workloads are not touched, so applying again is safe.

A Compose file becomes one stack, without changes to the file. The stack's name is
that of --name, the name in the file, or its folder's; variables come from the file
.env beside it. "persysctl compose check" shows how each of its keys is treated, and
"persysctl schema" prints the JSON Schema of a specification.`,
		Example: `  persysctl apply -f web.yaml --wait
  persysctl apply -f docker-compose.yml --name shop
  persysctl apply -f deploy/ --dry-run
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
	f.StringVar(&o.name, "name", "", "name of the stack to create from a Compose file")
	f.BoolVar(&o.dryRun, "dry-run", false, "only check the files, and show what would be sent")
	o.flags(f, "the workloads run, or are stopped or deleted if their files say so")
	return cmd
}

func (c *cli) apply(ctx context.Context, o applyOptions) error {
	if len(o.files) == 0 {
		return failf(exitUsage, "persysctl apply -f FILE", "no file is given")
	}
	if err := o.check(); err != nil {
		return err
	}
	requests, err := c.parse(o)
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
			f.hint = cmp.Or(f.hint, "correct that and type the same command again: workloads that are applied already are not touched")
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
	late := time.After(o.timeout)
	for _, group := range slices.Sorted(maps.Keys(rolling)) {
		if err := c.awaitRollout(ctx, group, rolling[group], late); err != nil {
			return waited(failures.err(), err)
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

// take removes the next batch from the list.
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

// applied prints one result and adds its workloads to goals.
func (c *cli) applied(req *controlv1.ApplyWorkloadRequest, r *controlv1.ApplyWorkloadResponse, goals map[string]goal, failures *several) {
	id := req.GetWorkloadId()
	if !r.GetSuccess() {
		failures.add(failf(exitFailed, "", "%s was refused: %s", id, refusalText(r)))
		return
	}
	ids := r.GetWorkloadIds()
	if len(ids) == 0 {
		ids = []string{id}
	}
	for _, id := range ids {
		goals[id] = desiredGoal(req.GetDesiredState())
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
	}
	if c.output == outWide {
		line += fmt.Sprintf("  revision %s, generation %d, index %d", cmp.Or(r.GetRevisionId(), screen.None), r.GetGeneration().GetSequence(), r.GetIndex())
	}
	writeLines(c.out, []string{line})
}

func refusalText(r *controlv1.ApplyWorkloadResponse) string {
	text := screen.Clean(r.GetErrorMessage())
	if text == "" {
		text = r.GetFailureReason().String()
	}
	return text
}

// parse reads and checks all files. It prints every fault to stderr.
func (c *cli) parse(o applyOptions) ([]*controlv1.ApplyWorkloadRequest, error) {
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
	for _, s := range sources {
		reqs, err := spec.Parse(s.Name, s.Data, s.Options(o.name, c.readFile, c.environ))
		if err != nil {
			faults = append(faults, strings.Split(err.Error(), "\n")...)
			continue
		}
		for _, r := range reqs {
			if r.GetSpec() == nil && r.GetDesiredState() == "" {
				faults = append(faults, fmt.Sprintf("%s: workload %q has no specification: give it one of container, compose and vm", s.Name, r.GetWorkloadId()))
			}
			if other, twice := first[r.GetWorkloadId()]; twice {
				faults = append(faults, fmt.Sprintf("%s: id %q is also in %s", s.Name, r.GetWorkloadId(), other))
			}
			first[r.GetWorkloadId()] = s.Name
		}
		out = append(out, reqs...)
	}
	if len(faults) == 0 && o.name != "" {
		if n := len(out); n != 1 || out[0].GetWorkloadId() != o.name || out[0].GetSpec().GetCompose() == nil {
			return nil, failf(exitUsage, "", "--name %s names the stack of one Compose file; %s given", o.name, are(n))
		}
	}
	if len(faults) == 0 {
		return out, nil
	}
	for _, f := range faults {
		fmt.Fprintln(c.err, screen.Clean(f))
	}
	return nil, failf(exitFailed, "", "%s, nothing was sent", screen.Plural(len(faults), "mistake"))
}

// fileFailure is the failure of reading or writing a file; it names the file.
func fileFailure(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return failf(exitFailed, "", "%s: %v", at.Path, at.Err)
	}
	return failf(exitFailed, "", "%v", err)
}

// showDryRun lists the workloads that would be sent. It needs no scheduler.
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
			screen.Text(fmt.Sprint(max(1, s.GetCount()))), screen.Text(cpu), screen.Text(memory), screen.Text(origin(s)))
	}
	c.print(t)
	fmt.Fprintf(c.err, "%s checked, nothing was sent\n", screen.Plural(len(requests), "workload"))
	return nil
}

// origin is a workload's image, Git repository or disk image.
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
