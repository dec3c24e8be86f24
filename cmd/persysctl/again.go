package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/persys/compute/cmd/persysctl/screen"
)

// watchEvery is the time between two looks of --watch where the API has no
// stream of changes.
const watchEvery = 2 * time.Second

// watchable makes a command that shows something one that can go on showing it.
func (c *cli) watchable(cmd *cobra.Command) *cobra.Command {
	var on bool
	cmd.Flags().BoolVarP(&on, "watch", "w", false, "go on showing it until Ctrl-C")
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !on {
			return once(cmd, args)
		}
		return c.again(cmd.Context(), watchEvery, func() error { return once(cmd, args) })
	}
	return cmd
}

// passing is what changes between two looks though nothing happened: ages,
// times, indexes.
var passing = regexp.MustCompile(`\b\d+[smhd](\d+[smhd])?\b|\d{4}-\d\d-\d\d[T ][0-9:.]+Z?|"?(index|age_ms|term|last_index|commit_index|applied_index|match_index|last_contact_ms)"?: "?\d+"?|[ \t]+`)

// again shows every so often what a command prints: in place on a terminal,
// elsewhere only when it is new.
func (c *cli) again(ctx context.Context, every time.Duration, once func() error) error {
	out, notes := c.out, c.err
	defer func() { c.out, c.err = out, notes }()
	block := &screen.Live{W: out}
	ticker := time.NewTicker(cmp.Or(c.pace, every))
	defer ticker.Stop()
	before, failing := "", false
	for first := true; ; first = false {
		var b, said bytes.Buffer
		c.out, c.err = &b, &said
		if !c.machine() {
			c.err = &b // a hint belongs to the view, and is as old
		}
		c.measure(block)
		c.staleNoted = false // each view says of itself that it is stale
		err := once()
		c.out, c.err = out, notes
		var f *failure
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is how a watch ends
		case err != nil && errors.As(err, &f) && f.code == exitUnavailable && !first:
			// It may come back, and what is on the screen still holds.
			if !failing {
				fmt.Fprintln(c.err, c.errPaint.Paint(screen.Warn, f.text))
				block.Leave()
			}
			failing = true
		case err != nil:
			writeText(out, b.String())
			writeText(notes, said.String())
			return err
		default:
			failing = false
			before = c.showAgain(block, b.String(), before)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *cli) showAgain(block *screen.Live, text, before string) string {
	if c.outTerm && !c.machine() {
		lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
		if most := max(5, c.height-3); c.height > 0 && len(lines) > most {
			lines = append(lines[:most], c.paint.Paint(screen.Dim, fmt.Sprintf("and %d more lines", len(lines)-most)))
		}
		block.Draw(append(lines, c.paint.Paint(screen.Dim, c.now().In(c.zone).Format(time.TimeOnly)+"  (Ctrl-C ends)")))
		return ""
	}
	key := passing.ReplaceAllString(text, "~")
	if key == before {
		return before
	}
	if before != "" {
		switch c.output {
		case outYAML:
			text = "---\n" + text
		case outJSON:
		default:
			text = "\n" + text
		}
	}
	writeText(c.out, text)
	return key
}
