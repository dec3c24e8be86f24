package persysctl

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

// watchEvery is the interval of --watch for commands whose API has no stream of changes.
const watchEvery = 2 * time.Second

// watchable adds the flag --watch to a command. With this flag, the command is repeated and its new output shown.
func (c *cli) watchable(cmd *cobra.Command) *cobra.Command {
	var on bool
	cmd.Flags().BoolVarP(&on, "watch", "w", false, "repeat until Ctrl-C, and show changes")
	once := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !on {
			return once(cmd, args)
		}
		return c.repeat(cmd.Context(), watchEvery, func() error { return once(cmd, args) })
	}
	return cmd
}

// passing matches the parts of an output that may differ between two runs of a command although the cluster
// is unchanged: ages, times, indexes and spaces.
var passing = regexp.MustCompile(`\b\d+[smhd](\d+[smhd])?\b|\d{4}-\d\d-\d\d[T ][0-9:.]+Z?|"?(index|age_ms|term|last_index|commit_index|applied_index|match_index|last_contact_ms)"?: "?\d+"?|[ \t]+`)

// repeat runs the command once in each interval. On a terminal it redraws the output in place; elsewhere it
// prints the output only if it has changed.
func (c *cli) repeat(ctx context.Context, every time.Duration, once func() error) error {
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
			c.err = &b // hints on stderr become part of the redrawn output
		}
		c.measure(block)
		c.staleNoted = false // each output must contain the note that it is stale
		err := once()
		c.out, c.err = out, notes
		var f *failure
		switch {
		case ctx.Err() != nil:
			return nil // the user pressed Ctrl-C
		case err != nil && errors.As(err, &f) && f.code == exitUnavailable && !first:
			// The command continues after an error, because the schedulers may become reachable again.
			// Until then the last output stays on the screen.
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
