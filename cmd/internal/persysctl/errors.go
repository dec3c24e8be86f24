package persysctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/restconn"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// Exit codes of persysctl. Scripts depend on them, so they never change. exitCodes describes each of them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnavailable = 4
	exitTimeout     = 5
	exitUnknown     = 6
	exitInterrupted = 130
)

type exitCode struct {
	code          int
	meaning, then string
}

func exitCodes() []exitCode {
	return []exitCode{
		{exitOK, "done", ""},
		{exitFailed, "refused, failed, or not allowed", "the error says why"},
		{exitUsage, "the command line or the configuration is wrong", "nothing was sent"},
		{exitNotFound, "no such workload, node, replica or context", ""},
		{exitUnavailable, "no scheduler answers, or there is no leader", "nothing was changed; try again"},
		{exitTimeout, "--wait ended before the goal was reached", "the change itself stays"},
		{exitUnknown, "the change may or may not have happened", "see persysctl events; applying again is safe"},
		{exitInterrupted, "Ctrl-C", "a change that was sent stays"},
	}
}

// failure is an error for the user: one sentence and, if there is one, the next command to type.
type failure struct {
	code  int
	text  string
	hint  string
	cause error
	quiet bool // quiet: the error has been printed already
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() error { return f.cause }

func failf(code int, hint, format string, args ...any) *failure {
	return &failure{code: code, hint: hint, text: fmt.Sprintf(format, args...)}
}

// usagef returns the error for a wrong command line.
func usagef(format string, args ...any) *failure { return failf(exitUsage, "", format, args...) }

// nextCommand finds the command at the end of a server's message, as in "node "x" not found; `persysctl
// nodes` lists them".
var nextCommand = regexp.MustCompile("[;,:] *`(persysctl [^`]+)`[^`]*$")

// webServer matches gRPC's text for an answer of a web server that does not speak gRPC.
var webServer = regexp.MustCompile(`^unexpected HTTP status code received from server: (\d+)`)

// methodName matches the method name that package dial puts before its errors.
var methodName = regexp.MustCompile(`^/persys\.[\w.]+/\w+: `)

// operations are the names of operations with which the error texts of schedulers begin, such as "list revisions" for
// ListRevisions.
var operations = sync.OnceValue(func() map[string]bool {
	upper := regexp.MustCompile(`\B[A-Z]`)
	out := map[string]bool{}
	add := func(method string) { out[strings.ToLower(upper.ReplaceAllString(method, " $0"))] = true }
	for _, desc := range []grpc.ServiceDesc{controlv1.AgentControl_ServiceDesc, clusterv1.Cluster_ServiceDesc, clusterv1.Trust_ServiceDesc} {
		for _, m := range desc.Methods {
			add(m.MethodName)
		}
		for _, s := range desc.Streams {
			add(s.StreamName)
		}
	}
	return out
})

// explain turns the error of a call into a failure. mutation is true if the call could have changed the
// state.
func (c *cli) explain(err error, mutation bool) *failure {
	return c.explained(err, mutation, c.timeout())
}

// explained is like explain for a call with a time limit, which the text about a timeout names.
func (c *cli) explained(err error, mutation bool, limit time.Duration) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	if errors.Is(err, context.Canceled) && status.Code(err) == codes.Unknown {
		return &failure{code: exitInterrupted, text: "interrupted", cause: err}
	}
	st, ok := status.FromError(err)
	if !ok {
		return &failure{code: exitFailed, text: err.Error(), cause: err}
	}
	f = &failure{code: exitFailed, text: screen.Clean(st.Message()), cause: err}
	if m := nextCommand.FindStringSubmatchIndex(f.text); m != nil {
		f.hint, f.text = f.text[m[2]:m[3]], f.text[:m[0]]
	}
	if op, rest, ok := strings.Cut(f.text, ": "); ok && operations()[op] {
		f.text = rest // drop the operation, because the user has just typed the command
	}
	switch st.Code() {
	case codes.NotFound:
		f.code = exitNotFound
	case codes.Unavailable:
		c.unreachable(f, dial.Reason(err))
	case codes.Aborted:
		switch {
		case !dial.IsUnknownOutcome(err):
			f.hint = cmp.Or(f.hint, "type the same command again")
		case mutation:
			unknownOutcome(f)
		default:
			f.code, f.text, f.hint = exitUnavailable, "the scheduler stopped answering; nothing was changed", "persysctl status"
		}
	case codes.DeadlineExceeded:
		f.code, f.text, f.hint = exitUnavailable, fmt.Sprintf("no answer within %s", limit), "persysctl status"
		if mutation {
			unknownOutcome(f)
		}
	case codes.Canceled:
		f.code, f.text = exitInterrupted, "interrupted"
	case codes.Unauthenticated, codes.PermissionDenied:
		f.hint = cmp.Or(f.hint, "use another certificate: --tls-cert FILE --tls-key FILE")
	case codes.Unimplemented:
		if dial.Reason(err) == restconn.ReasonNoRoute {
			break // the error says already that no gateway offers this call
		}
		if m := webServer.FindStringSubmatch(f.text); m != nil {
			f.text = fmt.Sprintf("%s is no scheduler: it answers with HTTP status %s", c.settings.Server, m[1])
			f.hint = "name a scheduler with --server HOST:PORT, or a gateway with its URL"
			break
		}
		f.text = "this scheduler does not know the call: " + f.text
		f.hint = cmp.Or(f.hint, "compare `persysctl version` with the version in `persysctl status`")
	}
	return f
}

func unknownOutcome(f *failure) {
	f.code = exitUnknown
	f.text = methodName.ReplaceAllString(f.text, "")
	if said, _, ok := strings.Cut(f.text, dial.OutcomeText); ok {
		f.text = said + strings.TrimSuffix(dial.OutcomeText, ": ") // the message leaves out the error of the socket; the flag -v shows it
	}
	f.text = "the change may or may not have happened: " + f.text
	f.hint = "look with `persysctl events --tail 10` before you type the same command again"
}

// unreachable explains why a connection failed.
func (c *cli) unreachable(f *failure, reason string) {
	f.code = exitUnavailable
	if reason == dial.ReasonNoLeader || reason == dial.ReasonNotLeader {
		f.text = "the cluster has no leader at the moment: " + f.text
		f.hint = "persysctl status"
		return
	}
	where := c.settings.Server
	low := strings.ToLower(f.text)
	if contexts.Gateway(where) {
		c.unreachableGateway(f, where, low)
		return
	}
	const secured = "the certificates do not match those of the schedulers: check --tls-ca, --tls-cert and --tls-key"
	if why := c.certificateRefusal(low); why != "" {
		f.text, f.hint = fmt.Sprintf("%s refuses this certificate: %s", where, why), ownCertificate
		return
	}
	switch {
	case strings.Contains(low, "handshake") && strings.Contains(low, "first record does not look like a tls"):
		f.text, f.hint = fmt.Sprintf("%s speaks plain text, not TLS", where), "persysctl --insecure …"
	case strings.Contains(low, "certificate") || strings.Contains(low, "x509") || strings.Contains(low, "handshake"):
		f.text, f.hint = fmt.Sprintf("no trusted connection to %s: %s", where, shortCause(f.text)), secured
	case strings.Contains(low, "connection refused"):
		f.text = fmt.Sprintf("no scheduler listens at %s (connection refused)", where)
		f.hint = "name a scheduler with --server HOST:PORT, check it on its machine (systemctl status persys-scheduler), or start a cluster here: persys dev"
	case c.settings.Insecure && (strings.Contains(low, "eof") || strings.Contains(low, "reset by peer") || strings.Contains(low, "preface")):
		f.text = fmt.Sprintf("%s closes plain-text connections; it probably wants TLS", where)
		f.hint = "leave --insecure out and give --tls-ca, --tls-cert and --tls-key"
	case reason == "" && !transport(low):
		// The code is Unavailable, but the text is not about the connection to the scheduler. So the scheduler could
		// not reach another server, for example an agent.
		if _, own, ok := strings.Cut(f.text, "rounds: "); ok {
			f.text = own
		}
		f.hint = cmp.Or(f.hint, "persysctl status; persysctl nodes")
	case reason == "":
		f.text = fmt.Sprintf("no scheduler answers at %s: %s", where, shortCause(f.text))
		f.hint = cmp.Or(f.hint, "name a scheduler with --server HOST:PORT")
	}
}

// ownCertificate is the hint that persysctl prints if a server refuses the user's certificate.
const ownCertificate = "check --tls-cert and --tls-key: the certificate must be of the cluster's CA, not expired and not revoked (persysctl identity list)"

// certificateRefusal returns the reason for which a scheduler refuses the user's certificate, or "" if it
// accepts it. low is the error text of the failed call in lower case.
func (c *cli) certificateRefusal(low string) string {
	cut := func(sign string) bool { return strings.Contains(low, sign) }
	if c.direct == nil || c.files == nil || !slices.ContainsFunc([]string{"broken pipe", "reset by peer", "eof", "remote error", "preface"}, cut) {
		return ""
	}
	for _, addr := range c.direct.Addrs() {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		why := restconn.CertificateRefusal(ctx, addr, c.files.ClientConfig(pki.Peer{Hosts: []string{host}, Role: pki.RoleScheduler}))
		cancel()
		if why != "" {
			return why
		}
	}
	return ""
}

func (c *cli) unreachableGateway(f *failure, where, low string) {
	another := "name another address with --server, or a context with --context"
	switch {
	case strings.Contains(low, "connection refused"):
		f.text, f.hint = fmt.Sprintf("no gateway listens at %s (connection refused)", where), another
	case strings.Contains(low, "http response to https client"):
		f.text, f.hint = fmt.Sprintf("%s speaks plain text, not TLS", where), "persysctl --server "+strings.Replace(where, "https:", "http:", 1)+" …"
	case strings.Contains(low, "refuses our certificate"):
		_, why, _ := strings.Cut(f.text, "certificate: ")
		f.text, f.hint = fmt.Sprintf("the gateway at %s refuses this certificate: %s", where, why), ownCertificate+", or use a token"
	case strings.Contains(low, "certificate") || strings.Contains(low, "x509") || strings.Contains(low, "handshake") || strings.Contains(low, "tls:"):
		f.text, f.hint = fmt.Sprintf("no trusted connection to %s: %s", where, shortCause(f.text)), "check --tls-ca, --tls-cert and --tls-key, or the token"
	case transport(low):
		f.text, f.hint = fmt.Sprintf("no gateway answers at %s: %s", where, strings.TrimPrefix(shortCause(f.text), "connection error: ")), another
	default:
		f.hint = cmp.Or(f.hint, "persysctl status; persysctl nodes")
	}
}

// transport reports whether low, an error text in lower case, is about the connection and not about the call.
func transport(low string) bool {
	for _, sign := range []string{"connection error", "transport", "dialing", "error reading", "stopped answering", "no scheduler address", "closing", "goaway", "connection is"} {
		if strings.Contains(low, sign) {
			return true
		}
	}
	return false
}

// shortCause returns the innermost cause from gRPC's nested error messages.
func shortCause(s string) string {
	for _, cutAt := range []string{"desc = ", "rounds: ", "error while dialing: "} {
		if i := strings.LastIndex(s, cutAt); i >= 0 {
			s = s[i+len(cutAt):]
		}
	}
	return strings.Trim(s, `" `)
}

// report prints the error of a command and returns the exit code of persysctl.
func (c *cli) report(err error) int {
	if err == nil {
		return exitOK
	}
	f := c.explain(err, false)
	if !f.quiet {
		p := c.errPaint
		fmt.Fprintf(c.err, "%s %s\n", p.Paint(screen.Bad, "Error:"), strings.TrimSuffix(f.text, "."))
		if f.hint != "" {
			fmt.Fprintf(c.err, "%s %s\n", p.Paint(screen.Bold, "hint:"), f.hint)
		}
		if c.verbose && f.cause != nil {
			fmt.Fprintf(c.err, "%s\n", p.Paint(screen.Dim, screen.Clean(f.cause.Error())))
		}
	}
	return f.code
}

// several collects the failures of a command with several targets. Each failure is printed at once, and the most severe
// failure decides the exit code.
type several struct {
	c     *cli
	worst *failure
}

func (s *several) add(err error) {
	if err == nil {
		return
	}
	f := s.c.explain(err, true)
	s.c.report(f)
	if s.worst == nil || rank(f.code) > rank(s.worst.code) {
		s.worst = f
	}
}

// rank orders exit codes by severity.
func rank(code int) int {
	switch code {
	case exitInterrupted:
		return 6
	case exitUnknown:
		return 5
	case exitUnavailable:
		return 4
	case exitTimeout:
		return 3
	case exitFailed:
		return 2
	}
	return 1
}

func (s *several) err() error {
	if s.worst == nil {
		return nil
	}
	return &failure{code: s.worst.code, text: s.worst.text, quiet: true}
}
