package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	commandv1 "github.com/persys/compute/api/command/v1"
	"github.com/persys/compute/api/strict"
)

// ErrUnknownCommand means that a log entry holds something this version does not
// know. A replica must stop loudly: skipping it would let replicas diverge in
// silence (DESIGN, decision 1).
var ErrUnknownCommand = errors.New("the log holds a command that this version does not know: upgrade this replica")

// commandsTag precedes each element of Batch.commands.
const commandsTag = 1<<3 | byte(protowire.BytesType)

// AppendCommand frames c as one element of Batch.commands, so that frames put
// one after another are a valid Batch.
func AppendCommand(dst []byte, c Command) ([]byte, error) {
	if c.GetBody() == nil {
		return dst, fmt.Errorf("encode command: it has no body: %w", ErrUnknownCommand)
	}
	n := c.SizeVT()
	out := protowire.AppendVarint(append(dst, commandsTag), uint64(n))
	at := len(out)
	out = slices.Grow(out, n)[:at+n]
	if _, err := c.MarshalToSizedBufferVT(out[at:]); err != nil {
		return dst, fmt.Errorf("encode command %s: %w", ArmName(c), err)
	}
	// What no replica could read must not get into the log.
	if err := commandSchema.Check(out[at:], true); err != nil {
		return dst, fmt.Errorf("encode command %s: %w", ArmName(c), unknownCommand(err))
	}
	return out, nil
}

// DecodeBatch reads one log entry. An arm or a field that this version does not
// know, at any depth, gives ErrUnknownCommand; other errors are broken bytes.
func DecodeBatch(b []byte) ([]Command, error) {
	if err := batchSchema.Check(b, true); err != nil {
		return nil, fmt.Errorf("decode log entry of %d bytes: %w", len(b), unknownCommand(err))
	}
	n := countFrames(b)
	commands := make([]Command, n)
	shells := make([]shell, n)
	for i, rest := 0, b; i < n; i++ {
		var frame []byte
		frame, rest = nextFrame(rest)
		c := shells[i].fit(frame)
		if err := decodeFrame(c, frame); err != nil {
			return nil, fmt.Errorf("decode log entry of %d bytes: %w", len(b), err)
		}
		commands[i] = c
	}
	for i, c := range commands {
		if c.Body == nil {
			return nil, fmt.Errorf("decode log entry: command %d of %d: %w", i+1, len(commands), ErrUnknownCommand)
		}
	}
	return commands, nil
}

// smallFrame is up to when the strings and bytes of a command share one copy of
// its frame. What a record keeps of it keeps all of it, which for a small one is
// hardly more than the record needs, and one allocation instead of a dozen.
const smallFrame = 1 << 10

func decodeFrame(c Command, frame []byte) error {
	if len(frame) > smallFrame {
		return c.UnmarshalVT(frame)
	}
	return c.UnmarshalVTUnsafe(bytes.Clone(frame))
}

// shell is what nearly every command needs. No command is held longer than its entry,
// so the shells of an entry are made together.
type shell struct {
	command commandv1.Command
	head    commandv1.Head
	put     commandv1.Command_PutWorkloads
	puts    commandv1.PutWorkloads
	one     [1]*commandv1.WorkloadPut
}

// fit gives a command the messages that its frame is about to fill: its head, and what
// holds a put, which is what comes in numbers.
func (s *shell) fit(frame []byte) Command {
	c := &s.command
	num, _, n := protowire.ConsumeTag(frame)
	if num == headField {
		c.Head = &s.head
		_, m := protowire.ConsumeBytes(frame[n:])
		num, _, _ = protowire.ConsumeTag(frame[n+max(0, m):])
	}
	if num == putField {
		s.puts.Workloads = s.one[:0]
		s.put.PutWorkloads = &s.puts
		c.Body = &s.put
	}
	return c
}

// Field numbers of Command.
const (
	headField = 1
	putField  = 11
)

// nextFrame takes one element of Batch.commands off bytes in which the schema
// has found nothing else.
func nextFrame(b []byte) (frame, rest []byte) {
	_, _, tag := protowire.ConsumeTag(b)
	frame, n := protowire.ConsumeBytes(b[tag:])
	return frame, b[tag+n:]
}

func countFrames(b []byte) (count int) {
	for ; len(b) > 0; count++ {
		_, b = nextFrame(b)
	}
	return count
}

func unknownCommand(err error) error {
	if errors.Is(err, strict.ErrUnknownField) {
		return fmt.Errorf("%w (%w)", ErrUnknownCommand, err)
	}
	return err
}

// What the wire may hold, from the descriptors; never changed.
var (
	batchSchema   = strict.Of((&commandv1.Batch{}).ProtoReflect().Descriptor())
	commandSchema = strict.Of((&commandv1.Command{}).ProtoReflect().Descriptor())
	recordSchema  = strict.Of((&commandv1.SnapshotRecord{}).ProtoReflect().Descriptor())
)
