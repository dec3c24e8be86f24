package persysctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/persys/compute/cmd/persysctl/manifest"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/spec/composefile"
	"github.com/persys/compute/stack"
)

func (c *cli) composeCommand() *cobra.Command {
	parent := &cobra.Command{Use: "compose", Short: "Check Compose files before they are applied", Args: args(0, 0), RunE: help}
	var envFiles []string
	check := &cobra.Command{
		Use: "check FILE|-", Short: "Show how each key of a Compose file is treated",
		Long: `Show how each key of a Compose file is treated on a node: honoured as Compose does,
translated (done in another way), ignored, or refused (the stack does not start with
this key). The file is then loaded as apply would load it, so the command also finds a
variable that is not set, a file that does not exist, and a value that no engine accepts.
It needs no cluster. Its exit code is 1 if a key is refused or the stack has a fault.`,
		Example: `  persysctl compose check docker-compose.yml
  docker compose config | persysctl compose check -`,
		Args: args(1, 1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.checkCompose(cmd.Context(), args[0], envFiles) },
	}
	envFileFlag(check.Flags(), &envFiles)
	parent.AddCommand(check)
	return parent
}

// composeKey is a row of `compose check -o json`.
type composeKey struct {
	Line    int    `json:"line"`
	Key     string `json:"key"`
	Verdict string `json:"verdict"`
	Note    string `json:"note,omitempty"`
}

// readSource reads one file, or the standard input for "-".
func (c *cli) readSource(name string) (source manifest.Source, err error) {
	sources, err := manifest.Read([]string{name}, false, c.in)
	if err != nil {
		return source, failf(exitFailed, "", "%v", err)
	}
	if len(sources) != 1 {
		return source, failf(exitFailed, "", "%s: must be one file", name)
	}
	return sources[0], nil
}

func (c *cli) checkCompose(ctx context.Context, name string, envFiles []string) error {
	source, err := c.readSource(name)
	if err != nil {
		return err
	}
	text := source.Data
	if len(text) > spec.MaxSpec {
		return failf(exitFailed, "", "%s: must be at most %d bytes", name, spec.MaxSpec)
	}
	keys, err := composefile.Keys(string(text))
	if err != nil {
		if _, serr := spec.Parse(name, text, spec.Options{}); serr == nil {
			return failf(exitFailed, "persysctl plan -f "+name, "%s is a specification of workloads and not a Compose file", name)
		}
		if !errors.Is(err, composefile.ErrNotCompose) {
			if found := c.loadCompose(ctx, source, envFiles); found != nil {
				return found // the error is the one that plan and apply would print
			}
		}
		return failf(exitFailed, "", "%s: %v", name, err)
	}
	rows, refused := make([]composeKey, 0, len(keys)), 0
	for _, k := range keys {
		rows = append(rows, composeKey{k.Line, k.Path, k.Verdict, k.Note})
		if k.Verdict == composefile.Refused {
			refused++
		}
	}
	if err := c.emitValue(map[string]any{"keys": rows}, func() {
		t := screen.NewTable(screen.Column{Title: "LINE", Right: true}, screen.Column{Title: "KEY", Gives: 2, Least: 24, Keeps: screen.Tail},
			screen.Column{Title: "VERDICT"}, screen.Column{Title: "NOTE", Gives: 1, Least: 20})
		for _, r := range rows {
			t.Add(screen.Text(fmt.Sprint(r.Line)), screen.Text(r.Key), screen.Styled(r.Verdict, verdictStyle(r.Verdict)), screen.Text(r.Note))
		}
		c.print(t)
	}); err != nil {
		return err
	}
	if refused > 0 {
		return failf(exitFailed, "", "%s: %s refused", name, screen.Plural(refused, "key"))
	}
	return c.loadCompose(ctx, source, envFiles)
}

// loadCompose loads a Compose file as plan and apply do, and returns an error for the same faults.
func (c *cli) loadCompose(ctx context.Context, from manifest.Source, envFiles []string) error {
	packer := c.packer(ctx, envFiles)
	packer.from = from.Name
	name := ""
	if from.Local("", from.Data).Dir == "" {
		name = "check" // a workload from standard input may have no name, but the check needs one
	}
	if _, err := spec.Documents(from.Name, from.Data, from.Options(name, c.readFile, packer.pack)); err != nil {
		faults := strings.Split(err.Error(), "\n")
		for i := range faults {
			faults[i] = screen.Clean(faults[i])
		}
		c.tell(faults)
		return failf(exitFailed, "", "%s", screen.Plural(len(faults), "mistake"))
	}
	packer.tell(c.err)
	return nil
}

func stackFlags(f *pflag.FlagSet, o *applyOptions) {
	f.StringVar(&o.name, "name", "", "name of the stack to create from a Compose file")
	envFileFlag(f, &o.envFiles)
}

func envFileFlag(f *pflag.FlagSet, to *[]string) {
	f.StringArrayVar(to, "env-file", nil, "file with variables of Compose files, instead of the .env beside them; may be repeated")
}

// packer loads the Compose files that one run of persysctl needs, with the files to which they refer.
type packer struct {
	loader   *stack.Loader
	ctx      context.Context
	envFiles []string
	shell    map[string]string
	from     string   // name of the file that is being parsed
	notes    []string // for stderr
}

func (c *cli) packer(ctx context.Context, envFiles []string) *packer {
	p := &packer{loader: stack.NewLoader(stack.Options{}), ctx: ctx, envFiles: envFiles, shell: map[string]string{}}
	for _, kv := range c.shell() {
		k, v, _ := strings.Cut(kv, "=")
		p.shell[k] = v
	}
	return p
}

func (p *packer) pack(in stack.Local) (*stack.Packed, error) {
	in.EnvFiles, in.Shell = p.envFiles, p.shell
	out, err := p.loader.Pack(p.ctx, in)
	if err != nil {
		return nil, err
	}
	for _, w := range out.Warnings {
		// If a warning begins with the name of the file and a position in it, add only the folder, so that the file is
		// not named twice.
		if folder, ok := strings.CutSuffix(p.from, in.File); ok && strings.HasPrefix(w, in.File+":") {
			p.notes = append(p.notes, folder+screen.Clean(w))
			continue
		}
		p.note(w)
	}
	if len(out.FromShell) > 0 {
		p.note("from this shell: " + strings.Join(out.FromShell, ", "))
	}
	if n := len(out.Files); n > 0 {
		var names []string
		size := 0
		for _, f := range out.Files {
			names, size = append(names, f.Path), size+len(f.Data)
		}
		p.note(screen.Plural(n, "file") + ", " + stack.Size(int64(size)) + sentWithIt(n) + listed(names))
	}
	if len(out.Empty) > 0 {
		p.note("nothing is in " + listed(out.Empty) + ": the stack begins with an empty folder there")
	}
	return out, nil
}

// maxListed is the maximum number of files that a note about the files of a stack names.
const maxListed = 20

func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return strings.Join(names[:maxListed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

func sentWithIt(n int) string {
	if n == 1 {
		return " is sent with it: "
	}
	return " are sent with it: "
}

func (p *packer) tell(w io.Writer) {
	for _, line := range p.notes {
		fmt.Fprintln(w, line)
	}
}

func (p *packer) note(text string) { p.notes = append(p.notes, p.from+": "+screen.Clean(text)) }

func verdictStyle(verdict string) screen.Style {
	switch verdict {
	case composefile.Honoured:
		return screen.Good
	case composefile.Refused:
		return screen.Bad
	case composefile.Translated:
		return screen.Warn
	}
	return screen.Dim
}
