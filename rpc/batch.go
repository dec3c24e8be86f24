package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// batch makes the commands of several requests. Small workloads that stand side by side in
// one call travel in one command, in which the state machine judges each by itself: so they
// have one head and one receipt, and what is kept of many applies lasts as long as it should.
type batch struct {
	s    *Server
	reqs []*controlv1.ApplyWorkloadRequest
	cmds []fsm.Command
	of   [][]int // indexes in reqs of what each command stands for

	open open
	ids  map[string]struct{} // of the workloads in the open row
}

// open is a command that may take more, and where it stands in a row of requests. What the
// row is depends on the requests alone, so that a call that is repeated meets its receipts. No
// workload is in it twice: each order has a generation of its own.
type open struct {
	first string                  // request id of the row's first; "" = there is no row
	seen  int                     // requests in the row, those that were refused included
	puts  *commandv1.PutWorkloads // nil until one was not refused
	n     int                     // of the command in cmds
}

const (
	// joinLevel is the feature level from which on workloads share a command.
	joinLevel = 6
	// joinLimit is up to how many bytes of a request are small. A full row is so
	// far below the size of a command.
	joinLimit = 1 << 10
	// joinMember tells the request id of a row from that of its first request alone.
	joinMember = "each"
)

// add translates the i-th request.
func (b *batch) add(ctx context.Context, i int, joins bool) error {
	req := b.reqs[i]
	if !joins || !b.joinable(req) {
		b.open, b.ids = open{}, nil
		return b.addAlone(ctx, i)
	}
	id := strings.TrimSpace(req.GetWorkloadId())
	_, twice := b.ids[id]
	if b.open.seen++; b.open.first == "" || b.open.seen > fsm.MaxEach || twice {
		b.open = open{first: req.GetRequestId(), seen: 1}
		b.ids = map[string]struct{}{}
	}
	b.ids[id] = struct{}{}
	prepared, err := b.s.prepare(ctx, req)
	if err != nil {
		return err
	}
	if b.open.puts == nil {
		head, err := b.s.head(ctx, b.open.first, joinMember)
		if err != nil {
			return err
		}
		b.open.puts, b.open.n = &commandv1.PutWorkloads{Each: true}, len(b.cmds)
		b.cmds = append(b.cmds, &commandv1.Command{Head: head, Body: &commandv1.Command_PutWorkloads{PutWorkloads: b.open.puts}})
		b.of = append(b.of, nil)
	}
	b.open.puts.Workloads = append(b.open.puts.Workloads, prepared.Command.GetPutWorkloads().GetWorkloads()...)
	b.of[b.open.n] = append(b.of[b.open.n], i)
	return nil
}

func (b *batch) addAlone(ctx context.Context, i int) error {
	made, err := b.s.applyCommands(ctx, b.reqs[i])
	for _, c := range made {
		b.cmds, b.of = append(b.cmds, c), append(b.of, []int{i})
	}
	return err
}

// joinable reports whether a request becomes one small put. It looks at nothing else.
func (b *batch) joinable(req *controlv1.ApplyWorkloadRequest) bool {
	sp := req.GetSpec()
	return sp != nil && sp.GetCount() == 0 && sp.GetUpdate() == nil && strings.TrimSpace(req.GetWorkloadId()) != "" &&
		spec.DesiredState(req.GetDesiredState()) != fsm.DesiredDeleted && req.SizeVT() <= joinLimit &&
		b.s.store.View().Info().FeatureLevel >= joinLevel
}

// verdict is what a result says of the k-th request that its command stands for.
func (b *batch) verdict(n, k int, r fsm.Result) fsm.Result {
	puts := b.cmds[n].GetPutWorkloads()
	if !puts.GetEach() || r.Err() != nil {
		return r
	}
	id := puts.GetWorkloads()[k].GetId()
	if k < len(r.Items) && r.Items[k].ID == id {
		return r.Of(r.Items[k])
	}
	// The answer to a call that is repeated, of which another part was refused before the log.
	for _, it := range r.Items {
		if it.ID == id {
			return r.Of(it)
		}
	}
	return fsm.Result{Kind: fsm.Conflict, Index: r.Index, Reason: "workload " + id + " was refused when this request was first sent, and is answered under its id no more: send it again under a new one"}
}

// deriveRequestIDs gives each request of a batch its own id. Neighbouring ids are
// far apart, because one request may stand for several commands. derived reports which
// of them have no other: a request that is asked or passed on again had them given before.
func deriveRequestIDs(req *clusterv1.ApplyWorkloadsRequest) (derived func(int) bool, err error) {
	if req.GetRequestId() == "" {
		return never, nil
	}
	base, err := parseRequestID(req.GetRequestId())
	if err != nil {
		return nil, err
	}
	own := map[int]bool{}
	for i, w := range req.GetWorkloads() {
		id := base
		// Bytes 10 and 11 lie outside version, variant and the counter of head.
		binary.BigEndian.PutUint16(id[10:], binary.BigEndian.Uint16(id[10:])+uint16(i))
		if given := w.GetRequestId(); given != "" && given != id.String() {
			own[i] = true
			continue
		}
		w.RequestId = id.String()
	}
	return func(i int) bool { return !own[i] }, nil
}

// maxBatch is how many applies of a stream, or of one call, are committed
// together.
const maxBatch = 1024

// ApplyWorkloads implements cluster.v1: many applies in one call, each judged
// alone, committed together. Requests without an id of their own get one derived
// from the call's, so that repeating the call repeats nothing.
func (s *Server) ApplyWorkloads(ctx context.Context, req *clusterv1.ApplyWorkloadsRequest) (*clusterv1.ApplyWorkloadsResponse, error) {
	workloads, err := requested(req.GetWorkloads(), req.GetFile(), req.GetName(), maxBatch)
	if err != nil {
		return nil, err
	}
	req.Workloads, req.File = workloads, ""
	derived, err := deriveRequestIDs(req)
	if err != nil {
		return nil, err
	}
	outs := s.apply(ctx, req.GetWorkloads(), derived)
	resp := &clusterv1.ApplyWorkloadsResponse{Results: make([]*controlv1.ApplyWorkloadResponse, len(outs))}
	for i, o := range outs {
		switch edgeKind(o.err) {
		case KindInvalid, KindTooOld:
			o = refused(controlv1.FailureReason_INVALID_SPEC, o.err.Error())
		case KindPermission, KindPrecondition:
			o = refused(controlv1.FailureReason_RUNTIME_ERROR, o.err.Error())
		default:
			if o.err != nil {
				return nil, o.err // the log took nothing, or an unknown part
			}
		}
		resp.Results[i] = o.resp
		resp.Index = max(resp.Index, o.resp.GetIndex())
	}
	return resp, nil
}

// ApplyStream implements cluster.v1. Whatever has arrived by the time the last
// batch was answered makes the next one, so order is kept and callers that send
// ahead are coalesced.
func (s *Server) ApplyStream(stream clusterv1.Cluster_ApplyStreamServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	in := make(chan *clusterv1.ApplyStreamRequest, maxBatch)
	failed := make(chan error, 1)
	go func() {
		defer close(in)
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case in <- m:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	for m := range in {
		batch := []*clusterv1.ApplyStreamRequest{m}
		size := proto.Size(m)
	more:
		for len(batch) < 256 && size < maxStreamBatch {
			select {
			case m, ok := <-in:
				if !ok {
					break more
				}
				batch = append(batch, m)
				size += proto.Size(m)
			default:
				break more
			}
		}
		if err := s.applyStreamBatch(ctx, stream, batch); err != nil {
			return err
		}
	}
	if err := <-failed; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// maxStreamBatch is when a batch of a stream is large enough, in bytes.
const maxStreamBatch = 2 << 20

func (s *Server) applyStreamBatch(ctx context.Context, stream clusterv1.Cluster_ApplyStreamServer, batch []*clusterv1.ApplyStreamRequest) error {
	req := &clusterv1.ApplyWorkloadsRequest{Workloads: make([]*controlv1.ApplyWorkloadRequest, len(batch))}
	for i, m := range batch {
		req.Workloads[i] = m.GetApply()
		if req.Workloads[i] == nil {
			req.Workloads[i] = &controlv1.ApplyWorkloadRequest{}
		}
	}
	r, err := s.call(ctx, clusterv1.Cluster_ApplyWorkloads_FullMethodName, req, func(ctx context.Context, _ any) (any, error) {
		return s.ApplyWorkloads(ctx, req)
	})
	for i, m := range batch {
		out := &clusterv1.ApplyStreamResponse{CorrelationId: m.GetCorrelationId()}
		if err != nil {
			st := status.Convert(err)
			out.ErrorCode, out.ErrorMessage = int32(st.Code()), st.Message()
		} else {
			out.Result = r.(*clusterv1.ApplyWorkloadsResponse).GetResults()[i]
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	return nil
}
