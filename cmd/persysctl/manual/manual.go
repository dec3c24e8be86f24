// Package manual writes what the command line says of itself as a page of
// Markdown and as manual pages, so that neither is ever older than the program.
package manual

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Markdown is the reference of a program: its flags, its topics, every command.
func Markdown(root *cobra.Command) string {
	var b strings.Builder
	name := root.Name()
	fmt.Fprintf(&b, "# %s\n\nWritten by `make reference` from the program itself: change the commands, not this page.\n\n", name)
	b.WriteString(prose(root.Long) + "\n\n```text\n" + plain(root.Example) + "\n```\n\n## Flags of every command\n\n")
	flagList(&b, root.PersistentFlags())
	for _, cmd := range root.Commands() {
		if cmd.IsAdditionalHelpTopicCommand() && !cmd.Hidden {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n", cmd.Short, prose(cmd.Long))
		}
	}
	b.WriteString("\n## Commands\n")
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n%s\n\n| Command | |\n|---|---|\n", strings.TrimSuffix(g.Title, ":"))
		for _, cmd := range root.Commands() {
			if shown(cmd) && cmd.GroupID == g.ID {
				fmt.Fprintf(&b, "| [%s](#%s) | %s |\n", cmd.Name(), anchor(cmd), cmd.Short)
			}
		}
	}
	describe(&b, root)
	return b.String()
}

func shown(cmd *cobra.Command) bool {
	return !cmd.Hidden && cmd.Name() != "help" && !cmd.IsAdditionalHelpTopicCommand()
}

// anchor is how the forge names a heading.
func anchor(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

func describe(b *strings.Builder, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		if !shown(cmd) {
			continue
		}
		fmt.Fprintf(b, "\n### %s\n\n%s.\n\n```text\n%s\n```\n", cmd.CommandPath(), cmd.Short, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		if len(cmd.Aliases) > 0 {
			fmt.Fprintf(b, "\nAlso: `%s`.\n", strings.Join(cmd.Aliases, "`, `"))
		}
		if cmd.Name() == "completion" {
			// The library's own text on each shell is shown by the command.
			b.WriteString("\n`persysctl completion bash --help` (or zsh, fish) says how to load it.\n")
			continue
		}
		if cmd.Long != "" {
			b.WriteString("\n" + prose(cmd.Long) + "\n")
		}
		if cmd.Example != "" {
			b.WriteString("\n```text\n" + plain(cmd.Example) + "\n```\n")
		}
		if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
			b.WriteByte('\n')
			flagList(b, cmd.LocalNonPersistentFlags())
		}
		describe(b, cmd)
	}
}

// prose keeps indented blocks as they are drawn.
func prose(text string) string {
	var out []string
	inside := false
	for _, line := range strings.Split(text, "\n") {
		if block := strings.HasPrefix(line, "  "); block != inside {
			fence := "```"
			if block {
				fence = "```text" // nothing here is run as it stands
			}
			out = append(out, fence)
			inside = block
		}
		out = append(out, strings.TrimPrefix(line, "  "))
	}
	if inside {
		out = append(out, "```")
	}
	return strings.Join(out, "\n")
}

func plain(example string) string {
	lines := strings.Split(example, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

func flagList(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| Flag | Meaning |\n|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		_, usage := pflag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && !strings.Contains(usage, "default") {
			usage += " (default `" + f.DefValue + "`)"
		}
		fmt.Fprintf(b, "| %s | %s |\n", name, strings.ReplaceAll(usage, "|", "\\|"))
	})
}

// Write puts the page into dir/NAME.md and a manual page for every command into
// dir/man1, when man is set. at is the date that the manual pages show.
func Write(root *cobra.Command, dir string, man bool, version string, at time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, root.Name()+".md"), []byte(Markdown(root)), 0o644); err != nil {
		return err
	}
	if !man {
		return nil
	}
	pages := filepath.Join(dir, "man1")
	if err := os.MkdirAll(pages, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Title: strings.ToUpper(root.Name()), Section: "1", Date: &at, Source: "Persys Compute " + version, Manual: "Persys Compute"}, pages)
}
