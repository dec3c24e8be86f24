package persysctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// recoveryLimit is the time limit of calls that read or write all keys of an etcd.
const recoveryLimit = 15 * time.Minute

func (c *cli) recoveryCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "recovery", Short: "Resolve differences between the cluster's state and its etcd",
		Long: `Resolve differences between the cluster's state and its etcd.

The mode is recovery when etcd has come back empty, or holds data of another writer.
If the cluster's own state is right, ` + "`restore`" + ` writes it into etcd. If the cluster has
no workloads and the data in etcd is right, ` + "`import`" + ` takes it over. Neither touches a
running workload.`,
		Args: args(0, 0), RunE: help,
	}
	var prefix string
	show := &cobra.Command{
		Use: "show", Short: "Show the mode, the mirror, the contents of etcd, and the next command",
		Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error { return c.recoveryShow(ctx, prefix) }),
	}
	show.Flags().StringVar(&prefix, "prefix", "", "prefix in etcd, in place of ETCD_PREFIX")
	var o recoverOptions
	restore := &cobra.Command{
		Use: "restore", Short: "Overwrite etcd with the cluster's state",
		Example: "  persysctl recovery restore --dry-run\n  persysctl recovery restore",
		Args:    args(0, 0),
		RunE:    c.online(func(ctx context.Context, _ []string) error { return c.recoveryRestore(ctx, o) }),
	}
	imports := &cobra.Command{
		Use: "import [FILE]", Short: "Import the contents of etcd, or of the backup FILE, into a cluster without workloads",
		Long: `Import the contents of etcd, or of the backup FILE, into a cluster without workloads.

Other schedulers may have written the etcd, in an older or a newer layout: stop them
first. Imported workloads keep their nodes and are not restarted. An attached etcd then
gets this cluster's state. Policies, roles, accounts, secrets, configs and networks are
not in etcd: make them again, or import a backup. Without an attached etcd, the leader
reads --etcd and writes nothing to it;
` + "`persysctl mirror attach --overwrite`" + ` makes it the mirror.`,
		Example: "  persysctl recovery import --dry-run\n  persysctl recovery import\n  persysctl recovery import state.backup",
		Args:    args(0, 1, "FILE"),
		RunE: c.online(func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				return c.backupRestore(ctx, args[0], restoreOptions{dry: o.dry, yes: o.yes, force: o.force, empty: true})
			}
			return c.recoveryImport(ctx, o)
		}),
	}
	for _, cmd := range []*cobra.Command{restore, imports} {
		cmd.Flags().BoolVar(&o.dry, "dry-run", false, "only show what would change")
		cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	}
	f := imports.Flags()
	f.StringVar(&o.prefix, "prefix", "", "prefix in etcd, in place of ETCD_PREFIX")
	f.StringSliceVar(&o.etcd, "etcd", nil, "endpoints to read when no etcd is attached; default localhost:2379 on the leader's machine")
	f.BoolVar(&o.skip, "skip-unreadable", false, "skip keys that cannot be read, and import the others")
	f.BoolVar(&o.force, "force-new-cluster", false, "import the workloads of another cluster into this one; make sure that the other cluster no longer runs them")
	parent.AddCommand(show, restore, imports)
	return parent
}

type recoverOptions struct {
	prefix                string
	etcd                  []string
	dry, yes, skip, force bool
}

func (c *cli) recoveryShow(ctx context.Context, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	r, err := c.cluster.Recovery(ctx, &clusterv1.RecoveryRequest{Prefix: prefix})
	if err != nil {
		return c.explained(err, false, recoveryLimit)
	}
	return c.emit(r, func() {
		f := &screen.Facts{}
		f.Add("Mode", modeCell(r.GetMode(), r.GetModeReason(), r.GetModePinned()))
		if at := r.GetModeChangedAt(); at != nil {
			f.Add("Since", screen.Text(at.AsTime().In(c.zone).Format("2006-01-02 15:04:05")+", "+c.age(at)+" ago"))
		}
		f.Add("Mirror", mirrorCell(r))
		if r.GetAttachedEtcd() != "" {
			f.Add("Attached", screen.Text("etcd cluster "+screen.Clean(r.GetAttachedEtcd())))
		}
		p := r.GetPresent()
		f.Add("State", screen.Text(fmt.Sprintf("%s, %s, index %d", screen.Plural(p.GetWorkloads(), "workload"), screen.Plural(p.GetNodes(), "node"), p.GetIndex())))
		switch m := r.GetContent(); {
		case r.GetContentError() != "":
			f.Add("etcd", screen.Styled("cannot be read: "+screen.Clean(r.GetContentError()), screen.Bad))
		case m != nil:
			f.Add("etcd", screen.Text(contentText(m)))
			f.Add("  written by", screen.Text(writtenBy(m)))
		}
		c.printFacts(f)
		c.showProblems(r.GetContent())
		if what, next := advised(r); what != "" {
			c.empty(what, next)
		}
	})
}

// slow makes a call that reads or writes all keys of an etcd, so it uses the deadline of ctx instead of the usual time
// limit. A request that is a preview changes nothing.
func slow[Req interface{ GetPreview() bool }, Resp any](ctx context.Context, c *cli, do func(context.Context, Req, ...callOption) (Resp, error), req Req) (Resp, error) {
	resp, err := do(ctx, req)
	if err != nil {
		return resp, c.explained(err, !req.GetPreview(), recoveryLimit)
	}
	return resp, nil
}

func mirrorCell(r *clusterv1.RecoveryResponse) screen.Cell {
	text := r.GetMirror()
	if r.GetMirrorReason() != "" {
		text += ": " + screen.Clean(r.GetMirrorReason())
	}
	if r.GetMirrorIndex() > 0 {
		text += fmt.Sprintf(", index %d", r.GetMirrorIndex())
	}
	style := screen.Warn
	switch r.GetMirror() {
	case "healthy":
		style = screen.Good
	case "off":
		style = screen.Dim
	}
	return screen.Styled(text, style)
}

func contentText(m *clusterv1.MirrorContent) string {
	if m.GetNodes()+m.GetWorkloads()+m.GetProblemCount() == 0 {
		return "empty"
	}
	return fmt.Sprintf("%s, %s, %s, %s", screen.Plural(m.GetWorkloads(), "workload"), screen.Plural(m.GetNodes(), "node"), screen.Plural(m.GetEvents(), "event"), screen.Plural(m.GetDrifts(), "drift"))
}

func writtenBy(m *clusterv1.MirrorContent) string {
	switch {
	case m.GetClusterId() == "" && m.GetNodes()+m.GetWorkloads() == 0:
		return "no cluster"
	case m.GetClusterId() == "":
		return "other schedulers, or a version without cluster ids"
	case !m.GetComplete():
		return fmt.Sprintf("cluster %s, up to an index below %d", screen.Clean(m.GetClusterId()), m.GetIndex())
	}
	return fmt.Sprintf("cluster %s, index %d", screen.Clean(m.GetClusterId()), m.GetIndex())
}

// advised translates the scheduler's advice for a recovery from etcd into a sentence and the next command.
func advised(r *clusterv1.RecoveryResponse) (what, next string) {
	switch r.GetAdvice() {
	case "restore":
		return "The cluster's own state is right: write it into etcd.", "persysctl recovery restore --dry-run"
	case "import":
		return "This cluster has no workloads and etcd holds some: import them.", "persysctl recovery import --dry-run"
	case "etcd":
		return "Repair etcd first; the cluster then continues by itself.", "persysctl recovery show"
	}
	if r.GetModePinned() && r.GetMode() != "normal" {
		return "The mode was set by hand and stays until it is set again.", "persysctl mode set auto --reason 'done'"
	}
	return "", ""
}

// shownProblems is the maximum number of unreadable etcd keys that are listed.
const shownProblems = 10

func (c *cli) showProblems(m *clusterv1.MirrorContent) {
	n := int(m.GetProblemCount())
	if n == 0 {
		return
	}
	lines := []string{"", fmt.Sprintf("%s cannot be read:", screen.Plural(m.GetProblemCount(), "key"))}
	for _, p := range m.GetProblems()[:min(len(m.GetProblems()), shownProblems)] {
		lines = append(lines, "  "+screen.Clean(p.GetKey())+": "+screen.Clean(p.GetReason()))
	}
	if n > shownProblems {
		lines = append(lines, fmt.Sprintf("  and %d more (-o json lists up to 500)", n-shownProblems))
	}
	writeLines(c.out, lines)
}

func (c *cli) recoveryRestore(ctx context.Context, o recoverOptions) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	preview, err := slow(ctx, c, c.cluster.RestoreMirror, &clusterv1.RestoreMirrorRequest{Preview: true})
	if err != nil {
		return err
	}
	if o.dry {
		return c.emit(preview, func() { writeLines(c.out, keyLines(preview, "would be", true)) })
	}
	if !o.yes {
		for _, l := range keyLines(preview, "would be", false) {
			fmt.Fprintln(c.err, l)
		}
		if !c.inTerm || !c.errTerm {
			return failf(exitUsage, "persysctl recovery restore --dry-run", "there is no terminal to ask for confirmation: use --yes")
		}
		if err := c.confirm("Make etcd hold the cluster's state?"); err != nil {
			return err
		}
	}
	done, err := slow(ctx, c, c.cluster.RestoreMirror, &clusterv1.RestoreMirrorRequest{})
	if err != nil {
		return err
	}
	return c.emit(done, func() {
		writeLines(c.out, append(keyLines(done, "were", false), "etcd holds the cluster's state"))
		c.showMode(done.GetMode())
	})
}

func keyLines(r *clusterv1.RestoreMirrorResponse, verb string, each bool) []string {
	lines := []string{fmt.Sprintf("%s of etcd %s created, %d changed, %d removed; %d equal",
		screen.Plural(r.GetCreated(), "key"), agree(verb, r.GetCreated()), r.GetChanged(), r.GetRemoved(), r.GetEqual())}
	if !each {
		return lines
	}
	for _, d := range r.GetDifferences() {
		lines = append(lines, fmt.Sprintf("  %-6s %s", d.GetKind(), screen.Clean(d.GetKey())))
	}
	if n := int(r.GetCreated()+r.GetChanged()+r.GetRemoved()) - len(r.GetDifferences()); n > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", n))
	}
	return lines
}

func (c *cli) recoveryImport(ctx context.Context, o recoverOptions) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	req := &clusterv1.ImportMirrorRequest{Preview: true, Prefix: o.prefix, SkipUnreadable: o.skip, ForceNewCluster: o.force, Endpoints: o.etcd}
	preview, err := slow(ctx, c, c.cluster.ImportMirror, req)
	if err != nil {
		return err
	}
	if o.dry {
		return c.emit(preview, func() {
			writeLines(c.out, importLines(preview, "would be"))
			c.showProblems(preview.GetContent())
		})
	}
	if !o.yes {
		for _, l := range importLines(preview, "would be") {
			fmt.Fprintln(c.err, l)
		}
		if !c.inTerm || !c.errTerm {
			return failf(exitUsage, "persysctl recovery import --dry-run", "there is no terminal to ask for confirmation: use --yes")
		}
		question := "Import it, and let this cluster write that etcd from now on?"
		if preview.GetDetached() {
			question = "Import it?"
		}
		if err := c.confirm(question); err != nil {
			return err
		}
	}
	req.Preview = false
	done, err := slow(ctx, c, c.cluster.ImportMirror, req)
	if err != nil {
		return err
	}
	return c.emit(done, func() {
		writeLines(c.out, importLines(done, "were"))
		c.showProblems(done.GetContent())
		switch {
		case done.GetMirrored():
		case done.GetDetached():
			c.empty("The state is imported. No etcd is attached, so none is written.", "persysctl mirror attach --overwrite "+strings.Join(cleaned(done.GetEndpoints()), ","))
		default:
			c.empty("The state is imported, but etcd is not written yet: "+screen.Clean(done.GetMirrorError()), "persysctl recovery restore")
		}
		c.showMode(done.GetMode())
	})
}

func importLines(r *clusterv1.ImportMirrorResponse, verb string) []string {
	lines := []string{"etcd holds " + contentText(r.GetContent()) + ", written by " + writtenBy(r.GetContent())}
	ch := r.GetChange()
	line := fmt.Sprintf("%s and %s %s imported", screen.Plural(ch.GetAddedCount(), "workload"), screen.Plural(ch.GetNodesAdded(), "node"), verb)
	if names := ch.GetAdded(); len(names) > 0 {
		const shown = 8
		line += ": " + strings.Join(cleaned(names[:min(len(names), shown)]), ", ")
		if n := int(ch.GetAddedCount()) - shown; n > 0 {
			line += fmt.Sprintf(" and %d more", n)
		}
	}
	return append(lines, line, "not in etcd, so not imported: "+notMirrored+". Make them again before users apply anything: without its policy, a namespace has the policy baseline, which may allow more")
}

// notMirrored lists the records of the state that have no keys in etcd.
const notMirrored = "policies and their bindings, roles and their bindings, accounts, the people's certificates, secrets, configs and networks"

func cleaned(ids []string) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = screen.Clean(id)
	}
	return out
}
