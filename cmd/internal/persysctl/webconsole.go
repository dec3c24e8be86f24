package persysctl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/screen"
)

const (
	// gatewayPort is the default port of a gateway's API listener.
	gatewayPort = "8551"
	// gatewayProbe is the time limit of looking for a gateway of the cluster.
	gatewayProbe = 3 * time.Second
)

// webConsole are the flags of `persysctl console` for the web console.
type webConsole struct {
	gateway string
	ttl     time.Duration
	open    bool
}

// webConsole makes a session of the web console and prints the one-time link that opens it.
func (c *cli) webConsole(ctx context.Context, o webConsole) error {
	if o.ttl < time.Minute || o.ttl > 24*time.Hour {
		return usagef("--ttl %s must be 1m to 24h", o.ttl)
	}
	if contexts.Gateway(c.settings.Server) {
		return usagef("--server %s is a gateway, and only a scheduler makes a session of the console, with your own certificate: persysctl console --server HOST:8085 --gateway %s", c.settings.Server, c.settings.Server)
	}
	base := o.gateway
	if base != "" {
		u, err := url.Parse(base)
		if err != nil || u.Hostname() == "" || u.Scheme != "https" {
			return usagef("--gateway %q must be https://HOST[:PORT]", base)
		}
	}
	r, err := change(ctx, c, c.cluster.LinkConsole, &clusterv1.LinkConsoleRequest{TtlSeconds: int64(o.ttl / time.Second)})
	if err != nil {
		return err
	}
	print := ""
	if base == "" {
		if base, print, err = c.findGateway(ctx, r.GetHosts()); err != nil {
			// No gateway was found, so the command fails without printing the one-time code. Nobody can open the
			// session without the code, so end the session.
			_, _ = call(ctx, c, c.cluster.EndConsole, &clusterv1.EndConsoleRequest{Id: r.GetSession().GetId()})
			return err
		}
	}
	link := strings.TrimSuffix(base, "/") + "/ui/#/link/" + r.GetCode()
	writeLines(c.out, []string{link})
	fmt.Fprintf(c.err, "The link works once, until %s, and opens a session of %s for %s.\n",
		c.clockOf(r.GetSession().GetCodeExpiresAt()), screen.Span(o.ttl), screen.Clean(r.GetSession().GetUser()))
	if print != "" {
		fmt.Fprintf(c.err, "A browser that does not know the cluster's CA warns once. SHA-256 of the gateway's certificate:\n  %s\n", print)
	}
	c.empty("", "persysctl session list")
	if o.open {
		return openBrowser(ctx, link)
	}
	return nil
}

func (c *cli) clockOf(at *timestamppb.Timestamp) string {
	return at.AsTime().In(c.zone).Format(time.TimeOnly)
}

// findGateway returns the address of the first host at which a gateway of this cluster answers, and the fingerprint of
// its certificate.
func (c *cli) findGateway(ctx context.Context, hosts []string) (base, print string, err error) {
	ctx, cancel := context.WithTimeout(ctx, gatewayProbe)
	defer cancel()
	type answer struct {
		base, print string
		err         error
	}
	answers := make([]chan answer, len(hosts))
	for i, host := range hosts {
		answers[i] = make(chan answer, 1)
		at := net.JoinHostPort(host, gatewayPort)
		go func() {
			print, err := c.askConsole(ctx, host, "https://"+at)
			answers[i] <- answer{"https://" + at, print, err}
		}()
	}
	var faults []string
	for i := range answers {
		a := <-answers[i]
		if a.err == nil {
			return a.base, a.print, nil
		}
		faults = append(faults, a.base+": "+a.err.Error())
	}
	return "", "", failf(exitUnavailable, "persysctl console --gateway https://HOST:8551",
		"no gateway of this cluster answers, so the console has no address; start one (persysctl token create --role gateway, then persys-gateway), or name it with --gateway\n  %s", strings.Join(faults, "\n  "))
}

// askConsole checks that a gateway of this cluster answers at base, and returns the fingerprint of its certificate.
func (c *cli) askConsole(ctx context.Context, host, base string) (string, error) {
	cfg, err := c.gatewayTLS(host, false)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{TLSClientConfig: cfg}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/auth/session", nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", cmp.Or(errors.Unwrap(err), err)
	}
	defer resp.Body.Close()
	var says struct {
		Link bool `json:"link"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLoginSize)).Decode(&says); err != nil || !says.Link {
		return "", fmt.Errorf("the gateway answered %s and offers no links to sign in", resp.Status)
	}
	return fingerprint(resp.TLS), nil
}

// fingerprint returns the SHA-256 of a server's certificate, as browsers show it.
func fingerprint(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	sum := sha256.Sum256(state.PeerCertificates[0].Raw)
	text := strings.ToUpper(hex.EncodeToString(sum[:]))
	var parts []string
	for i := 0; i < len(text); i += 2 {
		parts = append(parts, text[i:i+2])
	}
	return strings.Join(parts, ":")
}

// openBrowser opens a link in the browser of this machine's desktop.
func openBrowser(ctx context.Context, link string) error {
	name, args := "xdg-open", []string{link}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", link}
	}
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil { //nolint:gosec // one of three fixed programs, and no shell
		return failf(exitFailed, "", "the browser could not be opened, so open the link by hand: %s: %v %s", name, err, screen.Clean(strings.TrimSpace(string(out))))
	}
	return nil
}

func (c *cli) sessionCommand() *cobra.Command {
	parent := &cobra.Command{
		Use: "session", Short: "List and end sessions at the web console", Args: args(0, 0), RunE: help,
		Long: `List and end sessions at the web console, which persysctl console makes.

Everybody sees and ends the own sessions; with the permission trust also those of others.`,
	}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List sessions at the web console", Args: args(0, 0),
		RunE: c.online(func(ctx context.Context, _ []string) error {
			r, err := read(ctx, c, c.cluster.ListConsoles, &clusterv1.ListConsolesRequest{})
			if err != nil {
				return err
			}
			return c.emit(r, func() { c.showSessions(r.GetSessions()) })
		}),
	}
	user := ""
	end := &cobra.Command{
		Use: "end [ID]", Aliases: []string{"revoke", "rm", "delete"}, Short: "End one session at the web console, or all sessions of a user", Args: args(0, 1, "ID"),
		Example: "  persysctl session end 5f0c2d7e91a4b833\n  persysctl session end --user ada",
		RunE: c.online(func(ctx context.Context, args []string) error {
			req := &clusterv1.EndConsoleRequest{User: user}
			if len(args) == 1 {
				req.Id = args[0]
			}
			if (req.GetId() == "") == (user == "") {
				return usagef("give the ID of a session (persysctl session list), or --user NAME for all sessions of a user")
			}
			r, err := change(ctx, c, c.cluster.EndConsole, req)
			if err != nil {
				return err
			}
			c.done(cmp.Or(req.GetId(), "sessions of "+user), "ended", r)
			return nil
		}),
	}
	end.Flags().StringVar(&user, "user", "", "end all sessions of this user")
	parent.AddCommand(c.watchable(list), end)
	return parent
}

func (c *cli) showSessions(list []*clusterv1.ConsoleSession) {
	if len(list) == 0 {
		c.empty("No sessions at the web console.", "persysctl console")
		return
	}
	t := screen.NewTable(
		screen.Column{Title: "SESSION"}, screen.Column{Title: "USER", Gives: 1, Least: 8}, screen.Column{Title: "STATE"},
		screen.Column{Title: "FROM"}, screen.Column{Title: "AGE"}, screen.Column{Title: "ENDS"},
	)
	for _, s := range list {
		state, end := screen.Styled("open", screen.Good), s.GetExpiresAt()
		if s.GetOpenedAt() == nil {
			state, end = screen.Styled("link not used", screen.Warn), s.GetCodeExpiresAt()
		}
		t.Add(screen.Text(s.GetId()), screen.Text(s.GetUser()), state, screen.Text(cmp.Or(s.GetFrom(), screen.None)),
			screen.Text(screen.Span(c.now().Sub(s.GetCreatedAt().AsTime()))), screen.Text("in "+screen.Span(end.AsTime().Sub(c.now()))))
	}
	c.print(t)
}
