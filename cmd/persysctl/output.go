package main

import (
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/cmd/persysctl/encode"
)

// Forms of output.
const (
	outTable = "table"
	outWide  = "wide"
	outJSON  = "json"
	outYAML  = "yaml"
)

func outputs() []string { return []string{outTable, outWide, outJSON, outYAML} }

// machine reports whether a program reads the output.
func (c *cli) machine() bool { return c.output == outJSON || c.output == outYAML }

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
	_, err = c.out.Write(data)
	return err
}

// emitItem writes one message of a stream: a line of JSON, or a YAML document.
func (c *cli) emitItem(m proto.Message) error {
	if c.output != outYAML {
		data, err := encode.JSON(m, false)
		if err == nil {
			_, err = c.out.Write(data)
		}
		return err
	}
	if _, err := io.WriteString(c.out, "---\n"); err != nil {
		return err
	}
	return c.emitMessage(m)
}
