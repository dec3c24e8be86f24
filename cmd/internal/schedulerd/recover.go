package schedulerd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/persys/compute/cluster"
	"github.com/persys/compute/config"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/replica"
)

// recovery holds the flags of `persys-scheduler recover`.
type recovery struct {
	DataDir string `env:"SCHEDULER_DATA_DIR" flag:"data-dir" usage:"data directory of the stopped survivor; default as for the scheduler"`
	DryRun  bool   `flag:"dry-run" usage:"show the state on disk and change nothing"`
	Yes     bool   `flag:"yes" short:"y" usage:"do not ask"`
}

const recoverHelp = `Make the survivor the only replica of a cluster that lost its quorum for good.

Use it when a majority of the schedulers is lost together with their disks. Stop the
scheduler that is left (of several, the one with the highest last index) and run this
command on its machine. Then start it as before: it leads at once, and new schedulers
with empty disks join it. Running workloads are not touched. Agents take orders only
under the new incarnation.

Never start a lost scheduler again with its old disk: empty it first. Entries that only
the lost schedulers held are gone; a backup may be newer than the survivor.`

// recoverCommand recovers a cluster that lost its quorum (cluster/DESIGN.md).
func recoverCommand() (*cobra.Command, error) {
	var o recovery
	loader, err := config.New(&o)
	if err != nil {
		return nil, err
	}
	cmd := &cobra.Command{
		Use: "persys-scheduler recover", Short: "make the survivor of a lost quorum the only replica", Long: recoverHelp,
		Example: "  persys-scheduler recover --data-dir /var/lib/persys/scheduler --dry-run\n  persys-scheduler recover --data-dir /var/lib/persys/scheduler",
		Args:    cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loader.Load(config.System()); err != nil {
				return err
			}
			return recoverSurvivor(cmd, o)
		},
	}
	loader.AddFlags(cmd.Flags())
	return cmd, nil
}

func recoverSurvivor(cmd *cobra.Command, o recovery) error {
	if o.DataDir == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("SCHEDULER_DATA_DIR is not set and the host has no name: %w", err)
		}
		if o.DataDir, err = replica.DefaultDataDir(false, host); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := cluster.Survey(o.DataDir, log)
	if err != nil {
		return err
	}
	portray(out, o.DataDir, s)
	if o.DryRun {
		return nil
	}
	if !o.Yes {
		if err := ask(cmd.InOrStdin(), out, s); err != nil {
			return err
		}
	}
	by := "persys-scheduler recover"
	if u, err := user.Current(); err == nil {
		by = u.Username + ", " + by
	}
	done, err := cluster.Recover(cmd.Context(), o.DataDir, by, log)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nRecovered under incarnation %d. Now start this scheduler as before; it leads alone.\n"+
		"Then empty the disks of the lost schedulers and start them, or start others: they join it.\n", done.State.Info().Incarnation)
	return err
}

// portray prints, before a recovery, what the data folder dir contains: the cluster, the replica and the last log
// entry.
func portray(out io.Writer, dir string, s *cluster.Survivor) {
	info := s.State.Info()
	lost := "none"
	if len(s.Lost) > 0 {
		lost = strings.Join(s.Lost, ", ")
	}
	// An error of writing to the terminal cannot be reported.
	_, _ = fmt.Fprintf(out, "Data        %s\nCluster     %s\nReplica     %s at %s\nLast entry  index %d, term %d, written about %s\nState       %d workloads (%d running), %d nodes, incarnation %d, mode %s\nWill lose   %s\n",
		dir, s.ClusterID, s.ID, s.RaftAddr, s.LastIndex, s.LastTerm, time.Unix(0, info.Clock).UTC().Format(time.RFC3339),
		s.State.WorkloadCount(), s.State.StatusCount(fsm.StatusRunning), s.State.NodeCount(), info.Incarnation, info.Mode, lost)
}

// ask asks the user to confirm the recovery with yes, and returns an error otherwise.
func ask(in io.Reader, out io.Writer, s *cluster.Survivor) error {
	if f, ok := in.(*os.File); ok && !term.IsTerminal(int(f.Fd())) {
		return errors.New("standard input is no terminal: pass --yes to recover without a question, or --dry-run to change nothing")
	}
	_, _ = fmt.Fprintf(out, "\nMake this the only replica of cluster %s? The lost schedulers must never start again with their old disks. [y/N] ", s.ClusterID)
	answer, err := bufio.NewReader(io.LimitReader(in, 100)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}
