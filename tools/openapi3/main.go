// Openapi3 reads an OpenAPI 2 document from standard input and writes the same API as an OpenAPI 3 document to
// standard output. hack/proto.sh runs it. The generator of the OpenAPI 2 document cannot write OpenAPI 3 from
// routes that stand in a file of their own (api/rest/rest.yaml).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
	"github.com/getkin/kin-openapi/openapi3"
)

func main() {
	if err := convert(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "openapi3:", err)
		os.Exit(1)
	}
}

// The generator of the OpenAPI 2 document adds this text to the description of a response that is a stream.
const streams = "(streaming responses)"

// describeStream gives the response of a streaming call its second media type: a gateway sends server-sent events
// to a client that accepts them, and one JSON object per line otherwise.
func describeStream(response *openapi3.Response) {
	if response.Description == nil || !strings.HasSuffix(*response.Description, streams) {
		return
	}
	description := strings.TrimSuffix(*response.Description, streams) + " One JSON object per line, or server-sent events."
	response.Description = &description
	response.Content["text/event-stream"] = response.Content["application/json"]
}

func convert(r io.Reader, w io.Writer) error {
	var v2 openapi2.T
	if err := json.NewDecoder(r).Decode(&v2); err != nil {
		return fmt.Errorf("the OpenAPI 2 document: %w", err)
	}
	v3, err := openapi2conv.ToV3(&v2)
	if err != nil {
		return fmt.Errorf("convert to OpenAPI 3: %w", err)
	}
	v3.Servers = openapi3.Servers{{URL: "/", Description: "the gateway that serves this document"}}
	for _, path := range v3.Paths.Map() {
		for _, operation := range path.Operations() {
			for _, response := range operation.Responses.Map() {
				describeStream(response.Value)
			}
		}
	}
	if err := v3.Validate(context.Background()); err != nil {
		return fmt.Errorf("the OpenAPI 3 document: %w", err)
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(v3)
}
