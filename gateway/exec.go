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
	"google.golang.org/protobuf/encoding/protojson"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/rpc/dial"
)

// The websocket subprotocol of a session, and the prefix of the subprotocol that
// carries a bearer token, since a browser cannot set headers on a websocket. The
// token is base64url without padding. The server never selects that subprotocol.
const (
	execProtocol  = "persys.exec.v1"
	tokenProtocol = "persys.token."
)

// Bounds of a session at the gateway. The agent bounds how long it may be idle.
const (
	maxExecMessage = 256 << 10        // bytes of one message from the caller
	execPing       = 20 * time.Second // between two pings
	// A caller that reads nothing for this long is gone. It is long because a person
	// may read output page by page.
	execPatience = 5 * time.Minute
	execBye      = 5 * time.Second // to send the reason for which a session ends
)

// execEnd is the last message of a session that ends without an exit code.
type execEnd struct {
	Error struct {
		Code    string `json:"code"`
		Reason  string `json:"reason,omitempty"`
		Message string `json:"message"`
	} `json:"error"`
}

// exec carries a session (Cluster.Exec) over a websocket. Messages from the caller
// are ExecRequests as JSON, messages to it ExecResponses; the path names the
// workload. A session that fails ends with {"error": {"code", "reason", "message"}}.
//
// Refusals come before the upgrade, as HTTP: 401, 403 (role or origin), and 426 for
// a request that is not a websocket.
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
	defer func() { _ = ws.CloseNow() }() // an error means that the caller is gone
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
		_ = ws.Close(websocket.StatusNormalClosure, "") // an error means that the caller is gone
		return
	}
	if status.Code(err) == codes.Canceled { // a task has canceled ctx, and may have a better reason
		select {
		case why := <-refused:
			if why == nil {
				return // the caller has left
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
	// Messages being sent in either direction. While there are some, a missing answer to a
	// ping proves nothing: the answer may wait behind a message of the caller, or the ping
	// behind one to it.
	passing atomic.Int32
	read    atomic.Uint64 // messages of the caller; each proves that it is alive
}

// upwards passes the caller's messages on until it leaves (nil) or sends an invalid
// one. After the session is over messages are read and dropped, because output and
// the exit code may still be on their way to the caller.
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
		if err := protojson.Unmarshal(data, m); err != nil {
			return status.Errorf(codes.InvalidArgument, "the message is no ExecRequest: %s", protoError(err))
		}
		if o := m.GetOpen(); o != nil {
			if id := o.GetWorkloadId(); id != "" && id != s.workload {
				return status.Errorf(codes.InvalidArgument, "workload_id: %q is not the path's %q", id, s.workload)
			}
			o.WorkloadId = s.workload
		} else if first {
			return status.Error(codes.InvalidArgument, "the first message must be open")
		}
		s.passing.Add(1)
		over = s.stream.Send(m) != nil // downwards gets the reason
		s.passing.Add(-1)
	}
}

// downwards passes the session's messages to the caller, until the exit code.
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

// alive pings the caller and returns when it has not answered for s.patience, or
// when ctx ends. It pings although an answer is due, because the caller in turn takes
// a silent gateway for dead.
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

// end sends the reason for which the session ends.
func (s *execSession) end(ctx context.Context, why error) {
	st := status.Convert(why)
	var e execEnd
	e.Error.Code, e.Error.Reason, e.Error.Message = codeName(st.Code()), dial.Reason(why), st.Message()
	if data, err := json.Marshal(e); err == nil && s.write(ctx, execBye, data) == nil {
		_ = s.ws.Close(websocket.StatusNormalClosure, "") // the peer may be gone
	}
}

// sameOrigin refuses a websocket from a page of another origin. Browsers do not
// apply CORS to websockets, and they send a client certificate unasked.
func (g *Gateway) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" { // not a browser
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

// tokenOf moves the bearer token from its subprotocol to the Authorization header.
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
