package persysctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
)

const (
	backupPiece = 256 << 10
	// backupLimit is the time limit for the whole transfer of a backup, whose size grows with the cluster.
	backupLimit = 15 * time.Minute
)

func (c *cli) backupCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "backup", Short: "Back up the cluster's state, inspect a backup, restore it",
		Long: `Back up the cluster's state, inspect a backup, restore it.

A backup is one file with a checksum. It holds every workload, node, event and setting
of one moment, and no key. Secrets in it are sealed under the cluster key, so keep a
copy of the key's file (SCHEDULER_CLUSTER_KEY_FILE) in another place.`,
		Args: args(0, 0), RunE: help,
	}
	create := &cobra.Command{
		Use: "create FILE", Short: "Write the state of one replica to FILE",
		Example: "  persysctl backup create state.backup\n  persysctl -s 10.0.0.2:8085 backup create state.backup",
		Args:    args(1, 1, "FILE"),
		RunE:    c.online(func(ctx context.Context, args []string) error { return c.backupCreate(ctx, args[0]) }),
	}
	inspect := &cobra.Command{
		Use: "inspect FILE", Short: "Verify FILE and show its contents, without a cluster",
		Args: args(1, 1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error { return c.backupInspect(args[0]) },
	}
	var o restoreOptions
	restore := &cobra.Command{
		Use: "restore FILE", Short: "Restore the workloads of FILE, after showing what changes",
		Long: `Restore the workloads of FILE, after showing what changes.

In the cluster of the backup, workloads get their former specifications and desired
states. They stay on their nodes, and nothing that runs is stopped. Workloads that are
not in the backup are removed from the state and run on as orphans.

To replace a cluster that has lost all its schedulers, start new ones with empty disks,
the old cluster key, and SCHEDULER_CLUSTER_ID set to the id that ` + "`persysctl backup inspect`" + `
shows. Then restore. Agents recognise the cluster by its id and follow the new schedulers.`,
		Example: "  persysctl backup restore state.backup --dry-run\n  persysctl backup restore state.backup",
		Args:    args(1, 1, "FILE"),
		RunE:    c.online(func(ctx context.Context, args []string) error { return c.backupRestore(ctx, args[0], o) }),
	}
	f := restore.Flags()
	f.BoolVar(&o.dry, "dry-run", false, "only show what would change")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.StringVar(&o.key, "cluster-key", "", "file with the former cluster key, if the key was rotated after the backup")
	f.StringVar(&o.passphrase, "passphrase-file", "", "file with the passphrase of the file of --cluster-key")
	f.BoolVar(&o.force, "force-new-cluster", false, "restore the workloads of another cluster into this one; make sure that the other cluster no longer runs them")
	parent.AddCommand(create, inspect, restore)
	return parent
}

// backupCreate writes a temporary file and renames it, so that an incomplete backup never
// replaces a complete one.
func (c *cli) backupCreate(ctx context.Context, path string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, backupLimit)
	defer cancel()
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fileFailure(err)
	}
	defer func() {
		_ = tmp.Close()
		_ = os.Remove(tmp.Name()) // after the rename the temporary file does not exist, and the error is ignored
	}()
	head, size, err := c.download(ctx, tmp)
	if err != nil {
		return err
	}
	// Verify the backup as it is on the disk, not as it was received.
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return fileFailure(err)
	}
	if _, err := fsm.ReadSnapshot(tmp); err != nil {
		return failf(exitFailed, "type the same command again", "%s is incomplete or damaged: %v", tmp.Name(), err)
	}
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return fileFailure(err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fileFailure(err)
	}
	return c.emit(head, func() {
		i := head.GetInfo()
		c.say(path, screen.Good, "written")
		writeLines(c.out, []string{fmt.Sprintf("%s of cluster %s at index %d, from %s: %s, %s", screen.Bytes(size), i.GetClusterId(), i.GetIndex(),
			screen.Clean(head.GetReplica()), screen.Plural(i.GetWorkloads(), "workload"), screen.Plural(i.GetNodes(), "node"))})
		if age := time.Duration(head.GetAgeMs()) * time.Millisecond; age > 5*time.Second {
			c.empty(fmt.Sprintf("the replica %s has had no contact with a leader for %s: changes since then are missing", screen.Clean(head.GetReplica()), screen.Span(age)), "persysctl status")
		}
	})
}

func (c *cli) download(ctx context.Context, to io.Writer) (head *clusterv1.CreateBackupResponse, size int64, err error) {
	in, err := c.cluster.CreateBackup(ctx, &clusterv1.CreateBackupRequest{})
	if err != nil {
		return nil, 0, c.explain(err, false)
	}
	w := bufio.NewWriterSize(to, backupPiece)
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, size, c.explain(err, false)
		}
		if head == nil {
			head = m
		}
		n, err := w.Write(m.GetData())
		if size += int64(n); err != nil {
			return nil, size, fileFailure(err)
		}
	}
	if head == nil {
		return nil, 0, failf(exitFailed, "type the same command again", "the scheduler sent no backup")
	}
	if err := w.Flush(); err != nil {
		return nil, size, fileFailure(err)
	}
	head.Data = nil
	return head, size, nil
}

func (c *cli) readBackup(path string) (fsm.State, error) {
	f, err := os.Open(path)
	if err != nil {
		return fsm.State{}, fileFailure(err)
	}
	defer f.Close()
	s, err := fsm.ReadSnapshot(f)
	if err != nil {
		return s, failf(exitFailed, "", "%s is an incomplete or damaged backup: %v", path, err)
	}
	return s, nil
}

func (c *cli) backupInspect(path string) error {
	s, err := c.readBackup(path)
	if err != nil {
		return err
	}
	info := s.Info()
	events := int32(0)
	s.Events(0, func(*fsm.Event) bool { events++; return true })
	view := &clusterv1.BackupInfo{
		ClusterId: info.ClusterID, Incarnation: info.Incarnation, Index: info.Index, At: timestamppb.New(time.Unix(0, info.Clock)),
		Mode: string(info.Mode), FeatureLevel: info.FeatureLevel, Nodes: int32(s.NodeCount()), Workloads: int32(s.WorkloadCount()),
		WorkloadsRunning: int32(s.StatusCount(fsm.StatusRunning)), Events: events,
	}
	return c.emit(view, func() {
		f := &screen.Facts{}
		c.backupFacts(f, view)
		f.Add("Checksum", screen.Styled("right", screen.Good))
		c.printFacts(f)
	})
}

func (c *cli) backupFacts(f *screen.Facts, i *clusterv1.BackupInfo) {
	f.Add("Cluster", screen.Text(i.GetClusterId()))
	f.Add("As of", screen.Text(i.GetAt().AsTime().In(c.zone).Format("2006-01-02 15:04:05")+", "+c.age(i.GetAt())+" ago"))
	f.Add("Index", screen.Text(fmt.Sprintf("%d (incarnation %d)", i.GetIndex(), i.GetIncarnation())))
	f.Add("Mode", screen.State(i.GetMode()))
	f.Add("Workloads", screen.Text(fmt.Sprintf("%d, %d running", i.GetWorkloads(), i.GetWorkloadsRunning())))
	f.Add("Nodes", screen.Text(fmt.Sprint(i.GetNodes())))
	f.Add("Events", screen.Text(fmt.Sprint(i.GetEvents())))
}

type restoreOptions struct {
	dry, yes, force, empty bool
	// File with the cluster key under which the values in the backup are sealed, and file with its passphrase; empty if
	// the cluster has that key.
	key, passphrase string
}

func (c *cli) backupRestore(ctx context.Context, path string, o restoreOptions) error {
	ctx, cancel := context.WithTimeout(ctx, backupLimit)
	defer cancel()
	verb := "persysctl backup restore"
	if o.empty {
		verb = "persysctl recovery import"
	}
	// Return an error for a damaged backup before it is sent.
	if _, err := c.readBackup(path); err != nil {
		return err
	}
	key, err := readClusterKey(o.key, o.passphrase)
	if err != nil {
		return err
	}
	preview, err := c.upload(ctx, path, &clusterv1.RestoreBackupRequest{Preview: true, ForceNewCluster: o.force, RequireEmpty: o.empty, ClusterKey: key})
	if err != nil {
		return c.explain(err, false)
	}
	if o.dry {
		return c.emit(preview, func() { c.showRestore(preview, "would be") })
	}
	if !o.yes {
		c.restoreNotes(preview)
		if !c.inTerm || !c.errTerm {
			return failf(exitUsage, verb+" "+path+" --dry-run", "there is no terminal to ask for confirmation: use --yes")
		}
		if err := c.confirm(fmt.Sprintf("Restore %s into cluster %s?", path, preview.GetPresent().GetClusterId())); err != nil {
			return err
		}
	}
	done, err := c.upload(ctx, path, &clusterv1.RestoreBackupRequest{ForceNewCluster: o.force, RequireEmpty: o.empty, ClusterKey: key})
	if err != nil {
		return c.explain(err, true)
	}
	return c.emit(done, func() {
		c.showRestore(done, "were")
		writeLines(c.out, []string{fmt.Sprintf("restored at index %d, incarnation %d", done.GetIndex(), done.GetIncarnation())})
		if done.GetForgottenCount() > 0 {
			c.empty("The removed workloads keep running as orphans, which are not stopped.", "persysctl events --tail 10")
		}
	})
}

// restoreNotes prints the preview of a restore, before the user is asked to confirm it.
func (c *cli) restoreNotes(r *clusterv1.RestoreBackupResponse) {
	b := r.GetBackup()
	fmt.Fprintf(c.err, "The backup is of %s, index %d; the cluster is at index %d.\n", b.GetAt().AsTime().In(c.zone).Format("2006-01-02 15:04:05"), b.GetIndex(), r.GetPresent().GetIndex())
	for _, l := range restoreLines(r, "would be") {
		fmt.Fprintln(c.err, l)
	}
}

func (c *cli) showRestore(r *clusterv1.RestoreBackupResponse, verb string) {
	writeLines(c.out, restoreLines(r, verb))
}

func restoreLines(r *clusterv1.RestoreBackupResponse, verb string) []string {
	line := func(n int32, what string, ids []string) string {
		s := fmt.Sprintf("%s %s %s", screen.Plural(n, "workload"), agree(verb, n), what)
		if len(ids) > 0 {
			const shown = 8
			names := make([]string, 0, shown)
			for _, id := range ids[:min(len(ids), shown)] {
				names = append(names, screen.Clean(id))
			}
			s += ": " + strings.Join(names, ", ")
			if int(n) > len(names) {
				s += fmt.Sprintf(" and %d more", int(n)-len(names))
			}
		}
		return s
	}
	lines := []string{
		line(r.GetAddedCount(), "brought back", r.GetAdded()),
		line(r.GetChangedCount(), "changed back", r.GetChanged()),
		line(r.GetForgottenCount(), "forgotten", r.GetForgotten()),
		line(r.GetUnchangedCount(), "left as they are", nil),
	}
	if n := r.GetNodesAdded(); n > 0 {
		lines = append(lines, fmt.Sprintf("%s %s known again", screen.Plural(n, "node"), agree(verb, n)))
	}
	return lines
}

// agree adapts a verb to the number n, for messages: it returns "was" for "were" if n is 1, and any other verb
// unchanged.
func agree[N ~int32 | ~int64](verb string, n N) string {
	if verb == "were" && n == 1 {
		return "was"
	}
	return verb
}

// upload sends a backup file in pieces. The first message also contains the fields of head.
func (c *cli) upload(ctx context.Context, path string, head *clusterv1.RestoreBackupRequest) (*clusterv1.RestoreBackupResponse, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fileFailure(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := c.cluster.RestoreBackup(ctx)
	if err != nil {
		return nil, err
	}
	m := head
	for {
		m.Data = make([]byte, backupPiece)
		n, err := io.ReadFull(f, m.Data)
		m.Data = m.Data[:n]
		if n > 0 {
			// A failed Send means that the scheduler has ended the stream; CloseAndRecv returns the reason.
			if serr := out.Send(m); serr != nil {
				break
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, fileFailure(err)
		}
		m = &clusterv1.RestoreBackupRequest{}
	}
	return out.CloseAndRecv()
}
