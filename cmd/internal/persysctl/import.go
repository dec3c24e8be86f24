package persysctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/internal/translate"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
)

// swarmDeadline is the time limit for reading a Swarm.
const swarmDeadline = time.Minute

func (c *cli) importCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "import", Short: "Write workload files from a Docker Swarm or a Nomad job",
		Long: `Write workload files from a Docker Swarm or a Nomad job.

The command changes nothing, here or there. It names every setting that has no equivalent, and
prints the commands that create networks, secrets and configs before the files are applied.`,
		Args: args(0, 0), RunE: help,
	}
	var host, dir string
	swarm := &cobra.Command{
		Use: "swarm", Short: "Write workload files from the services of a Docker Swarm",
		Long: `Write workload files from the services of a Docker Swarm, which the engine of a manager
lists. Values of secrets cannot be read from a Swarm, and data of volumes is not copied.`,
		Example: "  persysctl import swarm\n  persysctl import swarm --host tcp://manager:2376 --dir shop",
		Args:    args(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.importSwarm(cmd.Context(), host, dir) },
	}
	swarm.Flags().StringVar(&host, "host", "", "address of the engine of a manager; default is DOCKER_HOST, or the engine of this machine")
	nomad := &cobra.Command{
		Use: "nomad FILE|-", Short: "Write workload files from a Nomad job in JSON",
		Long:    "Write workload files from a Nomad job in JSON, as `nomad job inspect NAME` prints it.",
		Example: "  nomad job inspect shop | persysctl import nomad -\n  persysctl import nomad shop.json --dir shop",
		Args:    args(1, 1, "FILE"),
		RunE:    func(_ *cobra.Command, args []string) error { return c.importNomad(args[0], dir) },
	}
	for _, cmd := range []*cobra.Command{swarm, nomad} {
		cmd.Flags().StringVar(&dir, "dir", "imported", "folder for the files; an existing file is not overwritten")
		parent.AddCommand(cmd)
	}
	return parent
}

func (c *cli) importNomad(name, dir string) error {
	source, err := c.readSource(name)
	if err != nil {
		return err
	}
	r, err := translate.Nomad(source.Data)
	if err != nil {
		return failf(exitFailed, "", "%s: %v", name, err)
	}
	return c.writeImport(r, dir)
}

func (c *cli) importSwarm(ctx context.Context, host, dir string) error {
	in, err := readSwarm(ctx, host)
	if err != nil {
		return failf(exitFailed, "set --host or DOCKER_HOST to the engine of a manager of the Swarm", "the Swarm cannot be read: %v", err)
	}
	r, err := translate.Swarm(in)
	if err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	if r.Workloads == 0 {
		return failf(exitFailed, "", "the Swarm has no services, so there is nothing to write")
	}
	return c.writeImport(r, dir)
}

// readSwarm reads the services, networks and configs of a Docker Swarm from the engine at host, which must be a Swarm
// manager.
func readSwarm(ctx context.Context, host string) (in translate.SwarmInput, err error) {
	ctx, cancel := context.WithTimeout(ctx, swarmDeadline)
	defer cancel()
	options := []client.Opt{client.FromEnv}
	if host != "" {
		options = append(options, client.WithHost(host))
	}
	engine, err := client.New(options...)
	if err != nil {
		return in, err
	}
	defer func() { _ = engine.Close() }()
	services, err := engine.ServiceList(ctx, client.ServiceListOptions{})
	if err != nil {
		return in, err
	}
	networks, err := engine.NetworkList(ctx, client.NetworkListOptions{})
	if err != nil {
		return in, err
	}
	configs, err := engine.ConfigList(ctx, client.ConfigListOptions{})
	if err != nil {
		return in, err
	}
	for i := range services.Items {
		data, err := json.Marshal(services.Items[i])
		if err != nil {
			return in, err
		}
		in.Services = append(in.Services, data)
	}
	in.Networks, in.Configs = map[string]string{}, map[string][]byte{}
	for _, n := range networks.Items {
		in.Networks[n.ID] = n.Name
	}
	for i := range configs.Items {
		in.Configs[configs.Items[i].Spec.Name] = configs.Items[i].Spec.Data
	}
	return in, nil
}

// importFile is the name of the workload file that an import writes.
const importFile = "workloads.yaml"

// writeImport writes the files of a translation (see package translate) into a folder, and prints the
// commands to run next.
func (c *cli) writeImport(r *translate.Result, dir string) error {
	file := filepath.Join(dir, importFile)
	if err := os.MkdirAll(filepath.Join(dir, "configs"), 0o750); err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	if err := writeNew(file, r.YAML); err != nil {
		return err
	}
	var first []string
	for _, n := range r.Networks {
		first = append(first, "persysctl network create "+n)
	}
	for _, x := range r.Configs {
		path := filepath.Join(dir, "configs", filepath.Base(x.Name))
		if err := writeNew(path, x.Data); err != nil {
			return err
		}
		first = append(first, "persysctl config put "+x.Name+" --from-file "+path)
	}
	for _, s := range r.Secrets {
		first = append(first, "persysctl secret put "+s+" --from-file FILE")
	}
	lines := []string{"Wrote " + screen.Plural(r.Workloads, "workload") + " to " + file + "."}
	section := func(title string, list []string) {
		if len(list) > 0 {
			lines = append(lines, "", title)
			for _, l := range list {
				lines = append(lines, "  "+screen.Clean(l))
			}
		}
	}
	var notes []string
	for _, n := range r.Notes {
		where := n.Field
		if n.Workload != "" {
			where = strings.TrimSuffix(n.Workload+" ("+n.Field+")", " ()")
		}
		notes = append(notes, where+": "+n.Text)
	}
	section("Without an equivalent, or to be checked:", notes)
	var faults spec.Errors
	if _, err := spec.Parse(file, r.YAML, spec.Options{}); errors.As(err, &faults) {
		var list []string
		for _, f := range faults {
			list = append(list, f.Error())
		}
		section("To be corrected by hand before the file can be applied:", list)
	}
	section("Before the workloads:", first)
	section("Then:", []string{"persysctl plan -f " + file, "persysctl apply -f " + file})
	writeLines(c.out, lines)
	return nil
}

// writeNew writes a file that does not exist yet.
func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return failf(exitFailed, "choose another folder with --dir, or delete the file", "%s exists already, and was not changed", path)
	}
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return failf(exitFailed, "", "%v", fmt.Errorf("write %s: %w", path, err))
	}
	return nil
}
