package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/persys/compute/api/rest"
)

// apiCommand returns the command that prints docs/reference/api.md, from the OpenAPI document that gateways
// serve.
func apiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "api", Short: "print every call and message of the HTTP API as a Markdown page", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return writeAPI(cmd.OutOrStdout(), rest.OpenAPI) },
	}
}

// The types below hold those parts of an OpenAPI 2 document that occur in the gateway's document.
type (
	apiDocument struct {
		Info struct {
			Title, Description string
		}
		Paths       map[string]map[string]apiCall
		Definitions map[string]apiSchema
	}
	apiCall struct {
		Summary, Description string
		Parameters           []apiParameter
		Responses            map[string]struct{ Schema apiSchema }
	}
	apiParameter struct {
		Name, In, Description string
		Required              bool
		Schema                *apiSchema
		apiType
	}
	apiSchema struct {
		Title, Description string
		Properties         map[string]apiSchema
		apiType
	}
	apiType struct {
		Ref                  string `json:"$ref"`
		Type, Format         string
		Enum                 []string
		Items                *apiSchema
		AdditionalProperties *apiSchema
	}
)

const apiHeader = `# HTTP API

Written by ` + "`make reference`" + ` from the OpenAPI document that a gateway serves at ` + "`/openapi.json`" + ` (version 2.0), ` + "`/openapi3.json`" + ` (version 3.0, for generators of clients) and, for people, ` + "`/docs`" + `. Integers of 64 bits
are strings in JSON. Errors are ` + "`{\"error\", \"code\", \"reason\"}`" + ` with the HTTP status of their kind. ` + "`Idempotency-Key`" + ` (a UUIDv7) makes
a repeated change happen once; with another call the same key is a 422. ` + "`If-Match`" + ` with the ` + "`ETag`" + ` of a workload, or ` + "`If-None-Match: *`" + `, makes a change
conditional; 412 means that the workload is at another revision.

One call is missing in this document, because OpenAPI cannot describe it: ` + "`GET /v1/workloads/{workload_id}/exec`" + ` upgrades to a websocket with the subprotocol
` + "`persys.exec.v1`" + `. The messages are the JSON of ` + "`ExecRequest`" + ` upwards, the first one ` + "`{\"open\": {\"command\": [\"sh\"], \"tty\": true, \"input\": true}}`" + `,
and of ` + "`ExecResponse`" + ` downwards; ` + "`{\"error\": {\"code\", \"reason\", \"message\"}}`" + ` ends a session that failed. A browser sends its bearer token as a second
subprotocol, ` + "`persys.token.`" + ` and the token in base64url without padding.
`

// writeAPI writes the Markdown page of an OpenAPI document.
func writeAPI(w io.Writer, document []byte) error {
	var doc apiDocument
	if err := json.Unmarshal(document, &doc); err != nil {
		return fmt.Errorf("the OpenAPI document: %w", err)
	}
	var b strings.Builder
	b.WriteString(apiHeader)
	fmt.Fprintf(&b, "\n%s\n\n## Calls\n", oneLine(doc.Info.Description))
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, verb := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			call := doc.Paths[path][verb]
			fmt.Fprintf(&b, "\n### %s %s\n\n%s\n", strings.ToUpper(verb), path, oneLine(call.Summary+" "+call.Description))
			rows := [][3]string{}
			for _, p := range call.Parameters {
				kind := p.kind()
				if p.Schema != nil {
					kind = p.Schema.kind()
				}
				where := p.In
				if p.Required {
					where += ", required"
				}
				rows = append(rows, [3]string{"`" + p.Name + "` (" + where + ")", kind, p.Description})
			}
			apiTable(&b, "Parameter", rows)
			if answer, ok := call.Responses["200"]; ok {
				kind := answer.Schema.kind()
				if stream, ok := answer.Schema.Properties["result"]; ok {
					kind = "a stream of " + stream.kind()
				}
				fmt.Fprintf(&b, "\nAnswer: %s\n", kind)
			}
		}
	}
	b.WriteString("\n## Messages\n")
	for _, name := range slices.Sorted(maps.Keys(doc.Definitions)) {
		def := doc.Definitions[name]
		fmt.Fprintf(&b, "\n### %s\n", name)
		if text := oneLine(def.Title + " " + def.Description); text != "" {
			fmt.Fprintf(&b, "\n%s\n", text)
		}
		if len(def.Enum) > 0 {
			fmt.Fprintf(&b, "\nOne of %s.\n", strings.Join(def.Enum, ", "))
		}
		rows := [][3]string{}
		for _, field := range slices.Sorted(maps.Keys(def.Properties)) {
			p := def.Properties[field]
			rows = append(rows, [3]string{"`" + field + "`", p.kind(), p.Title + " " + p.Description})
		}
		apiTable(&b, "Field", rows)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func apiTable(b *strings.Builder, first string, rows [][3]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n| %s | Type | |\n|---|---|---|\n", first)
	for _, r := range rows {
		fmt.Fprintf(b, "| %s | %s | %s |\n", r[0], r[1], strings.ReplaceAll(oneLine(r[2]), "|", `\|`))
	}
}

// kind returns the name of a type. If the type is a message, the name is a link to its section.
func (t apiType) kind() string {
	switch {
	case t.Ref != "":
		name := strings.TrimPrefix(t.Ref, "#/definitions/")
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	case t.Items != nil:
		return "list of " + t.Items.kind()
	case t.AdditionalProperties != nil && (t.AdditionalProperties.Type != "" || t.AdditionalProperties.Ref != ""):
		return "map of " + t.AdditionalProperties.kind()
	case len(t.Enum) > 0:
		return "one of " + strings.Join(t.Enum, ", ")
	case t.Format != "":
		return t.Type + " (" + t.Format + ")"
	case t.Type == "":
		return "any"
	}
	return t.Type
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
