package rpc

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"strconv"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/rpc/dial"
)

// ensureRequestID makes sure that a mutation has a request id, under which it is applied at most once: the id
// in its field, or the id in the metadata, or else a new one.
func ensureRequestID(ctx context.Context, req any) error {
	switch r := req.(type) {
	case *controlv1.HeartbeatRequest, *controlv1.RegisterNodeRequest:
		return nil
	case *controlv1.ApplyWorkloadRequest:
		// This most frequent mutation is handled without reflection.
		return settleRequestID(ctx, r.GetRequestId(), func(id string) { r.RequestId = id })
	case proto.Message:
		m := r.ProtoReflect()
		fd := m.Descriptor().Fields().ByName("request_id")
		if fd == nil {
			return nil
		}
		return settleRequestID(ctx, m.Get(fd).String(), func(id string) { m.Set(fd, protoreflect.ValueOfString(id)) })
	}
	return nil
}

func settleRequestID(ctx context.Context, id string, set func(string)) error {
	if id == "" {
		id = told(ctx, dial.KeyRequestID)
		if id == "" {
			fresh, err := uuid.NewV7()
			if err != nil {
				return errorf(KindInternal, "minting a request id: %w", err)
			}
			set(fresh.String())
			return nil
		}
		set(id)
	}
	_, err := parseRequestID(id)
	return err
}

// requestHash returns a hash of the caller (caller.subject), a method and its request. The hash reveals that a request id is
// used again for another request or by another caller, who must not get the stored answer. It is never 0.
func requestHash(who, full string, m proto.Message) uint64 {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return 1 // cannot happen: a message that has arrived can be encoded
	}
	h := xxhash.New()
	_, _ = h.WriteString(who + "\x00" + full)
	_, _ = h.Write(data)
	return max(1, h.Sum64())
}

// hashOfCall returns the requestHash of a call. A forwarded call contains the hash that the first replica
// computed, because a handler there may have changed the message.
func hashOfCall(ctx context.Context, c *call, full string, req any) uint64 {
	if c.forwarded {
		hash, err := strconv.ParseUint(told(ctx, dial.KeyRequestHash), 16, 64)
		if err != nil {
			return 0 // unknown: the forwarded call has no hash, and a handler of the first replica may have changed the message
		}
		return hash
	}
	m, ok := req.(proto.Message)
	if !ok {
		return 0
	}
	if put, ok := req.(*clusterv1.PutObjectRequest); ok && put.GetKind() == fsm.KindSecret {
		return 0 // with a hash without a key, the secret's value could be guessed; the leader computes a hash with the cluster key (objectHash)
	}
	return requestHash(c.subject(), full, m)
}

// otherRequest returns an error if a request id in this call already has the receipt of another call. The state machine
// checks the id of each command too, but it would apply the other commands of this call. A request that shared a
// command had another command id than a request that has a command of its own, so otherRequest checks both ids.
func otherRequest(view fsm.View, c *call, cmds []fsm.Command) error {
	for _, cmd := range cmds {
		h := cmd.GetHead()
		if len(h.GetRequest()) != 16 || h.GetRequestHash() != c.hash {
			continue
		}
		id := uuid.UUID(h.GetRequest())
		for _, id := range []uuid.UUID{id, memberID(id, joinMember)} {
			if r, ok := view.Receipt(id, c.hash); ok && r.Kind == fsm.OtherRequest {
				return r.Err()
			}
		}
	}
	return nil
}

// memberID derives the id of a command from the id of a request that becomes several commands; member names the
// command. The function is its own inverse: with the command id and the same member it returns the request id. It
// keeps the bits of time and version, because receipts are ordered by them.
func memberID(id uuid.UUID, member string) uuid.UUID {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(member))
	binary.BigEndian.PutUint32(id[12:], binary.BigEndian.Uint32(id[12:])^sum.Sum32())
	return id
}

func parseRequestID(id string) (uuid.UUID, error) {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return uuid.UUID{}, errorf(KindInvalid, "request_id %q must be a UUID of version 7", id)
	}
	return u, nil
}
