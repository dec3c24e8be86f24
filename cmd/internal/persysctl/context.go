package persysctl

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/config"
	"github.com/persys/compute/pki"
)

func (c *cli) contextCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "context", Short: "Name clusters and switch between them",
		Long: `Name clusters and switch between them.

A context is an address (of schedulers, or of a gateway if it begins with http:// or
https://) and the names of the files that identify you. It holds no secret. Contexts
are kept in $XDG_CONFIG_HOME/persys/contexts.yaml, by default below ~/.config.

A command uses the cluster of --context or --server, else that of PERSYS_SCHEDULER_ADDR
and its other names, else of PERSYS_CONTEXT, else of the current context, else of the
file ~/.persys/config.yaml, else 127.0.0.1:8085.`,
		Args: args(0, 0), RunE: help,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the contexts; * is the current one", Args: args(0, 0),
		RunE: c.withContexts(func(f *contexts.File, _ []string) error { return c.listContexts(f) }),
	}
	use := &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: args(1, 1, "NAME"), ValidArgsFunction: c.completeContext,
		RunE: c.withContexts(func(f *contexts.File, args []string) error {
			if _, ok := f.Get(args[0]); !ok {
				return noContext(args[0])
			}
			f.Current = args[0]
			if err := f.Save(); err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			c.say(args[0], screen.Good, "is the current context")
			if by := c.overriding(); by != "" {
				c.empty(by+" is set and overrides the current context.", "unset "+by)
			}
			return nil
		}),
	}
	remove := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm", "delete"}, Short: "Remove a context, and keep the files that it names", Args: args(1, 1, "NAME"), ValidArgsFunction: c.completeContext,
		RunE: c.withContexts(func(f *contexts.File, args []string) error {
			current := f.Current == args[0]
			if !f.Remove(args[0]) {
				return noContext(args[0])
			}
			if err := f.Save(); err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			c.say(args[0], screen.Good, "removed")
			if current && len(f.Contexts) > 0 {
				c.empty("No context is current now.", "persysctl context use "+f.Contexts[0].Name)
			}
			return nil
		}),
	}
	show := &cobra.Command{
		Use: "show [NAME]", Short: "Show a context, or which cluster is in use and why", Args: args(0, 1, "NAME"), ValidArgsFunction: c.completeContext,
		RunE: func(_ *cobra.Command, args []string) error { return c.showContext(args) },
	}
	parent.AddCommand(list, use, c.addContextCommand(), remove, show)
	return parent
}

func noContext(name string) error {
	return failf(exitNotFound, "persysctl context list", "context %q does not exist", name)
}

func (c *cli) withContexts(do func(*contexts.File, []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		f, err := contexts.Load(contexts.Path(c.environ, c.home))
		if err != nil {
			return usagef("%v", err)
		}
		return do(f, args)
	}
}

// overriding returns the environment variable that is set and overrides the current context (the stored
// connection to a cluster), or "" if none is set.
func (c *cli) overriding() string {
	for _, name := range []string{"PERSYS_SCHEDULER_ADDR", "PERSYS_SERVER", "GRPC_ENDPOINT", "API_ENDPOINT", "PERSYS_CONTEXT"} {
		if v, ok := c.environ(name); ok && v != "" {
			return name
		}
	}
	return ""
}

func (c *cli) addContextCommand() *cobra.Command {
	var use, replace bool
	cmd := &cobra.Command{
		Use: "add NAME --server ADDRESS", Short: "Add a cluster under a name, with the connection flags of this command",
		Example: `  persysctl context add home --server 10.0.0.1,10.0.0.2 --tls-ca ca.pem --tls-cert me.pem --tls-key me-key.pem
  persysctl context add work --server https://gateway.example:8551 --token-file ~/.persys/token --use
  persysctl context add dev --server 127.0.0.1:8085 --insecure`,
		Args: args(1, 1, "NAME"),
		RunE: c.withContexts(func(f *contexts.File, args []string) error {
			entry, err := c.newContext(args[0])
			if err != nil {
				return err
			}
			if _, there := f.Get(entry.Name); there && !replace {
				return failf(exitFailed, "persysctl context show "+entry.Name+"   or add --replace", "context %q exists already", entry.Name)
			}
			if err := f.Put(entry); err != nil {
				return usagef("%v", err)
			}
			if use {
				f.Current = entry.Name
			}
			if err := f.Save(); err != nil {
				return failf(exitFailed, "", "%v", err)
			}
			c.say(entry.Name, screen.Good, "added")
			if f.Current != entry.Name {
				c.empty("", "persysctl context use "+entry.Name)
			}
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&use, "use", false, "make it the current context")
	flags.BoolVar(&replace, "replace", false, "replace the context of that name")
	return cmd
}

// newContext returns a context called name from the connection flags. It ignores environment variables, so
// that the context contains only values that the user typed.
func (c *cli) newContext(name string) (contexts.Context, error) {
	if err := c.loader.Load(config.Sources{}); err != nil {
		return contexts.Context{}, usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	s := c.settings
	out := contexts.Context{Name: name, Server: s.Server, Insecure: s.Insecure, ClusterID: s.ClusterID, Namespace: s.Namespace}
	if !c.loader.Set("Server") {
		return out, failf(exitUsage, "persysctl context add "+name+" --server ADDRESS", "the address of the cluster is missing")
	}
	for _, p := range []struct {
		to          *string
		flag, value string
	}{{&out.CA, "--tls-ca", s.CA}, {&out.Cert, "--tls-cert", s.Cert}, {&out.Key, "--tls-key", s.Key}, {&out.TokenFile, "--token-file", s.TokenFile}} {
		if p.value == "" {
			continue
		}
		abs, err := filepath.Abs(p.value)
		if err == nil {
			err = exists(abs)
		}
		if err != nil {
			return out, usagef("%s: %v", p.flag, err)
		}
		*p.to = abs
	}
	switch {
	case out.Insecure && out.CA+out.Cert+out.Key != "":
		return out, usagef("--insecure and --tls-… exclude each other")
	case (out.Cert == "") != (out.Key == ""):
		return out, usagef("--tls-cert and --tls-key belong together")
	case out.TokenFile != "" && !contexts.Gateway(out.Server):
		return out, usagef("--token-file is for a gateway (--server http(s)://…); schedulers take certificates")
	}
	if out.CA != "" && out.Cert != "" {
		if _, err := pki.LoadFiles(pki.FilesConfig{CA: out.CA, Cert: out.Cert, Key: out.Key}); err != nil {
			return out, usagef("%v", err)
		}
	}
	return out, nil
}

func (c *cli) listContexts(f *contexts.File) error {
	return c.emitValue(map[string]any{"current": f.Current, "contexts": f.Contexts}, func() {
		if len(f.Contexts) == 0 {
			c.empty("No contexts.", "persysctl context add NAME --server ADDRESS")
			return
		}
		t := screen.NewTable(screen.Column{Title: ""}, screen.Column{Title: "NAME"}, screen.Column{Title: "SERVER", Gives: 1, Least: 20}, screen.Column{Title: "BY"},
			screen.Column{Title: "SECURITY"}, screen.Column{Title: "CERTIFICATE", Wide: true}, screen.Column{Title: "TOKEN", Wide: true})
		for _, x := range f.Contexts {
			mark := screen.Text("")
			if x.Name == f.Current {
				mark = screen.Styled("*", screen.Good)
			}
			security := screen.Text(x.Security())
			if security.Text == "plain text" {
				security.Style = screen.Warn
			}
			t.Add(mark, screen.Text(x.Name), screen.Text(x.Server), screen.Text(x.Transport()), security, screen.Text(x.Cert), screen.Text(x.TokenFile))
		}
		c.print(t)
		if by := c.overriding(); by != "" {
			c.empty(by+" is set and overrides the current context.", "unset "+by)
		}
	})
}

func (c *cli) showContext(args []string) error {
	var x contexts.Context
	from := ""
	if len(args) == 1 {
		f, err := contexts.Load(contexts.Path(c.environ, c.home))
		if err != nil {
			return usagef("%v", err)
		}
		var ok bool
		if x, ok = f.Get(args[0]); !ok {
			return noContext(args[0])
		}
	} else {
		if err := c.load(); err != nil {
			return err
		}
		s := c.settings
		x = contexts.Context{Name: c.context, Server: s.Server, Insecure: s.Insecure, CA: s.CA, Cert: s.Cert, Key: s.Key, ClusterID: s.ClusterID, Namespace: s.Namespace, TokenFile: s.TokenFile}
		from = c.connectionFrom()
	}
	return c.emitValue(x, func() {
		f := &screen.Facts{}
		f.Add("Context", screen.Styled(cmp.Or(x.Name, screen.None), screen.Bold))
		f.Add("Server", screen.Text(x.Server))
		f.Add("By", screen.Text(fmt.Sprintf("%s, %s", x.Transport(), x.Security())))
		f.Add("Cluster id", screen.Text(x.ClusterID))
		f.Add("Namespace", screen.Text(x.Namespace))
		f.Add("CA", screen.Text(x.CA))
		f.Add("Certificate", screen.Text(x.Cert))
		f.Add("Key", screen.Text(x.Key))
		f.Add("Token", screen.Text(x.TokenFile))
		f.Add("Decided by", screen.Text(from))
		c.printFacts(f)
	})
}

func (c *cli) completeContext(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	f, err := contexts.Load(contexts.Path(c.environ, c.home))
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, x := range f.Contexts {
		if len(x.Name) >= len(word) && x.Name[:len(word)] == word {
			out = append(out, x.Name+"\t"+x.Server)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
