package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/encode"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
)

func (c *cli) getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get WORKLOAD", Aliases: []string{"describe"}, Short: "Show one workload in detail, with its latest events",
		Args: args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.get(ctx, args[0]) }),
	}
}

func (c *cli) get(ctx context.Context, id string) error {
	r, err := read(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
	if err != nil {
		return c.orGroup(ctx, id, err)
	}
	return c.emit(r, func() {
		c.showWorkload(r.GetWorkload())
		c.showRecent(ctx, &clusterv1.EventsRequest{WorkloadId: id, Tail: 8})
	})
}

// orGroup adds to a "not found" that there is a group of that name.
func (c *cli) orGroup(ctx context.Context, id string, err error) error {
	var f *failure
	if !errors.As(err, &f) || f.code != exitNotFound {
		return err
	}
	f.text = fmt.Sprintf("workload %q not found", id)
	f.hint = "persysctl list"
	if members, merr := c.members(ctx, id); merr == nil && len(members) > 0 {
		f.text += fmt.Sprintf(", but a group of %s has that name", plural(len(members), "workload"))
		f.hint = "persysctl list --group " + id
	}
	return f
}

// members lists the ids of a group.
func (c *cli) members(ctx context.Context, group string) ([]string, error) {
	r, err := c.allPages(ctx, &controlv1.ListWorkloadsRequest{Group: group})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range r.GetWorkloads() {
		out = append(out, w.GetWorkloadId())
	}
	slices.SortFunc(out, natural)
	return out, nil
}

// targets lists the workloads that a change of id affects: the workload, or else the members
// that a count made in the group of that name.
func (c *cli) targets(ctx context.Context, id string) []string {
	if _, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()}); status.Code(err) == codes.NotFound {
		members, _ := c.members(ctx, id) // after an error the id is waited for
		members = slices.DeleteFunc(members, func(m string) bool { return !fsm.MadeByCount(id, m) })
		if len(members) > 0 {
			return members
		}
	}
	return []string{id}
}

func (c *cli) showWorkload(w *controlv1.WorkloadView) {
	f := &screen.Facts{}
	where := screen.Styled(screen.Clean(w.GetStatus()), screen.StateStyle(w.GetStatus()))
	if node := w.GetAssignedNodeId(); node != "" {
		where.Text += " on " + node
	}
	if w.GetDesiredState() != w.GetStatus() && w.GetDesiredState() != "" {
		where.Text += " (desired: " + w.GetDesiredState() + ")"
	}
	f.Add("Workload", screen.Styled(screen.Clean(w.GetWorkloadId()), screen.Bold))
	f.Add("Status", where)
	if w.GetReason().GetCode() != "" || w.GetStatus() != w.GetDesiredState() {
		f.Add("Reason", screen.Text(reasonText(w)))
	}
	if w.GetRetryAttempts() > 0 || w.GetRetryNextAt() != nil {
		f.Add("Retry", screen.Text(c.retryText(w)))
	}
	switch m := w.GetMessage(); { // the agent's, one line
	case m == "":
	case w.GetType() == "compose":
		f.Add("Services", screen.Text(m)) // "service: state; service: state"
	case w.GetType() == "vm" && w.GetStatus() == "Running":
		f.Add("Note", screen.Text(m)) // for example, that the guest has no address
	}
	f.Add("Type", screen.Text(joinNonEmpty(", ", w.GetType(), w.GetImageOrSource())))
	if r := w.GetSpec().GetResources(); r != nil {
		f.Add("Resources", screen.Text(resourcesText(r)))
	}
	if ns := w.GetNamespace(); ns != "" && ns != "default" {
		f.Add("Namespace", screen.Text(ns))
	}
	f.Add("Group", screen.Text(w.GetGroup()))
	if w.GetPriority() != 0 {
		f.Add("Priority", screen.Text(fmt.Sprint(w.GetPriority())))
	}
	if w.GetExclusive() {
		f.Add("Exclusive", screen.Text("yes: never run by two nodes"))
	}
	if h := w.GetHealth(); h != "" {
		text := h
		if h != "healthy" {
			text += ", and therefore not in DNS"
		}
		f.Add("Health", screen.Text(text))
	}
	f.Add("Addresses", screen.Text(strings.Join(w.GetAddresses(), ", ")))
	f.Add("Ports", screen.Text(portsText(w.GetPorts())))
	f.Add("Labels", screen.Text(labelsText(w.GetLabels())))
	if u := w.GetUsage(); u != nil {
		text := fmt.Sprintf("CPU %s %%, memory %s, network in %s out %s", number(u.GetCpuPercent(), 1),
			bytesize(u.GetMemoryBytes()), bytesize(u.GetNetRxBytes()), bytesize(u.GetNetTxBytes()))
		if limit := u.GetDiskLimitBytes(); limit > 0 {
			by := "measured"
			if u.GetDiskCapped() {
				by = "enforced by the engine"
			}
			text += fmt.Sprintf(", disk %s of %s (%s)", bytesize(u.GetDiskBytes()), bytesize(limit), by)
		}
		f.Add("Usage", screen.Text(text))
	}
	revision := w.GetRevisionId()
	if own := w.GetCallerRevisionId(); own != "" {
		revision += " (yours: " + own + ")"
	}
	f.Add("Revision", screen.Text(revision))
	accepted := "accepted by the agent"
	if !w.GetAssignmentAcknowledged() {
		accepted = "not yet accepted by an agent"
	}
	f.Add("Generation", screen.Text(fmt.Sprintf("%d, %s", w.GetGeneration().GetSequence(), accepted)))
	f.Add("Created", screen.Text(c.ago(w.GetCreatedAt())))
	f.Add("Changed", screen.Text(c.ago(w.GetLastUpdated())))
	c.printFacts(f)
	c.showLastActions(w.GetLastActions())
	if s := w.GetSpec(); s != nil {
		data, err := encode.YAML(s, false)
		if err != nil {
			return // cannot happen: the specification has just been decoded
		}
		c.section("Specification (secrets are hidden)")
		for _, line := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
			writeLines(c.out, []string{"  " + line})
		}
	}
}

func reasonText(w *controlv1.WorkloadView) string {
	code, message := w.GetReason().GetCode(), w.GetReason().GetMessage()
	if message == "" {
		message = orText(w.GetMessage(), w.GetFailureReason())
	}
	return joinNonEmpty(": ", code, message)
}

func (c *cli) retryText(w *controlv1.WorkloadView) string {
	out := plural(w.GetRetryAttempts(), "attempt")
	if most := w.GetRetryMaxAttempts(); most > 0 {
		out = fmt.Sprintf("%d of %d attempts", w.GetRetryAttempts(), most)
	}
	if next := w.GetRetryNextAt(); next != nil {
		if left := next.AsTime().Sub(c.now()); left > 0 {
			return out + ", next in " + span(left)
		}
		return out + ", next is due"
	}
	return out
}

func resourcesText(r *controlv1.ResourceRequirements) string {
	var parts []string
	if v := r.GetCpuMillicores(); v > 0 {
		parts = append(parts, plural2(cores(v), "core"))
	}
	if v := r.GetMemoryMb(); v > 0 {
		parts = append(parts, mib(v)+" memory")
	}
	if v := r.GetDiskGb(); v > 0 {
		part := gib(v) + " disk"
		if r.GetStoragePool() != "" {
			part += " from " + r.GetStoragePool()
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func plural2(n, what string) string {
	if n == "1" {
		return n + " " + what
	}
	return n + " " + what + "s"
}

func portsText(ports []*controlv1.Port) string {
	var out []string
	for _, p := range ports {
		host := fmt.Sprint(p.GetHostPort())
		if p.GetHostPort() == 0 {
			host = "any"
		}
		protocol := orText(p.GetProtocol(), "tcp")
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s→%d/%s %s", host, p.GetContainerPort(), protocol, p.GetName())))
	}
	return strings.Join(out, ", ")
}

func labelsText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ", ")
}

func joinNonEmpty(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

type deleteOptions struct {
	force, yes bool
	waiting
}

func (c *cli) deleteCommand() *cobra.Command {
	var o deleteOptions
	cmd := &cobra.Command{
		Use: "delete WORKLOAD…", Aliases: []string{"rm"}, Short: "Delete workloads, or all of a group",
		Long: `Delete workloads. The id of a group that a count made deletes its members. The record
of a workload is removed when its node has confirmed that nothing is left of it. With
--force it is removed at once, for nodes that never come back.`,
		Example: "  persysctl delete web\n  persysctl delete web-1 web-2 --wait",
		Args:    args(1, -1, "WORKLOAD"), ValidArgsFunction: c.completeWorkloads,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.delete(ctx, args, o) }),
	}
	f := cmd.Flags()
	f.BoolVar(&o.force, "force", false, "remove the record without the node's confirmation; the node may still run the workload")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	o.flags(f, "the workloads are deleted")
	return cmd
}

func (c *cli) delete(ctx context.Context, ids []string, o deleteOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.force && !o.yes {
		if err := c.confirm(fmt.Sprintf("Forget %s even if a node still runs it?", strings.Join(ids, ", "))); err != nil {
			return err
		}
	}
	failures := &several{c: c}
	goals := map[string]goal{}
	var index uint64
	for _, id := range ids {
		targets := []string{id}
		if o.wait {
			// A deleted group no longer has members, so they are listed first.
			targets = c.targets(ctx, id)
		}
		r, err := change(ctx, c, c.control.DeleteWorkload, &controlv1.DeleteWorkloadRequest{WorkloadId: id, Force: o.force})
		switch {
		case err != nil:
			failures.add(err)
		case !r.GetSuccess():
			failures.add(c.refusedWorkload(ctx, id, r.GetErrorMessage()))
		default:
			index = max(index, r.GetIndex())
			for _, t := range targets {
				goals[t] = goalDeleted()
			}
			c.done(id, "deleting", r)
		}
	}
	if !o.wait {
		return failures.err()
	}
	return waited(failures.err(), c.awaitAll(ctx, goals, index, o.timeout, time.After(o.timeout)))
}

// refusedWorkload explains a refusal in the answer of a call, which has no gRPC code.
func (c *cli) refusedWorkload(ctx context.Context, id, why string) error {
	_, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
	if err != nil {
		if f := c.explain(err, false); f.code == exitNotFound {
			return c.orGroup(ctx, id, f)
		}
	}
	f := &failure{code: exitFailed, text: id + " was refused: " + screen.Clean(orText(why, "no reason given"))}
	if m := nextCommand.FindStringSubmatchIndex(f.text); m != nil {
		f.hint, f.text = f.text[m[2]:m[3]], f.text[:m[0]]
	}
	return f
}

func (c *cli) retryCommand() *cobra.Command {
	return c.againCommand("retry", "Retry failed workloads at once, and reset their attempts", "trying again")
}

// restartCommand makes the same call as retry, which recreates a workload that runs.
func (c *cli) restartCommand() *cobra.Command {
	return c.againCommand("restart", "Recreate running workloads from their specification", "restarting")
}

func (c *cli) againCommand(verb, short, doing string) *cobra.Command {
	var o waiting
	cmd := &cobra.Command{
		Use: verb + " WORKLOAD…", Short: short,
		Args: args(1, -1, "WORKLOAD"), ValidArgsFunction: c.completeWorkloads,
		RunE: c.online(func(ctx context.Context, args []string) error {
			return c.each(ctx, args, o, func(id string) ([]string, uint64, error) {
				r, err := change(ctx, c, c.control.RetryWorkload, &controlv1.RetryWorkloadRequest{WorkloadId: id})
				if err == nil && !r.GetAccepted() {
					err = c.refusedWorkload(ctx, id, r.GetReason())
				}
				if err == nil {
					c.done(id, doing, r)
				}
				return nil, r.GetIndex(), err
			}, goalKept())
		}),
	}
	o.flags(cmd.Flags(), "the workloads are in their desired state")
	return cmd
}

func (c *cli) startCommand() *cobra.Command {
	return c.desireCommand("start", "Start stopped workloads", "Running", "starting")
}

func (c *cli) stopCommand() *cobra.Command {
	return c.desireCommand("stop", "Stop workloads, and keep their specification", "Stopped", "stopping")
}

func (c *cli) desireCommand(verb, short, desired, doing string) *cobra.Command {
	var o waiting
	cmd := &cobra.Command{
		Use: verb + " WORKLOAD…", Short: short,
		Args: args(1, -1, "WORKLOAD"), ValidArgsFunction: c.completeWorkloads,
		RunE: c.online(func(ctx context.Context, args []string) error {
			return c.each(ctx, args, o, func(id string) ([]string, uint64, error) {
				r, err := change(ctx, c, c.control.ApplyWorkload, &controlv1.ApplyWorkloadRequest{WorkloadId: id, DesiredState: desired})
				if err == nil && !r.GetSuccess() {
					err = c.refusedWorkload(ctx, id, refusalText(r))
				}
				if err == nil {
					what := doing
					if r.GetUnchanged() {
						what = "unchanged"
					}
					c.done(id, what, r)
				}
				return r.GetWorkloadIds(), r.GetIndex(), err
			}, goalStatus(desired))
		}),
	}
	o.flags(cmd.Flags(), "the workloads are "+desired)
	return cmd
}

// each calls do for one workload after another, and with --wait waits for those that it changed.
func (c *cli) each(ctx context.Context, ids []string, o waiting, do func(id string) ([]string, uint64, error), g goal) error {
	if err := o.check(); err != nil {
		return err
	}
	failures := &several{c: c}
	goals := map[string]goal{}
	var after uint64
	for _, id := range ids {
		touched, index, err := do(id)
		if err != nil {
			failures.add(err)
			continue
		}
		if len(touched) == 0 && o.wait {
			touched = c.targets(ctx, id)
		}
		for _, t := range touched {
			goals[t] = g
		}
		after = max(after, index)
	}
	if !o.wait {
		return failures.err()
	}
	return waited(failures.err(), c.awaitAll(ctx, goals, after, o.timeout, time.After(o.timeout)))
}

// done prints the result of one change.
func (c *cli) done(id, what string, m message) {
	if c.machine() {
		// An error means that the reader of stdout is gone.
		_ = c.emitItem(m)
		return
	}
	s := screen.Good
	if what == "unchanged" {
		s = screen.Dim
	}
	writeLines(c.out, []string{id + " " + c.paint.Paint(s, what)})
}

// confirm asks a question at the terminal. Without a terminal it returns nil, so scripts are not asked.
func (c *cli) confirm(question string) error {
	to := c.err
	if !c.errTerm {
		to = c.out
	}
	if !c.inTerm || !c.errTerm && !c.outTerm {
		return nil
	}
	fmt.Fprintf(to, "%s [y/N] ", question)
	var answer []byte
	for one := make([]byte, 1); len(answer) < 100; {
		n, err := c.in.Read(one)
		if n == 1 && one[0] != '\n' {
			answer = append(answer, one[0])
		}
		if n == 1 && one[0] == '\n' || errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if a := strings.ToLower(strings.TrimSpace(string(answer))); a != "y" && a != "yes" {
		return failf(exitFailed, "", "nothing was done")
	}
	return nil
}

// workloadCommand keeps the commands of the legacy v1 CLI: persysctl workload VERB --id ID.
func (c *cli) workloadCommand() *cobra.Command {
	parent := &cobra.Command{Use: "workload", Hidden: true, Short: "The commands for workloads, as in the legacy v1 CLI", Args: args(0, 0), RunE: help}
	for _, cmd := range []*cobra.Command{c.listCommand(), c.getCommand(), c.deleteCommand(), c.retryCommand(), c.startCommand(), c.stopCommand(), c.restartCommand()} {
		if cmd.Name() != "list" {
			withID(cmd)
		}
		parent.AddCommand(cmd)
	}
	return parent
}

// withID adds the flag --id, which replaces the argument.
func withID(cmd *cobra.Command) {
	id := cmd.Flags().String("id", "", "id, in place of the argument")
	check, do := cmd.Args, cmd.RunE
	merged := func(args []string) []string {
		if *id != "" {
			args = append(args, *id)
		}
		return args
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error { return check(cmd, merged(args)) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return do(cmd, merged(args)) }
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }
