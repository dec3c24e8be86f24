package persysctl

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// topics returns the help pages that do not belong to a command.
func topics() []*cobra.Command {
	var codes strings.Builder
	codes.WriteString("The exit codes of persysctl. They never change.\n\n")
	for _, e := range exitCodes() {
		codes.WriteString(strings.TrimRight(fmt.Sprintf("  %3d  %-48s %s", e.code, e.meaning, e.then), " ") + "\n")
	}
	codes.WriteString("\nA command with several targets ends with the code of the worst result.\n\"persysctl exec\" ends with the exit code of the command that it ran.")
	return []*cobra.Command{
		{Use: "exit-codes", Short: "Exit codes", Long: codes.String()},
		{Use: "connection", Short: "Which cluster persysctl uses, and how it connects", Long: `The first of these that is set decides which cluster is used:

  --server ADDRESS, or --context NAME
  PERSYS_SCHEDULER_ADDR, PERSYS_SERVER, GRPC_ENDPOINT; API_ENDPOINT for a gateway
  PERSYS_CONTEXT
  the current context: persysctl context use NAME
  ~/.persys/config.yaml, or the file of --config or PERSYS_CONFIG
  127.0.0.1:8085

An address is HOST[:PORT],… or srv://NAME for schedulers, and http://… or https://…
for a gateway. Instead of a variable X, X_FILE can name a file with its value.

Schedulers identify you by a certificate: --tls-ca, --tls-cert and --tls-key
(PERSYS_TLS_CA, PERSYS_TLS_CERT, PERSYS_TLS_KEY), the files of the context, or the
identity that persysctl join keeps in ~/.persys. A gateway also accepts a bearer
token: PERSYS_TOKEN, or the token file of the context.

These commands carry keys or large files and need a connection to a scheduler. A gateway
does not serve them:

  backup create and restore, and recovery import of a FILE
  token, identity, and the commands of ca that ask the cluster

A gateway limits a call to 20s by default; the recovery of a large etcd may need a
scheduler for that reason.

Configuration files of the legacy v1 CLI work: with api_endpoint, and with a transport
other than grpc, the gateway is used. Their settings for Vault have no effect.`},
	}
}
