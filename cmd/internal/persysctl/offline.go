package persysctl

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/persysctl/manual"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/spec"
)

// devCertsCommand returns the command that makes certificates for a development cluster.
func (c *cli) devCertsCommand() *cobra.Command {
	var o pki.DevOptions
	cmd := &cobra.Command{
		Use: "dev-certs DIR", Short: "Create a development CA and certificates for every program",
		Long: `Create a development CA and mutual-TLS certificates in DIR: DIR/ROLE/ID/{ca,cert,key}.pem,
and DIR/cluster.key, which every scheduler needs to seal secrets. Running the command
again keeps valid files. The CA's key is stored beside the certificates, so use this for
development and tests only.`,
		Example: "  persysctl dev-certs certs --schedulers s1,s2,s3 --agents node-a",
		Args:    args(1, 1, "DIR"),
		RunE:    func(_ *cobra.Command, args []string) error { return c.devCerts(args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Cluster, "cluster", "", "cluster name in the identities (default dev)")
	f.StringSliceVar(&o.Schedulers, "schedulers", nil, "scheduler names (default scheduler-1,scheduler-2,scheduler-3)")
	f.StringSliceVar(&o.Agents, "agents", nil, "node ids (default node-a,node-b and this host's name)")
	f.StringSliceVar(&o.Gateways, "gateways", nil, "gateway names (default gateway)")
	f.StringSliceVar(&o.Users, "users", nil, "user names (default admin)")
	f.StringSliceVar(&o.Hosts, "hosts", nil, "more DNS names or IP addresses of the servers")
	return cmd
}

func (c *cli) devCerts(dir string, o pki.DevOptions) error {
	set, err := pki.DevCerts(dir, o)
	if err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	keyFile := filepath.Join(dir, "cluster.key")
	_, fresh, err := pki.LoadOrCreateKey(keyFile)
	if err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	t := screen.NewTable(screen.Column{Title: "IDENTITY", Gives: 1, Least: 16, Keeps: screen.Middle}, screen.Column{Title: "FOLDER", Gives: 2, Least: 20, Keeps: screen.Tail}, screen.Column{Title: ""})
	user := ""
	for _, who := range slices.Sorted(maps.Keys(set.Leaf)) {
		note := screen.Styled("kept", screen.Dim)
		if slices.Contains(set.Issued, who) {
			note = screen.Styled("new", screen.Good)
		}
		t.Add(screen.Text(who), screen.Text(filepath.Dir(set.Leaf[who].Cert)), note)
		if user == "" && strings.HasPrefix(who, "user/") {
			user = who
		}
	}
	note := screen.Styled("kept", screen.Dim)
	if fresh {
		note = screen.Styled("new", screen.Good)
	}
	t.Add(screen.Text("cluster key"), screen.Text(keyFile), note)
	c.print(t)
	if user != "" {
		p := set.Leaf[user]
		writeLines(c.out, []string{"", "To use them with persysctl:",
			"  export PERSYS_TLS_CA=" + p.CA + " PERSYS_TLS_CERT=" + p.Cert + " PERSYS_TLS_KEY=" + p.Key})
	}
	return nil
}

// keyFile returns the key file at path. passphrase is the file with its passphrase; empty if it has none.
func keyFile(path, passphrase string) (pki.KeyFile, error) {
	f := pki.KeyFile{Path: path}
	if passphrase == "" {
		return f, nil
	}
	text, err := os.ReadFile(passphrase)
	if err != nil {
		return f, failf(exitFailed, "", "--passphrase-file: %v", err)
	}
	p := pki.Passphrase(strings.TrimSpace(string(text)))
	if err := p.Check(); err != nil {
		return f, failf(exitUsage, "", "--passphrase-file %s: %v", passphrase, err)
	}
	f.Wrap = p
	return f, nil
}

// clusterKeyCommand returns the commands about the cluster key, which seals secrets.
func (c *cli) clusterKeyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster-key", Short: "Create, show or replace the key that seals secrets", Args: args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	passphrase := ""
	create := &cobra.Command{
		Use: "create FILE", Short: "Create a key in FILE, for SCHEDULER_CLUSTER_KEY_FILE of every scheduler", Args: args(1, 1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := keyFile(args[0], passphrase)
			if err != nil {
				return err
			}
			key, fresh, err := f.LoadOrCreate()
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			if !fresh {
				return failf(exitFailed, "", "%s already holds key %s; nothing was changed", args[0], key.ID())
			}
			writeLines(c.out, []string{args[0] + " holds key " + key.ID() + "; copy the file to every scheduler, readable only by the user of the scheduler"})
			return nil
		},
	}
	show := &cobra.Command{
		Use: "show FILE", Short: "Show the id of the key in FILE, never the key", Args: args(1, 1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := keyFile(args[0], passphrase)
			if err != nil {
				return err
			}
			key, err := f.Load()
			if err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			writeLines(c.out, []string{key.ID()})
			return nil
		},
	}
	for _, sub := range []*cobra.Command{create, show} {
		sub.Flags().StringVar(&passphrase, "passphrase-file", "", "file with the passphrase of FILE, as SCHEDULER_CLUSTER_KEY_PASSPHRASE_FILE")
	}
	cmd.AddCommand(create, show)
	cmd.AddCommand(c.clusterKeyOnline()...)
	return cmd
}

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version of persysctl",
		Args: args(0, 0),
		RunE: func(*cobra.Command, []string) error {
			commit := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						commit = s.Value[:min(12, len(s.Value))]
					}
				}
			}
			platform := runtime.GOOS + "/" + runtime.GOARCH
			return c.emitValue(versionInfo{c.version, commit, runtime.Version(), platform}, func() {
				writeLines(c.out, []string{c.name + " " + c.version + " (" + screen.Join(", ", commit, runtime.Version(), platform) + ")"})
			})
		},
	}
}

// docsCommand returns the command that writes the reference of persysctl and, with --man, its manual pages.
func (c *cli) docsCommand(root *cobra.Command) *cobra.Command {
	var man bool
	cmd := &cobra.Command{
		Use: "docs DIR", Short: "Write the reference of all commands and of workload files as Markdown, and manual pages", Hidden: true,
		Args: args(1, 1, "DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			at := c.now()
			if v, ok := c.environ("SOURCE_DATE_EPOCH"); ok { // SOURCE_DATE_EPOCH (reproducible-builds.org) is the time for files that a build makes
				n, err := strconv.ParseInt(v, 10, 64)
				if err != nil {
					return usagef("SOURCE_DATE_EPOCH: must be a number of seconds, got %q", v)
				}
				at = time.Unix(n, 0).UTC()
			}
			if err := manual.Write(root, args[0], man, c.version, at); err != nil {
				return fileFailure(err)
			}
			fields := filepath.Join(args[0], "workload.md")
			if err := os.WriteFile(fields, spec.Reference(), 0o644); err != nil {
				return fileFailure(err)
			}
			writeLines(c.out, []string{filepath.Join(args[0], "persysctl.md"), fields})
			return nil
		},
	}
	cmd.Flags().BoolVar(&man, "man", false, "write DIR/man1/persysctl-*.1 too")
	return cmd
}

// schemaCommand returns the command that prints the JSON schema of specifications. It needs no cluster.
func (c *cli) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of a specification file, for editors",
		Long: `Print the JSON Schema of a specification file. An editor with a YAML language server
marks mistakes and completes fields if the file begins with

  # yaml-language-server: $schema=workload.schema.json

A gateway serves the schema at /schema/workload.json.`,
		Example: "  persysctl schema > workload.schema.json",
		Args:    args(0, 0),
		RunE: func(*cobra.Command, []string) error {
			data, err := spec.Schema()
			if err != nil {
				return err
			}
			_, err = c.out.Write(data)
			return err
		},
	}
}
