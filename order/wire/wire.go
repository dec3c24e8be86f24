// Package wire converts generations (numbers of orders) to messages of the control API and the agent API. Package
// fsm converts them for the log, because it must not import the APIs. order.GenerationOf reads all three messages.
package wire

import (
	agentv1 "github.com/persys/compute/api/agent/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/order"
)

// Control returns the message of the control API. It is nil for zero.
func Control(g order.Generation) *controlv1.Generation {
	if g.IsZero() {
		return nil
	}
	return &controlv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}

// Agent returns the message of the agent API. It is nil for zero.
func Agent(g order.Generation) *agentv1.Generation {
	if g.IsZero() {
		return nil
	}
	return &agentv1.Generation{Incarnation: g.Incarnation, Sequence: g.Sequence}
}
