package service

import (
	"strings"

	"github.com/persys/compute/policy"
)

// OnChange says what a new version of a secret or config does to a container that uses it.
type OnChange struct {
	// Keep means that the container is not recreated.
	Keep bool
	// Signal is the signal, such as SIGHUP, that the container gets after the file of the secret or config has
	// changed; empty means none. It is set only if Keep is set.
	Signal string
}

// OnChangeRule is the error text for a value of x-on-change that ParseOnChange refuses.
const OnChangeRule = "must be restart, nothing or a signal such as: signal SIGHUP"

// ParseOnChange reads the words restart, nothing, and signal with the name of a signal. An empty text means restart.
func ParseOnChange(text string) (OnChange, bool) {
	words := strings.Fields(text)
	switch {
	case len(words) == 0, len(words) == 1 && strings.EqualFold(words[0], "restart"):
		return OnChange{}, true
	case len(words) == 1 && strings.EqualFold(words[0], "nothing"):
		return OnChange{Keep: true}, true
	case len(words) == 2 && strings.EqualFold(words[0], "signal") && policy.Signal(words[1]):
		signal := strings.ToUpper(words[1])
		if signal[0] < '0' || signal[0] > '9' {
			signal = "SIG" + strings.TrimPrefix(signal, "SIG")
		}
		return OnChange{Keep: true, Signal: signal}, true
	}
	return OnChange{}, false
}

// String returns the canonical text of o, which ParseOnChange reads. For restart it is "".
func (o OnChange) String() string {
	switch {
	case o.Signal != "":
		return "signal " + o.Signal
	case o.Keep:
		return "nothing"
	}
	return ""
}
