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

// ErrUnknownCommand means that a log entry holds a command or a field that this version does not
// know. The replica must stop: if it skipped the entry, it would diverge silently.
var ErrUnknownCommand = errors.New("the log holds a command that this version does not know: upgrade this replica")

// commandsTag is the protobuf tag that precedes each element of Batch.commands.
const commandsTag = commandsField<<3 | byte(protowire.BytesType)

// AppendCommand encodes c as one element of Batch.commands and appends it to dst. Concatenated
// elements form a valid Batch.
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
	// Bytes that no replica could decode must not get into the log, so check them here.
	if err := commandSchema.Check(out[at:], true); err != nil {
		return dst, fmt.Errorf("encode command %s: %w", ArmName(c), unknownCommand(err))
	}
	return out, nil
}

// DecodeBatch decodes one log entry into commands that share no memory with each other. It
// returns ErrUnknownCommand for a command or field that this version does not know, at any
// depth. Other errors mean that the bytes are corrupt.
func DecodeBatch(b []byte) ([]Command, error) {
	var d Decoder
	n, err := d.Open(bytes.Clone(b))
	if err != nil {
		return nil, err
	}
	commands := make([]Command, n)
	for i := range commands {
		d.shell = nil // the caller keeps the decoded messages, so the next command must not reuse them
		if commands[i], err = d.Next(); err != nil {
			return nil, err
		}
	}
	return commands, nil
}

// Decoder decodes log entries command by command and reuses its messages from one command to the
// next. It is for use by one goroutine.
type Decoder struct {
	rest  []byte
	shell *shell
}

// Open checks a whole entry and returns the number of its commands. The caller must not change b
// until the last command is read.
func (d *Decoder) Open(b []byte) (commands int, err error) {
	if err := batchSchema.Check(b, true); err != nil {
		return 0, fmt.Errorf("decode log entry of %d bytes: %w", len(b), unknownCommand(err))
	}
	d.rest = b
	return countFrames(b), nil
}

// Next decodes the next command. The message is valid until the next call of Next or Open. Bytes
// and strings in its body stay valid, because records keep them.
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

// smallFrame is the size in bytes up to which all strings of a command share one copy of its
// encoding. A record that keeps one of the strings keeps the whole copy. For a small command
// that costs little memory and saves a dozen allocations.
const smallFrame = 1 << 10

func decodeFrame(c Command, frame []byte) error {
	if len(frame) > smallFrame {
		return c.UnmarshalVT(frame)
	}
	return c.UnmarshalVTUnsafe(bytes.Clone(frame))
}

// shell holds the messages that a Decoder reuses for the most frequent commands: a PutWorkloads with one small
// workload, and a PutWorkloads with several workloads and the field `each` (accept or refuse every workload on
// its own).
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

// Protobuf field numbers of Batch, of Command, and of PutWorkloads.
const (
	commandsField  = 1
	headField      = 1
	putField       = 11
	workloadsField = 1
)

// eachSet is the encoding of `each: true`, the last field of a PutWorkloads whose workloads are accepted or refused
// one by one.
var eachSet = protowire.AppendVarint(protowire.AppendTag(nil, 152, protowire.VarintType), 1)

// fill decodes a frame (one encoded command) into the reused messages. The frame must hold an optional head and
// either one small workload, or several workloads and the field `each` (accept or refuse every workload on its
// own). For any other frame fill returns nil.
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
		// UnmarshalVTUnsafe does not copy strings. Strings that outlive the command are copied where they
		// are stored.
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

// fillPut decodes an encoded WorkloadPut into the i-th reused message.
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

// element splits the first protobuf field off b, which was checked against the schema. If that
// field has another number, value is nil and rest is b unchanged.
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

// schemas are the field tables of the log messages, built from the protobuf descriptors. They never change.
var (
	batchSchema   = strict.Of((&commandv1.Batch{}).ProtoReflect().Descriptor())
	commandSchema = strict.Of((&commandv1.Command{}).ProtoReflect().Descriptor())
	recordSchema  = strict.Of((&commandv1.SnapshotRecord{}).ProtoReflect().Descriptor())
)
