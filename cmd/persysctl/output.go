package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/persys/compute/cmd/persysctl/encode"
)

// Forms of output.
const (
	outTable = "table"
	outWide  = "wide"
	outJSON  = "json"
	outYAML  = "yaml"
	outPath  = "jsonpath=" // followed by a template
)

func outputs() []string { return []string{outTable, outWide, outJSON, outYAML, outPath + "TEMPLATE"} }

// checkOutput reads --output, and the template of a jsonpath once.
func (c *cli) checkOutput() error {
	text, ok := strings.CutPrefix(c.output, outPath)
	if !ok {
		if !slices.Contains(outputs()[:4], c.output) {
			return usagef("--output %q must be one of %s", c.output, strings.Join(outputs(), ", "))
		}
		return nil
	}
	if !strings.Contains(text, "{") {
		text = "{" + text + "}" // a bare path: .workloads[*].status
	}
	// A field that is not there prints nothing, as an empty column does.
	c.path = jsonpath.New("output").AllowMissingKeys(true)
	if err := c.path.Parse(text); err != nil {
		return failf(exitUsage, "persysctl list -o jsonpath='{range .workloads[*]}{.workload_id}{\"\\n\"}{end}'", "--output: %v", err)
	}
	return nil
}

// machine reports whether a program reads the output.
func (c *cli) machine() bool { return c.output == outJSON || c.output == outYAML || c.path != nil }

// emit writes a message as JSON or YAML, or lets show write it for people.
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

// emitData writes what is encoded already, or what the jsonpath takes out of it.
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
	// A filter compares whole numbers with whole ones only, and others with others.
	if err != nil && take(func(v any) any { return v }) != nil {
		return failf(exitFailed, "the same command with -o json shows what there is", "--output: %v", err)
	}
	if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
		out.WriteByte('\n')
	}
	_, err = c.out.Write(out.Bytes())
	return err
}

// whole has the whole numbers of what JSON holds as such: a large one is written with an exponent else.
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

// emitItem writes one message of a stream: a line of JSON, or a YAML document.
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

// emitValue is emit for what is no message of our API.
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
