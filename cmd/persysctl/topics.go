package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/persys/compute/spec"
)

// schemaCommand needs no cluster.
func (c *cli) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of a specification file, for editors",
		Long: `Print the JSON Schema of a specification file. An editor with a YAML language server
marks mistakes and completes fields when the file begins with

  # yaml-language-server: $schema=workload.schema.json

A gateway serves the same at /schema/workload.json.`,
		Example: "  persysctl schema > workload.schema.json",
		Args:    args(0, 0),
		RunE: func(*cobra.Command, []string) error {
			data, err := spec.Schema()
			if err != nil {
				return err
			}
			_, err = c.out.Write(data)
			return err
		},
	}
}

// topics are pages of the help that belong to no command.
func topics() []*cobra.Command {
	var codes strings.Builder
	codes.WriteString("What the exit code of a command means. The codes never change.\n\n")
	for _, e := range exitCodes() {
		codes.WriteString(strings.TrimRight(fmt.Sprintf("  %3d  %-48s %s", e.code, e.meaning, e.then), " ") + "\n")
	}
	codes.WriteString("\nOf a command with several targets the code is that of the worst that happened.\n\"persysctl exec\" ends with the code of the command that it ran.")
	return []*cobra.Command{
		{Use: "exit-codes", Short: "Exit codes", Long: codes.String()},
		{Use: "connection", Short: "Which cluster is asked, and how", Long: `Which cluster is asked is decided by the first of these that says something:

  --server ADDRESS, or --context NAME
  PERSYS_SCHEDULER_ADDR, PERSYS_SERVER, GRPC_ENDPOINT; API_ENDPOINT for a gateway
  PERSYS_CONTEXT
  the current context: persysctl context use NAME
  ~/.persys/config.yaml, or the file of --config or PERSYS_CONFIG
  127.0.0.1:8085

An address is HOST[:PORT],… or srv://NAME for schedulers, and http://… or https://…
for a gateway. Every variable X may also be given as a file, X_FILE.

Towards schedulers it is a certificate that says who you are: --tls-ca, --tls-cert
and --tls-key (PERSYS_TLS_CA, PERSYS_TLS_CERT, PERSYS_TLS_KEY), those of the context,
or what persysctl join keeps in ~/.persys. A gateway also takes a bearer token:
PERSYS_TOKEN, or the token file of the context.

Through a gateway everything works but what carries keys or megabytes; that goes to a
scheduler itself:

  backup create and restore, and recovery import of a FILE
  token, identity, and the commands of ca that ask the cluster

A gateway gives a call 20s unless it is told otherwise: recovery of an etcd that takes
longer goes to a scheduler as well.

The files of the existing CLI are understood: with api_endpoint, and transport not
grpc, it is the gateway that is asked. Settings for Vault in them are not used.`},
	}
}
