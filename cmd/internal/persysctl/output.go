package persysctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/persys/compute/cmd/persysctl/encode"
	"github.com/persys/compute/cmd/persysctl/screen"
)

// Values of the flag --output.
const (
	outTable = "table"
	outWide  = "wide"
	outJSON  = "json"
	outYAML  = "yaml"
	outPath  = "jsonpath=" // jsonpath= is followed by the template
)

func outputs() []string { return []string{outTable, outWide, outJSON, outYAML, outPath + "TEMPLATE"} }

// checkOutput checks the value of --output, and parses the template of jsonpath.
func (c *cli) checkOutput() error {
	text, ok := strings.CutPrefix(c.output, outPath)
	if !ok {
		if !slices.Contains(outputs()[:4], c.output) {
			return usagef("--output %q must be one of %s", c.output, strings.Join(outputs(), ", "))
		}
		return nil
	}
	if !strings.Contains(text, "{") {
		text = "{" + text + "}" // the user gave a path without braces, as in .workloads[*].status
	}
	// For a field that is not in the data, the jsonpath prints nothing instead of an error.
	c.path = jsonpath.New("output").AllowMissingKeys(true)
	if err := c.path.Parse(text); err != nil {
		return failf(exitUsage, "persysctl list -o jsonpath='{range .workloads[*]}{.workload_id}{\"\\n\"}{end}'", "--output: %v", err)
	}
	return nil
}

// machine reports whether the output is JSON, YAML or jsonpath, which programs read.
func (c *cli) machine() bool { return c.output == outJSON || c.output == outYAML || c.path != nil }

// emit writes a message in the format of --output. For a table it calls show.
func (c *cli) emit(m proto.Message, show func()) error {
	if !c.machine() {
		show()
		return nil
	}
	return c.emitMessage(m)
}

func (c *cli) emitMessage(m proto.Message) error {
	var data []byte
	var err error
	if c.output == outYAML {
		data, err = encode.YAML(m, true)
	} else {
		data, err = encode.JSON(m, true)
	}
	if err != nil {
		return err
	}
	return c.emitData(data)
}

// emitData writes JSON or YAML, or the part of the JSON that the jsonpath selects.
func (c *cli) emitData(data []byte) error {
	if c.path == nil {
		_, err := c.out.Write(data)
		return err
	}
	var out bytes.Buffer
	take := func(numbers func(any) any) error {
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			return err
		}
		out.Reset()
		return c.path.Execute(&out, numbers(v))
	}
	err := take(whole)
	// A filter of a jsonpath template can compare a number only with a number of the same Go type. So apply
	// the template to the data with integers first and, if that fails, to the data with floating-point
	// numbers.
	if err != nil && take(func(v any) any { return v }) != nil {
		return failf(exitFailed, "run the same command with -o json to see the fields", "--output: %v", err)
	}
	if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
		out.WriteByte('\n')
	}
	_, err = c.out.Write(out.Bytes())
	return err
}

// whole converts whole numbers of decoded JSON to integers, which are printed without an exponent.
func whole(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = whole(v[k])
		}
	case []any:
		for i := range v {
			v[i] = whole(v[i])
		}
	case float64:
		if n := int64(v); math.Abs(v) < 1<<53 && float64(n) == v {
			return n
		}
	}
	return v
}

// emitItem writes one message of a stream as a line of JSON or as a YAML document.
func (c *cli) emitItem(m proto.Message) error {
	if c.output != outYAML {
		data, err := encode.JSON(m, false)
		if err != nil {
			return err
		}
		return c.emitData(data)
	}
	if _, err := io.WriteString(c.out, "---\n"); err != nil {
		return err
	}
	return c.emitMessage(m)
}

// emitValue is emit for a value that is not an API message.
func (c *cli) emitValue(v any, show func()) error {
	if !c.machine() {
		show()
		return nil
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if c.output == outYAML {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
		_, err = c.out.Write(data)
		return err
	}
	return c.emitData(append(data, '\n'))
}

func completeOutput(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	if strings.HasPrefix(word, "jsonp") {
		return []string{outPath}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return append(outputs()[:4:4], outPath), cobra.ShellCompDirectiveNoFileComp
}

// done prints the result of a change of the object id: what happened, or the message m as JSON or YAML.
func (c *cli) done(id, what string, m message) {
	if c.machine() {
		// Ignore the error: it means that the process which reads stdout has ended.
		_ = c.emitItem(m)
		return
	}
	s := screen.Good
	if what == "unchanged" {
		s = screen.Dim
	}
	writeLines(c.out, []string{id + " " + c.paint.Paint(s, what)})
}

// canAsk reports whether the command can ask the user a question: stdin is a terminal, and so is stderr or stdout.
func (c *cli) canAsk() bool { return c.inTerm && (c.errTerm || c.outTerm) }

// confirm asks the user a question at the terminal and returns an error unless the answer is yes. Without a
// terminal it returns nil without asking, so that scripts work.
func (c *cli) confirm(question string) error {
	to := c.err
	if !c.errTerm {
		to = c.out
	}
	if !c.canAsk() {
		return nil
	}
	fmt.Fprintf(to, "%s [y/N] ", question)
	var answer []byte
	for one := make([]byte, 1); len(answer) < 100; {
		n, err := c.in.Read(one)
		if n == 1 && one[0] != '\n' {
			answer = append(answer, one[0])
		}
		if n == 1 && one[0] == '\n' || errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if a := strings.ToLower(strings.TrimSpace(string(answer))); a != "y" && a != "yes" {
		return failf(exitFailed, "", "nothing was done")
	}
	return nil
}

// print writes a table. With -o wide it writes all columns.
func (c *cli) print(t *screen.Table) {
	width := c.columns()
	if c.output == outWide {
		width = 0
	}
	writeLines(c.out, t.Lines(width, c.paint))
}

// measure reads the present size of the terminal and sets the width of block to it. It is called before each redraw,
// because the user may have resized the terminal.
func (c *cli) measure(block *screen.Live) {
	if c.size == nil || c.width == 0 {
		return
	}
	if columns, rows := c.size(); columns > 0 {
		c.width, c.height = columns, rows
		block.Fit(columns)
	}
}

func (c *cli) printFacts(f *screen.Facts) { writeLines(c.out, f.Lines(c.columns(), c.paint)) }

// section prints the heading of a part of a detailed view.
func (c *cli) section(title string) {
	writeLines(c.out, []string{"", c.paint.Paint(screen.Bold, title)})
}

// say prints the result of an action on one object.
func (c *cli) say(about string, s screen.Style, what string) {
	writeLines(c.out, []string{about + " " + c.paint.Paint(s, what)})
}

func writeText(w io.Writer, text string) {
	_, _ = io.WriteString(w, text) // a write error means that the reader of stdout is gone, so it is ignored
}

func writeLines(w io.Writer, lines []string) {
	// The error is ignored: it means that the process that reads stdout has ended.
	_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
}
