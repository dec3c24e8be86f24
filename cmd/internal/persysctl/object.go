package persysctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/fsm"
)

func (c *cli) secretCommand() *cobra.Command {
	return c.objectCommand("secret", "Keep passwords and keys, and give them to workloads",
		`Keep passwords and keys in the cluster, sealed, and give them to workloads as files in
memory or as environment variables. A workload uses the secrets of its namespace.

Each put makes a new version, even if the value is the same. Otherwise a user could guess
a value, put it, and see whether the guess was right. The workloads that use the secret are
then updated, the members of a group by its update policy. Ten versions are kept.

A workload names the secrets that it uses: docs/guides/secrets.md.`)
}

func (c *cli) configCommand() *cobra.Command {
	return c.objectCommand("config", "Keep configuration files, and give them to workloads",
		`Keep configuration files in the cluster and give them to workloads as files in memory or
as environment variables. A workload uses the configs of its namespace. Configs are not
sealed; use secrets for values that not everybody may read.

A put of another value makes a new version, and the workloads that use the config are
updated, the members of a group by its update policy. Ten versions are kept.

A workload names the configs that it uses: docs/guides/secrets.md. The settings of
persysctl itself are contexts: persysctl context.`)
}

func (c *cli) objectCommand(kind, short, long string) *cobra.Command {
	parent := &cobra.Command{Use: kind, Aliases: []string{kind + "s"}, Short: short, Long: long, Args: args(0, 0), RunE: help}
	complete := c.one(func(ctx context.Context, _ string) []string { return c.objectNames(ctx, kind) })
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the names with their users, without values", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListObjects, &clusterv1.ListObjectsRequest{Kind: kind, Namespace: c.namespace()})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showObjects(kind, r.GetObjects()) })
		}),
	}
	history := &cobra.Command{
		Use: "history NAME", Short: "List the stored versions of a " + kind, Args: args(1, 1, "NAME"), ValidArgsFunction: complete,
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := read(ctx, c, c.cluster.ListObjects, &clusterv1.ListObjectsRequest{Kind: kind, Name: args[0], Namespace: c.objectNamespace()})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showVersions(r.GetObjects()[0]) })
		}),
	}
	var number uint64
	rollback := &cobra.Command{
		Use: "rollback NAME", Short: "Make the value of an earlier version the present one", Args: args(1, 1, "NAME"), ValidArgsFunction: complete,
		Long: `Restore the value of an earlier version: that of --to, by default that of the version
before the present one. The value becomes a new version, and the workloads that use it are
updated.`,
		Example: "  persysctl " + kind + " rollback NAME --to 3",
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.RollBackObject, &clusterv1.RollBackObjectRequest{Kind: kind, Name: args[0], Namespace: c.objectNamespace(), Number: number})
			if err != nil {
				return err
			}
			return c.showPut(args[0], r)
		}),
	}
	rollback.Flags().Uint64Var(&number, "to", 0, "number of the version, see history; default: the version before the present one")
	drop := &cobra.Command{
		Use: "rm NAME", Aliases: []string{"delete"}, Short: "Delete a " + kind + " that no workload uses, with all its versions", Args: args(1, 1, "NAME"), ValidArgsFunction: complete,
		RunE: c.online(func(ctx context.Context, args []string) error {
			r, err := change(ctx, c, c.cluster.DeleteObject, &clusterv1.DeleteObjectRequest{Kind: kind, Name: args[0], Namespace: c.objectNamespace()})
			if err != nil {
				return err
			}
			c.done(args[0], "deleted", r)
			return nil
		}),
	}
	parent.AddCommand(c.putObjectCommand(kind), c.watchable(list), history, c.getObjectCommand(kind), rollback, drop)
	return parent
}

// objectNamespace returns the namespace of the secret or config that a command is about.
func (c *cli) objectNamespace() string {
	return cmp.Or(c.namespace(), fsm.DefaultNamespace)
}

func (c *cli) objectNames(ctx context.Context, kind string) (out []string) {
	r, err := c.cluster.ListObjects(ctx, &clusterv1.ListObjectsRequest{Kind: kind, Namespace: c.objectNamespace()})
	if err != nil {
		return nil
	}
	for _, o := range r.GetObjects() {
		out = append(out, o.GetName())
	}
	return out
}

func (c *cli) putObjectCommand(kind string) *cobra.Command {
	var file, literal string
	cmd := &cobra.Command{
		Use: "put NAME --from-file FILE", Short: "Create a " + kind + ", or give it a new version", Args: args(1, 2, "NAME", "-"),
		Long: `Create a ` + kind + `, or give it a new version: the contents of --from-file, the text of
--from-literal, or with - what the standard input contains. A value has at most 512 KiB.

The text of --from-literal is in the history of the shell and in the list of processes.`,
		Example: "  persysctl " + kind + " put NAME --from-file FILE\n  pass show db | persysctl " + kind + " put NAME -",
	}
	cmd.Flags().StringVar(&file, "from-file", "", "file with the value")
	cmd.Flags().StringVar(&literal, "from-literal", "", "the value itself")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		data, err := c.objectData(cmd, args, file, literal)
		if err != nil {
			return err
		}
		r, err := change(ctx, c, c.cluster.PutObject, &clusterv1.PutObjectRequest{Kind: kind, Name: args[0], Namespace: c.objectNamespace(), Data: data})
		if err != nil {
			return err
		}
		return c.showPut(args[0], r)
	})
	return cmd
}

// objectData reads the value of an object from exactly one source. Errors never contain the value.
func (c *cli) objectData(cmd *cobra.Command, args []string, file, literal string) ([]byte, error) {
	given := 0
	for _, set := range []bool{len(args) == 2, cmd.Flags().Changed("from-file"), cmd.Flags().Changed("from-literal")} {
		if set {
			given++
		}
	}
	switch {
	case len(args) == 2 && args[1] != "-":
		return nil, usagef("the value is not an argument: use --from-file FILE, --from-literal TEXT or -")
	case given != 1:
		return nil, usagef("give the value by exactly one of --from-file FILE, --from-literal TEXT and - (standard input)")
	}
	var from io.Reader = strings.NewReader(literal)
	what := "--from-literal"
	switch {
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			var path *os.PathError
			errors.As(err, &path)
			return nil, usagef("--from-file %s: %v", file, path.Err)
		}
		defer func() { _ = f.Close() }() // the file was only read, so closing it cannot lose data
		from, what = f, "--from-file "+file
	case len(args) == 2:
		from, what = c.in, "standard input"
	}
	data, err := io.ReadAll(io.LimitReader(from, fsm.MaxObjectBytes+1))
	switch {
	case err != nil:
		return nil, usagef("%s: cannot be read: %v", what, err)
	case len(data) > fsm.MaxObjectBytes:
		return nil, usagef("%s: has more than %d bytes, which is the limit", what, fsm.MaxObjectBytes)
	}
	return data, nil
}

func (c *cli) getObjectCommand(kind string) *cobra.Command {
	var show, force bool
	var number uint64
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a config, or one of its versions", Args: args(1, 1, "NAME"),
		Long: `Write the value of a config to the standard output, as it is.`,
	}
	if kind == "secret" {
		cmd.Use, cmd.Short = "get NAME --show", "Show the value of a secret, which is recorded in the audit log"
		cmd.Long = `Write the value of a secret to the standard output, as it is. This needs the permission
secrets, goes only directly to schedulers, not through a gateway, and is recorded in the
audit log before the value is returned.

The value is written to a terminal only with --force, because it stays visible there.`
		cmd.Example = "  persysctl secret get db-password --show > password"
		cmd.Flags().BoolVar(&show, "show", false, "really show the value")
	}
	cmd.Flags().BoolVar(&force, "force", false, "write the value to a terminal too")
	cmd.Flags().Uint64Var(&number, "version", 0, "number of the version, see history; default the present one")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		req := &clusterv1.GetObjectValueRequest{Name: args[0], Namespace: c.objectNamespace(), Number: number}
		if kind != "secret" {
			r, err := read(ctx, c, c.cluster.GetConfig, req)
			if err != nil {
				return err
			}
			return c.writeValue(r, force || printable(r.GetData()))
		}
		if !show {
			return failf(exitUsage, "persysctl secret history "+args[0], "the value of a secret is shown only with --show, which is recorded in the audit log")
		}
		if c.outTerm && !force && !c.machine() {
			return usagef("the standard output is a terminal: send the value to a file or program, or use --force")
		}
		r, err := change(ctx, c, c.cluster.ShowSecret, req)
		if err != nil {
			return err
		}
		return c.writeValue(r, true)
	})
	return cmd
}

// writeValue writes a value unchanged. If the value has control characters and the output is a terminal, it returns an
// error unless agreed is true (the user has given the flag for this).
func (c *cli) writeValue(r *clusterv1.GetObjectValueResponse, agreed bool) error {
	if c.machine() {
		return c.emitMessage(r)
	}
	if c.outTerm && !agreed {
		return usagef("the value has control characters, and the standard output is a terminal: send it to a file, or use --force")
	}
	_, err := c.out.Write(r.GetData())
	return err
}

// printable reports whether a text has no control characters except line ends and tabs.
func printable(data []byte) bool {
	return !strings.ContainsFunc(string(data), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' || r == 0x7f || r == '\ufffd' })
}

// showPut prints the number of a new version and the workloads that get it.
func (c *cli) showPut(name string, r *clusterv1.ObjectResponse) error {
	return c.emit(r, func() {
		word := "version " + strconv.FormatUint(r.GetVersion(), 10)
		if r.GetUnchanged() {
			word += ", unchanged"
		}
		c.say(name, screen.Good, word)
		if len(r.GetWorkloadIds()) > 0 {
			c.say(strings.Join(firstOf(r.GetWorkloadIds(), 5), ", "), screen.Good, "updated to the new version")
		}
		for _, w := range r.GetWarnings() {
			fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, "warning: "+screen.Clean(w)))
		}
	})
}

func (c *cli) showObjects(kind string, list []*clusterv1.Object) {
	if len(list) == 0 {
		c.empty("No "+kind+"s.", "persysctl "+kind+" put NAME --from-file FILE")
		return
	}
	t := screen.NewTable(
		screen.Column{Title: strings.ToUpper(kind), Gives: 1, Least: 10, Keeps: screen.Middle}, screen.Column{Title: "NAMESPACE", Gives: 4, Least: 8}, screen.Column{Title: "VERSION", Right: true},
		screen.Column{Title: "SIZE", Right: true}, screen.Column{Title: "CHANGED"}, screen.Column{Title: "BY", Gives: 3, Least: 8}, screen.Column{Title: "USED BY", Gives: 2, Least: 10},
	)
	for _, o := range list {
		v := o.GetVersions()[0]
		t.Add(screen.Text(o.GetName()), screen.Text(o.GetNamespace()), screen.Text(strconv.FormatUint(v.GetNumber(), 10)), screen.Text(strconv.FormatInt(v.GetSize(), 10)),
			screen.Text(c.ago(v.GetAt())), screen.Text(who(v.GetBy())), screen.Text(usersText(o.GetUsers())))
	}
	c.print(t)
}

func (c *cli) showVersions(o *clusterv1.Object) {
	t := screen.NewTable(screen.Column{Title: "VERSION"}, screen.Column{Title: "SIZE", Right: true}, screen.Column{Title: "CHANGED"},
		screen.Column{Title: "BY", Gives: 3, Least: 8}, screen.Column{Title: "VALUE"}, screen.Column{Title: "USED BY", Gives: 2, Least: 10})
	for i, v := range o.GetVersions() {
		number := screen.Text(strconv.FormatUint(v.GetNumber(), 10))
		if i == 0 {
			number = screen.Styled(number.Text+" (now)", screen.Good)
		}
		value := "new"
		if v.GetFrom() != 0 {
			value = "of version " + strconv.FormatUint(v.GetFrom(), 10)
		}
		var users []*clusterv1.ObjectUser
		for _, u := range o.GetUsers() {
			if u.GetVersion() == v.GetNumber() || u.GetVersion() == 0 && i == 0 {
				users = append(users, u)
			}
		}
		t.Add(number, screen.Text(strconv.FormatInt(v.GetSize(), 10)), screen.Text(c.ago(v.GetAt())), screen.Text(who(v.GetBy())), screen.Text(value), screen.Text(usersText(users)))
	}
	c.print(t)
}

// usersText lists the ids of the workloads that use an object; a long list is cut.
func usersText(list []*clusterv1.ObjectUser) string {
	if len(list) == 0 {
		return screen.None
	}
	var ids []string
	for _, u := range list {
		ids = append(ids, u.GetWorkloadId())
	}
	return strings.Join(firstOf(ids, 5), ", ")
}

// firstOf returns the first n elements of a list as text, followed by how many more there are.
func firstOf(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(list[:n:n], fmt.Sprintf("and %d more", len(list)-n))
}
