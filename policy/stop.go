package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxStopGrace is the longest allowed time between the stop signal of a container and its kill. A stop order,
// a drain and an update wait for that time. Schedulers refuse a longer time. If the scheduler could not see the time,
// because the Compose file is in a Git repository, the agent shortens a longer time.
const MaxStopGrace = 10 * time.Minute

// StopGrace is the time between the stop signal of a container and its kill if the specification gives none.
const StopGrace = 30 * time.Second

// Signal reports whether a text names a Linux signal in a form that engines accept. That is a number from 1
// to 64, or a name in any case, with or without SIG, such as SIGQUIT, int or RTMIN+3.
func Signal(text string) bool {
	if n, err := strconv.Atoi(text); err == nil {
		return n >= 1 && n <= maxSignal
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for _, realtime := range []struct {
		base, sign string
		most       int
	}{{"RTMIN", "+", 15}, {"RTMAX", "-", 14}} {
		rest, ok := strings.CutPrefix(name, realtime.base)
		if !ok {
			continue
		}
		digits, signed := strings.CutPrefix(rest, realtime.sign)
		n, err := strconv.Atoi(digits)
		return rest == "" || signed && err == nil && digits == strconv.Itoa(n) && n >= 1 && n <= realtime.most
	}
	return slices.Contains(signals(), name)
}

const maxSignal = 64

func signals() []string {
	return []string{
		"ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
		"PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1",
		"USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
	}
}
