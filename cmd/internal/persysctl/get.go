package persysctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/encode"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

func (c *cli) getCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get WORKLOAD", Aliases: []string{"describe"}, Short: "Show one workload in detail, with its latest events",
		Long: `Show one workload in detail, with its latest events.

With -o yaml it prints a workload file for "persysctl apply", also of a whole group. Secrets
are ***: apply keeps the stored value of each field that is ***. With -o json it prints the
workload as the schedulers see it.`,
		Example: "  persysctl get web\n  persysctl get web -o yaml > web.yaml\n  persysctl get web -o json",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error { return c.get(ctx, args[0]) }),
	}
}

func (c *cli) get(ctx context.Context, id string) error {
	if c.output == outYAML {
		return c.getFile(ctx, id)
	}
	r, err := read(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()})
	if err != nil {
		return c.orGroup(ctx, id, err)
	}
	return c.emit(r, func() {
		c.showWorkload(r.GetWorkload())
		c.showRecent(ctx, &clusterv1.EventsRequest{WorkloadId: id, Tail: 8})
	})
}

// getFile prints a workload, or the workloads of a group, as a file that can be applied.
func (c *cli) getFile(ctx context.Context, id string) error {
	r, err := read(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level(), AsApplied: true})
	if err != nil {
		return err
	}
	for i, req := range r.GetApplies() {
		text, err := encode.File(req)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := c.out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// orGroup adds to the "not found" error for the workload id that a group has that name, if one exists.
func (c *cli) orGroup(ctx context.Context, id string, err error) error {
	var f *failure
	if !errors.As(err, &f) || f.code != exitNotFound {
		return err
	}
	f.text = fmt.Sprintf("workload %q not found", id)
	f.hint = "persysctl list"
	if members, merr := c.members(ctx, id); merr == nil && len(members) > 0 {
		f.text += fmt.Sprintf(", but a group of %s has that name", screen.Plural(len(members), "workload"))
		f.hint = "persysctl list --group " + id
	}
	return f
}

// members lists the workload ids of a group.
func (c *cli) members(ctx context.Context, group string) ([]string, error) {
	r, err := c.allPages(ctx, &controlv1.ListWorkloadsRequest{Group: group})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, w := range r.GetWorkloads() {
		out = append(out, w.GetWorkloadId())
	}
	slices.SortFunc(out, screen.Natural)
	return out, nil
}

// targets lists the workloads that a change of the given id affects: the workload with this id, or the
// members of the group with this name (made from a specification with count).
func (c *cli) targets(ctx context.Context, id string) []string {
	if _, err := call(ctx, c, c.control.GetWorkload, &controlv1.GetWorkloadRequest{WorkloadId: id, Level: c.level()}); status.Code(err) == codes.NotFound {
		members, _ := c.members(ctx, id) // if the members cannot be listed, the command waits for the workload id itself
		members = slices.DeleteFunc(members, func(m string) bool { return !fsm.MadeByCount(id, m) })
		if len(members) > 0 {
			return members
		}
	}
	return []string{id}
}

func (c *cli) showWorkload(w *controlv1.WorkloadView) {
	f := &screen.Facts{}
	where := screen.Styled(screen.Clean(shownStatus(w)), screen.StateStyle(shownStatus(w)))
	if node := shownNode(w); node != "" {
		where.Text += " on " + node
	}
	if w.GetDesiredState() != w.GetStatus() && w.GetDesiredState() != "" {
		where.Text += " (desired: " + w.GetDesiredState() + ")"
	}
	f.Add("Workload", screen.Styled(screen.Clean(w.GetWorkloadId()), screen.Bold))
	f.Add("Status", where)
	if w.GetReason().GetCode() != "" || w.GetStatus() != w.GetDesiredState() {
		f.Add("Reason", screen.Text(cmp.Or(stoppingReason(w, ordered(w.GetStopping()), c.now()), reasonText(w))))
	}
	if w.GetRetryAttempts() > 0 || w.GetRetryNextAt() != nil {
		f.Add("Retry", screen.Text(c.retryText(w)))
	}
	if r := w.GetJobResult(); r != nil {
		f.Add("Result", screen.Text(c.resultText(r)))
	}
	if t := w.GetTemplate(); t != nil {
		f.Add("Schedule", screen.Text(scheduleText(t.GetCron())))
		if t.GetCron() != nil {
			f.Add("Next run", screen.Text(c.moment(t.GetNextRun())))
		}
		f.Add("Last run", screen.Text(screen.Join(", ", t.GetLastRunId(), c.ago(t.GetLastRun()))))
		f.Add("Last success", screen.Text(c.ago(t.GetLastSuccess())))
		f.Add("Last failure", screen.Text(c.ago(t.GetLastFailure())))
	}
	if m := w.GetMembers(); m != nil {
		f.Add("Members", screen.Text(membersText(m)))
	}
	if owner := w.GetOwner(); owner != "" {
		f.Add("Run of", screen.Text(screen.Join(", for ", owner, c.momentOr(w.GetScheduledAt(), "a call"))))
	}
	switch m := w.GetMessage(); { // the agent's status message, which has one line
	case m == "":
	case w.GetType() == "compose":
		f.Add("Services", screen.Text(m)) // services and their states: "web: running; db: failed"
	case w.GetType() == "vm" && w.GetStatus() == "Running":
		f.Add("Note", screen.Text(m)) // for example a message that the guest has no IP address
	}
	f.Add("Type", screen.Text(screen.Join(", ", typeText(w), w.GetImageOrSource())))
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
		text := fmt.Sprintf("CPU %s %%, memory %s, network in %s out %s", screen.Number(u.GetCpuPercent(), 1),
			screen.Bytes(u.GetMemoryBytes()), screen.Bytes(u.GetNetRxBytes()), screen.Bytes(u.GetNetTxBytes()))
		if limit := u.GetDiskLimitBytes(); limit > 0 {
			by := "measured"
			if u.GetDiskCapped() {
				by = "enforced by the engine"
			}
			text += fmt.Sprintf(", disk %s of %s (%s)", screen.Bytes(u.GetDiskBytes()), screen.Bytes(limit), by)
		}
		f.Add("Usage", screen.Text(text))
	}
	c.addAutoscale(f, w.GetAutoscale())
	revision := w.GetRevisionId()
	if own := w.GetCallerRevisionId(); own != "" {
		revision += " (yours: " + own + ")"
	}
	if n := w.GetRevisionNumber(); n > 0 {
		revision += fmt.Sprintf(", number %d", n)
	}
	f.Add("Revision", screen.Text(revision))
	accepted := ", accepted by the agent"
	switch {
	case w.GetJobResult() != nil: // no agent has an order for a finished job
		accepted = ""
	case !w.GetAssignmentAcknowledged():
		accepted = ", not yet accepted by an agent"
	}
	f.Add("Generation", screen.Text(fmt.Sprintf("%d%s", w.GetGeneration().GetSequence(), accepted)))
	f.Add("Created", screen.Text(c.ago(w.GetCreatedAt())))
	f.Add("Changed", screen.Text(c.ago(w.GetLastUpdated())))
	c.printFacts(f)
	c.showLastActions(w.GetLastActions())
	if text := w.GetJobResult().GetExit().GetOutput(); text != "" {
		c.section("Last lines of output")
		for line := range strings.Lines(text) {
			writeLines(c.out, []string{"  " + screen.Clean(strings.TrimRight(line, "\r\n"))})
		}
	}
	if s := w.GetSpec(); s != nil {
		data, err := encode.YAML(s, false)
		if err != nil {
			return // cannot happen, because the specification was decoded before
		}
		c.section("Specification (secrets are hidden)")
		for _, line := range strings.Split(strings.TrimRight(string(data), "\n"), "\n") {
			writeLines(c.out, []string{"  " + line})
		}
	}
}

// typeText returns the type of a workload, and its kind unless it is a service.
func typeText(w *controlv1.WorkloadView) string {
	if kind := kindShown(w); kind != spec.KindService {
		return w.GetType() + " " + kind
	}
	return w.GetType()
}

// kindText returns the kind of a workload.
func kindText(w *controlv1.WorkloadView) string { return cmp.Or(w.GetKind(), spec.KindService) }

// kindShown returns the same text as kindText, and marks a surge member, which exists only during an update of its
// group.
func kindShown(w *controlv1.WorkloadView) string {
	if w.GetSurge() {
		return kindText(w) + ", extra"
	}
	return kindText(w)
}

// resultText returns the result of a finished job in one line.
func (c *cli) resultText(r *controlv1.JobResult) string {
	out := "failed"
	if r.GetSucceeded() {
		out = "succeeded"
	}
	out += " " + c.ago(r.GetFinishedAt())
	if x := r.GetExit(); x != nil {
		out += fmt.Sprintf(", exit code %d", x.GetCode())
		if x.GetStartedAt() != nil && x.GetEndedAt() != nil {
			out += ", ran for " + screen.Elapsed(x.GetEndedAt().AsTime().Sub(x.GetStartedAt().AsTime()))
		}
	}
	if node := r.GetNodeId(); node != "" {
		out += ", on " + node
	}
	return out
}

func reasonText(w *controlv1.WorkloadView) string {
	code, message := w.GetReason().GetCode(), w.GetReason().GetMessage()
	if message == "" {
		message = cmp.Or(w.GetMessage(), w.GetFailureReason())
	}
	return screen.Join(": ", code, message)
}

func (c *cli) retryText(w *controlv1.WorkloadView) string {
	out := screen.Plural(w.GetRetryAttempts(), "attempt")
	if most := w.GetRetryMaxAttempts(); most > 0 {
		out = fmt.Sprintf("%d of %d attempts", w.GetRetryAttempts(), most)
	}
	if next := w.GetRetryNextAt(); next != nil {
		if left := next.AsTime().Sub(c.now()); left > 0 {
			return out + ", next in " + screen.Span(left)
		}
		return out + ", next is due"
	}
	return out
}

func coresText(millicores int64) string {
	if millicores == 1000 {
		return "1 core"
	}
	return screen.Cores(millicores) + " cores"
}

func resourcesText(r *controlv1.ResourceRequirements) string {
	var parts []string
	if v := r.GetCpuMillicores(); v > 0 {
		parts = append(parts, coresText(v))
	}
	if v := r.GetMemoryMb(); v > 0 {
		parts = append(parts, screen.MiB(v)+" memory")
	}
	if v := r.GetDiskGb(); v > 0 {
		part := screen.GiB(v) + " disk"
		if r.GetStoragePool() != "" {
			part += " from " + r.GetStoragePool()
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func portsText(ports []*controlv1.Port) string {
	var out []string
	for _, p := range ports {
		host := fmt.Sprint(p.GetHostPort())
		if p.GetHostPort() == 0 {
			host = "any"
		}
		reach := ""
		if a, err := netip.ParseAddr(p.GetAddress()); err == nil {
			host = net.JoinHostPort(p.GetAddress(), host)
			if a.IsLoopback() {
				reach = "(on the node only, not in DNS)"
			}
		}
		if p.GetMode() != "" {
			reach = "(on every node)"
		}
		protocol := cmp.Or(p.GetProtocol(), "tcp")
		out = append(out, strings.TrimSpace(strings.Join(slices.DeleteFunc([]string{fmt.Sprintf("%s→%d/%s", host, p.GetContainerPort(), protocol), p.GetName(), reach}, func(s string) bool { return s == "" }), " ")))
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
