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

// batch makes the commands for several requests. Consecutive small workloads of one call share a
// command, and the state machine judges each by itself. They share one head and one receipt, so
// that the bounded table of receipts covers a longer time.
type batch struct {
	s    *Server
	reqs []*controlv1.ApplyWorkloadRequest
	cmds []fsm.Command
	of   [][]int // for each command, the indexes in reqs that it carries

	open open
	ids  map[string]struct{} // workloads in the open row
}

// open is the command that takes further requests, with its row: the requests that it may carry.
// Rows depend on the requests alone, so that a repeated call finds its receipts. A row holds no
// workload twice, because each change of a workload needs a generation of its own.
type open struct {
	first string                  // request id of the first request; "" if there is no row
	seen  int                     // number of requests in the row, including refused ones
	puts  *commandv1.PutWorkloads // nil until a request was accepted
	n     int                     // index of the command in cmds
}

const (
	// joinLimit is the size in bytes up to which a request is small. A full row is far below the
	// limit of a command.
	joinLimit = 1 << 10
	// joinMember distinguishes the command id of a row from that of its first request alone.
	joinMember = "each"
)

// add makes the command of the i-th request, or adds the request to the open command.
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

// joinable reports whether a request becomes one small put. It must depend on the request alone.
func (b *batch) joinable(req *controlv1.ApplyWorkloadRequest) bool {
	sp := req.GetSpec()
	return sp != nil && sp.GetCount() == 0 && sp.GetUpdate() == nil && strings.TrimSpace(req.GetWorkloadId()) != "" &&
		spec.DesiredState(req.GetDesiredState()) != fsm.DesiredDeleted && req.SizeVT() <= joinLimit
}

// verdict returns the result of the k-th request in the n-th command.
func (b *batch) verdict(n, k int, r fsm.Result) fsm.Result {
	puts := b.cmds[n].GetPutWorkloads()
	if !puts.GetEach() || r.Err() != nil {
		return r
	}
	id := puts.GetWorkloads()[k].GetId()
	if k < len(r.Items) && r.Items[k].ID == id {
		return r.Of(r.Items[k])
	}
	// A call was repeated, and this time another of its requests was refused before the log.
	for _, it := range r.Items {
		if it.ID == id {
			return r.Of(it)
		}
	}
	return fsm.Result{Kind: fsm.Conflict, Index: r.Index, Reason: "workload " + id + " was refused when this request was first sent; the stored answer does not cover it: send the workload again with a new request id"}
}

// deriveRequestIDs gives each request of a batch an id that is derived from the id of the call. One
// request may need ids for several commands, so neighbouring ids are far apart. derived reports
// whether a request has the derived id; a repeated or forwarded call already carries it.
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
		// Bytes 10 and 11 hold neither version nor variant, nor the bits that head changes.
		binary.BigEndian.PutUint16(id[10:], binary.BigEndian.Uint16(id[10:])+uint16(i))
		if given := w.GetRequestId(); given != "" && given != id.String() {
			own[i] = true
			continue
		}
		w.RequestId = id.String()
	}
	return func(i int) bool { return !own[i] }, nil
}

// maxBatch is the most applies of one call, or of a stream at a time, that are committed together.
const maxBatch = 1024

// ApplyWorkloads implements cluster.v1: many applies in one call, each judged alone and all
// committed together. A request without an id gets one that is derived from the call's id, so that
// a repeated call applies nothing twice.
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
				return nil, o.err // the log holds none of them, or an unknown part
			}
		}
		resp.Results[i] = o.resp
		resp.Index = max(resp.Index, o.resp.GetIndex())
	}
	return resp, nil
}

// ApplyStream implements cluster.v1. The messages that arrived while a batch was committed form the
// next batch. So order is kept, and a caller that does not wait for answers gets larger batches.
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

// maxStreamBatch is the size in bytes at which a batch of a stream is complete.
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
