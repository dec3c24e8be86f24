package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/rpc/dial"
)

// execProtocol is the websocket subprotocol of a session. tokenProtocol is the prefix of a second subprotocol that
// carries a bearer token as base64url without padding, because browsers cannot set headers on a websocket. The server
// never selects the second subprotocol.
const (
	execProtocol  = "persys.exec.v1"
	tokenProtocol = "persys.token."
)

// Bounds of an exec session (a shell in a workload) that the gateway relays. The agent ends sessions that are idle.
const (
	maxExecMessage = 256 << 10        // maximum bytes of one message from the caller
	execPing       = 20 * time.Second // interval between two pings
	// A session ends if its caller has read nothing for this long. The time is long because a person may read
	// output page by page.
	execPatience = 5 * time.Minute
	execBye      = 5 * time.Second // time limit for sending the reason for which a session ends
)

// execEnd is the last message of a session that ends without an exit code.
type execEnd struct {
	Error struct {
		Code    string `json:"code"`
		Reason  string `json:"reason,omitempty"`
		Message string `json:"message"`
	} `json:"error"`
}

// exec relays a session (Cluster.Exec) over a websocket. The caller sends ExecRequests as JSON and receives
// ExecResponses. The path names the workload. A session that fails ends with {"error": {"code", "reason",
// "message"}}.
//
// Refusals are sent as HTTP before the upgrade: 401, 403 (role or origin), and 426 for a request that is
// not a websocket.
func (g *Gateway) exec(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	stream, err := clusterv1.NewClusterClient(routed{}).Exec(ctx)
	if err != nil {
		fail(w, err)
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		refuse(w, http.StatusUpgradeRequired, "a session needs a websocket with the subprotocol "+execProtocol)
		return
	}
	g.sessions.Add(1)
	defer g.sessions.Done()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{execProtocol}})
	if err != nil {
		return // Accept has written the response
	}
	defer func() { _ = ws.CloseNow() }() // an error means that the caller has closed the connection
	if ws.Subprotocol() != execProtocol {
		_ = ws.Close(websocket.StatusPolicyViolation, "the subprotocol must be "+execProtocol)
		return
	}
	ws.SetReadLimit(maxExecMessage)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel() // ends the tasks
	s := &execSession{ws: ws, stream: stream, workload: r.PathValue("id"), ping: g.execPing, patience: g.execPatience}
	refused := make(chan error, 1)
	tasks.Go(func() {
		refused <- s.upwards(ctx)
		cancel()
	})
	var over atomic.Bool
	tasks.Go(func() {
		s.alive(ctx)
		if !over.Load() { // a ping during the close handshake gets no answer and must not cut it short
			cancel()
		}
	})
	err = s.downwards(ctx)
	over.Store(true)
	if err == nil {
		_ = ws.Close(websocket.StatusNormalClosure, "") // an error means that the caller has closed the connection
		return
	}
	if status.Code(err) == codes.Canceled { // a task cancelled ctx, and may have returned a more precise reason
		select {
		case why := <-refused:
			if why == nil {
				return // the caller has closed the connection
			}
			err = why
		default:
		}
	}
	s.end(context.WithoutCancel(ctx), err)
}

type execSession struct {
	ws       *websocket.Conn
	stream   clusterv1.Cluster_ExecClient
	workload string
	ping     time.Duration
	patience time.Duration
	// passing is the number of messages that are being sent at this moment, in either direction. While passing is not
	// 0, a missing answer to a ping does not prove that the caller is gone: the answer may be queued behind a message
	// of the caller, or the ping behind a message to the caller.
	passing atomic.Int32
	read    atomic.Uint64 // number of messages of the caller; each proves that the caller is alive
}

// upwards relays the caller's messages to the session. It returns nil when the caller leaves, and an error after an
// invalid message. When the session has ended, it goes on to read messages and drops them, so that the connection
// stays open until the caller has got the output and the exit code.
func (s *execSession) upwards(ctx context.Context) error {
	over := false
	for first := true; ; first = false {
		_, data, err := s.ws.Read(ctx)
		if err != nil {
			if websocket.CloseStatus(err) == -1 && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				return status.Errorf(codes.InvalidArgument, "%v", err)
			}
			return nil
		}
		s.read.Add(1)
		if over {
			continue
		}
		m := &clusterv1.ExecRequest{}
		if err := decode(data, m, false); err != nil {
			return status.Errorf(codes.InvalidArgument, "the message is no ExecRequest: %v", err)
		}
		if o := m.GetOpen(); o != nil {
			if id := o.GetWorkloadId(); id != "" && id != s.workload {
				return status.Errorf(codes.InvalidArgument, "workload_id: the message has %q, but the path has %q", id, s.workload)
			}
			o.WorkloadId = s.workload
		} else if first {
			return status.Error(codes.InvalidArgument, "the first message must be open")
		}
		s.passing.Add(1)
		over = s.stream.Send(m) != nil // if Send fails, the task downwards receives the error
		s.passing.Add(-1)
	}
}

// downwards relays the session's messages to the caller, up to the exit code.
func (s *execSession) downwards(ctx context.Context) error {
	for {
		m, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the session ended without an exit code")
		}
		if err != nil {
			return err
		}
		data, err := protoOut.Marshal(m)
		if err != nil {
			return err
		}
		if err := s.write(ctx, s.patience, data); err != nil {
			return status.Error(codes.Canceled, err.Error())
		}
		if m.GetExit() != nil {
			return nil
		}
	}
}

func (s *execSession) write(ctx context.Context, within time.Duration, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s.passing.Add(1)
	defer s.passing.Add(-1)
	return s.ws.Write(ctx, websocket.MessageText, data)
}

// alive pings the caller. It returns if the caller has not answered for s.patience, or when ctx ends. It keeps sending
// pings while an answer is missing, because a caller that receives nothing from the gateway for some time ends the
// session.
func (s *execSession) alive(ctx context.Context) {
	ticker := time.NewTicker(s.ping)
	defer ticker.Stop()
	heard, read := time.Now(), s.read.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		late, cancel := context.WithTimeout(ctx, s.ping)
		err := s.ws.Ping(late)
		cancel()
		switch now := s.read.Load(); {
		case ctx.Err() != nil, err != nil && !errors.Is(err, context.DeadlineExceeded):
			return
		case err == nil, now != read, s.passing.Load() > 0:
			heard, read = time.Now(), now
		case time.Since(heard) >= s.patience:
			return
		}
	}
}

// end sends the caller the reason why the session ends.
func (s *execSession) end(ctx context.Context, why error) {
	st := status.Convert(why)
	var e execEnd
	e.Error.Code, e.Error.Reason, e.Error.Message = codeName(st.Code()), dial.Reason(why), st.Message()
	if data, err := json.Marshal(e); err == nil && s.write(ctx, execBye, data) == nil {
		_ = s.ws.Close(websocket.StatusNormalClosure, "") // an error means that the caller has closed the connection
	}
}

// sameOrigin refuses a websocket from a page of another origin. Browsers do not apply CORS to websockets,
// and they send a client certificate automatically.
func (g *Gateway) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" { // only browsers send the header Origin
			next.ServeHTTP(w, r)
			return
		}
		scheme := "http"
		if g.opt.TLS != nil {
			scheme = "https"
		}
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("a page of %s may not open a session; only pages of %s://%s may", origin, scheme, r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tokenOf reads the bearer token from the websocket subprotocol persys.token.… and puts it into the Authorization
// header of the request, where the other handlers expect it.
func tokenOf(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, list := range r.Header.Values("Sec-WebSocket-Protocol") {
			for p := range strings.SplitSeq(list, ",") {
				coded, ok := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol)
				if !ok || r.Header.Get("Authorization") != "" {
					continue
				}
				token, err := base64.RawURLEncoding.DecodeString(coded)
				if err != nil {
					refuse(w, http.StatusBadRequest, "the subprotocol "+tokenProtocol+"… must be a token in base64url without padding")
					return
				}
				r.Header.Set("Authorization", "Bearer "+string(token))
			}
		}
		next.ServeHTTP(w, r)
	})
}
