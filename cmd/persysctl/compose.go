package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/spec/composefile"
)

func (c *cli) composeCommand() *cobra.Command {
	parent := &cobra.Command{Use: "compose", Short: "Check Compose files before they are applied", Args: args(0, 0), RunE: help}
	parent.AddCommand(&cobra.Command{
		Use: "check FILE|-", Short: "Show how each key of a Compose file is treated",
		Long: `Show how each key of a Compose file is treated on a node: honoured as Compose does,
translated (done in another way), ignored, or refused (the stack does not start with
this key). The command needs no cluster. Its exit code is 1 if a key is refused.`,
		Example: `  persysctl compose check docker-compose.yml
  docker compose config | persysctl compose check -`,
		Args: args(1, 1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error { return c.checkCompose(args[0]) },
	})
	return parent
}

// composeKey is a row of `compose check -o json`.
type composeKey struct {
	Line    int    `json:"line"`
	Key     string `json:"key"`
	Verdict string `json:"verdict"`
	Note    string `json:"note,omitempty"`
}

func (c *cli) checkCompose(name string) error {
	var text []byte
	var err error
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(c.in, spec.MaxSpec+1))
	} else {
		text, err = c.readFile(name)
	}
	if err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	if len(text) > spec.MaxSpec {
		return failf(exitFailed, "", "%s: must be at most %d bytes", name, spec.MaxSpec)
	}
	keys, err := composefile.Keys(string(text))
	if err != nil {
		if _, serr := spec.Parse(name, text, spec.Options{}); serr == nil {
			return failf(exitFailed, "persysctl plan -f "+name, "%s is a specification of workloads and not a Compose file", name)
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
	return nil
}

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
