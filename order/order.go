// Package order holds the number of an order for a workload. Schedulers and agents share it, because both compare
// generations: the state machine issues them, and agents refuse orders that are older than the one they have.
package order

import (
	"fmt"
	"strconv"
	"strings"
)

// Generation is the number of an order for a workload; a later order has a higher one. A new generation is issued
// whenever the order for the agent changes: for a new specification, another desired state, another node, or a retry.
type Generation struct {
	Incarnation uint64
	Sequence    uint64
}

// Message is a generation in the log, the control API or the agent API. A nil message is a zero generation.
type Message interface {
	GetIncarnation() uint64
	GetSequence() uint64
}

// GenerationOf returns the generation in a message.
func GenerationOf(m Message) Generation {
	return Generation{Incarnation: m.GetIncarnation(), Sequence: m.GetSequence()}
}

// Less reports whether generation g is older than o.
func (g Generation) Less(o Generation) bool {
	if g.Incarnation != o.Incarnation {
		return g.Incarnation < o.Incarnation
	}
	return g.Sequence < o.Sequence
}

// IsZero reports whether g is unset. Legacy v1 agents, which know no generations, send zero.
func (g Generation) IsZero() bool { return g == Generation{} }

// String returns the generation as it is written in labels: "<incarnation>.<sequence>".
func (g Generation) String() string {
	return strconv.FormatUint(g.Incarnation, 10) + "." + strconv.FormatUint(g.Sequence, 10)
}

// ParseGeneration parses the text that String returns.
func ParseGeneration(s string) (Generation, error) {
	left, right, ok := strings.Cut(s, ".")
	if !ok {
		return Generation{}, fmt.Errorf("generation %q: want <incarnation>.<sequence>", s)
	}
	incarnation, err := strconv.ParseUint(left, 10, 64)
	if err != nil {
		return Generation{}, fmt.Errorf("generation %q: the incarnation (the number before the dot): %w", s, err)
	}
	sequence, err := strconv.ParseUint(right, 10, 64)
	if err != nil {
		return Generation{}, fmt.Errorf("generation %q: the sequence (the number after the dot): %w", s, err)
	}
	return Generation{Incarnation: incarnation, Sequence: sequence}, nil
}
