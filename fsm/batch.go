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
// silence (fsm/DESIGN.md).
var ErrUnknownCommand = errors.New("the log holds a command that this version does not know: upgrade this replica")

// commandsTag precedes each element of Batch.commands.
const commandsTag = commandsField<<3 | byte(protowire.BytesType)

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

// DecodeBatch reads one log entry into commands that stand alone. An arm or a field that
// this version does not know, at any depth, gives ErrUnknownCommand; other errors are broken
// bytes.
func DecodeBatch(b []byte) ([]Command, error) {
	var d Decoder
	n, err := d.Open(bytes.Clone(b))
	if err != nil {
		return nil, err
	}
	commands := make([]Command, n)
	for i := range commands {
		d.shell = nil // what it has is the caller's
		if commands[i], err = d.Next(); err != nil {
			return nil, err
		}
	}
	return commands, nil
}

// Decoder reads log entries command by command, as DecodeBatch does, but may use the
// messages of one command again for the next. It is for one goroutine.
type Decoder struct {
	rest  []byte
	shell *shell
}

// Open checks a whole entry and says how many commands it has. The entry must stay as
// it is until the last of them is read.
func (d *Decoder) Open(b []byte) (commands int, err error) {
	if err := batchSchema.Check(b, true); err != nil {
		return 0, fmt.Errorf("decode log entry of %d bytes: %w", len(b), unknownCommand(err))
	}
	d.rest = b
	return countFrames(b), nil
}

// Next reads the next command. The message is good until Next or Open is called again;
// the bytes and strings in the body, which records keep, stay good.
func (d *Decoder) Next() (Command, error) {
	var frame []byte
	frame, d.rest = element(d.rest, commandsField)
	if d.shell == nil {
		d.shell = &shell{}
	}
	c, err := d.shell.fill(frame)
	if c == nil && err == nil {
		c = &commandv1.Command{}
		err = decodeFrame(c, frame)
	}
	if err != nil {
		return nil, fmt.Errorf("decode a command of %d bytes: %w", len(frame), err)
	}
	if c.Body == nil {
		return nil, fmt.Errorf("decode a command of %d bytes: it has no body: %w", len(frame), ErrUnknownCommand)
	}
	return c, nil
}

// smallFrame is up to when the strings and bytes of a command share one copy of
// what they were read from. What a record keeps of it keeps all of it, which for a small
// one is hardly more than the record needs, and one allocation instead of a dozen.
const smallFrame = 1 << 10

func decodeFrame(c Command, frame []byte) error {
	if len(frame) > smallFrame {
		return c.UnmarshalVT(frame)
	}
	return c.UnmarshalVTUnsafe(bytes.Clone(frame))
}

// shell is the messages of the command that comes in numbers: a small put, or several that
// are judged each by itself.
type shell struct {
	command commandv1.Command
	head    commandv1.Head
	put     commandv1.Command_PutWorkloads
	puts    commandv1.PutWorkloads
	list    []*commandv1.WorkloadPut
	made    []*shelledPut
}

type shelledPut struct {
	it     commandv1.WorkloadPut
	demand commandv1.Demand
}

// Field numbers: of Batch, of Command, and of PutWorkloads.
const (
	commandsField  = 1
	headField      = 1
	putField       = 11
	workloadsField = 1
)

// eachSet is the field each at the end of a PutWorkloads, set.
var eachSet = protowire.AppendVarint(protowire.AppendTag(nil, 152, protowire.VarintType), 1)

// fill reads a frame that holds a head, or none, and one small put or several to be judged
// each by itself, and nothing else; of others it makes nothing.
func (s *shell) fill(frame []byte) (Command, error) {
	head, rest := element(frame, headField)
	puts, rest := element(rest, putField)
	if puts == nil || len(rest) > 0 {
		return nil, nil
	}
	n, each := 0, false
	for more := puts; len(more) > 0; n++ {
		if each = bytes.Equal(more, eachSet); each {
			break
		}
		var put []byte
		if put, more = element(more, workloadsField); put == nil || len(put) > smallFrame {
			return nil, nil
		}
	}
	if n == 0 || n > MaxEach || n > 1 && !each {
		return nil, nil
	}
	c := &s.command
	c.Reset()
	if head != nil {
		s.head.Reset()
		c.Head = &s.head
		// What outlives the command is copied out of its head.
		if err := c.Head.UnmarshalVTUnsafe(head); err != nil {
			return nil, err
		}
	}
	s.list = s.list[:0]
	for more := puts; len(s.list) < n; {
		var put []byte
		put, more = element(more, workloadsField)
		it, err := s.fillPut(len(s.list), put)
		if err != nil {
			return nil, err
		}
		s.list = append(s.list, it)
	}
	s.puts.Reset()
	s.puts.Workloads, s.puts.Each = s.list, each
	s.put.PutWorkloads = &s.puts
	c.Body = &s.put
	return c, nil
}

// fillPut reads a put into the i-th of those that are made.
func (s *shell) fillPut(i int, put []byte) (*commandv1.WorkloadPut, error) {
	if i == len(s.made) {
		s.made = append(s.made, &shelledPut{})
	}
	p := s.made[i]
	p.it.Reset()
	p.demand.Reset()
	p.it.Demand = &p.demand
	return &p.it, p.it.UnmarshalVTUnsafe(bytes.Clone(put))
}

// element takes a field of messages off bytes in which the schema has found nothing
// wrong, when it is the first of them; else it is nil, and the rest is all of them.
func element(b []byte, field protowire.Number) (value, rest []byte) {
	if len(b) == 0 {
		return nil, nil
	}
	num, _, tag := protowire.ConsumeTag(b)
	if num != field {
		return nil, b
	}
	value, n := protowire.ConsumeBytes(b[tag:])
	return value, b[tag+n:]
}

func countFrames(b []byte) (count int) {
	for ; len(b) > 0; count++ {
		_, b = element(b, commandsField)
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
