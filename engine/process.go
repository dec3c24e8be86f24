package engine

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/distribution/reference"
)

// Limits for the settings of a container. They are the same for every engine and kernel.
const (
	// MaxArg is the maximum size in bytes of one argument or one KEY=VALUE of the environment: MAX_ARG_STRLEN
	// of Linux without the final zero.
	MaxArg = 131071
	// MaxArgs is the maximum size in bytes of all arguments and the environment together. It is the limit of
	// Linux for a process with a stack of 8 MiB, the usual size.
	MaxArgs = 2 << 20
	// MinMemory is the smallest memory limit that Docker accepts, in bytes.
	MinMemory = 6 << 20
	// MinMilliCPU is the smallest CPU limit, in millicores: a hundredth of a core. The kernel refuses a quota
	// below 1 ms per 100 ms.
	MinMilliCPU = 10
	// MaxHostname is the longest host name that the kernel accepts, in bytes.
	MaxHostname = 64
	// MinHealthTime is the minimum interval, timeout and start period of a health check.
	MinHealthTime = time.Millisecond
	maxID         = math.MaxInt32
)

// Arg checks the size of one argument or of one KEY=VALUE of the environment. n is the size in bytes.
func Arg(n int) string {
	if n <= MaxArg {
		return ""
	}
	return fmt.Sprintf("is %d bytes with its name, and Linux takes at most %d in one environment variable or argument; put the value into a file", n, MaxArg)
}

// Args checks that all arguments and the environment together have at most MaxArgs bytes. n is the sum of
// their sizes, each with its final zero.
func Args(n int) string {
	if n <= MaxArgs {
		return ""
	}
	return fmt.Sprintf("and command are %d bytes together, and Linux takes at most %d", n, MaxArgs)
}

// Text checks a text that is passed to a process as an argument or in the environment.
func Text(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return ""
	}
	return "must be UTF-8 text without NUL"
}

// EnvName checks the name of an environment variable.
func EnvName(s string) string {
	if s == "" || strings.ContainsAny(s, "=\x00") {
		return "names must not be empty and must not contain '='"
	}
	return ""
}

// Image checks an image reference.
func Image(s string) string {
	_, err := reference.ParseNormalizedNamed(s)
	if err == nil {
		return ""
	}
	rule := fmt.Sprintf("is no image reference (%v); want name[:tag][@digest]", err)
	if lower := strings.ToLower(s); lower != s {
		if _, err := reference.ParseNormalizedNamed(lower); err == nil {
			rule += fmt.Sprintf("; did you mean %q?", lower)
		}
	}
	return rule
}

var (
	hostnamePattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
	rangePattern    = regexp.MustCompile(`^([0-9]{1,5})(?:-([0-9]{1,5}))?$`)
	namePattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]+$`)
)

// Hostname checks the name of a host or a domain.
func Hostname(s string) string {
	if len(s) > MaxHostname || !hostnamePattern.MatchString(s) {
		return fmt.Sprintf("must be letters, digits, '-' and '.', at most %d characters", MaxHostname)
	}
	return ""
}

// User checks the user of a container in the form USER[:GROUP].
func User(s string) string {
	user, group, _ := strings.Cut(s, ":")
	if s == ":" || strings.Contains(group, ":") {
		return "must be a user name or UID, with :GROUP or :GID"
	}
	if rule := Account(user); rule != "" {
		return rule
	}
	return Account(group)
}

// Account checks the name or number of a user or group.
func Account(s string) string {
	if len(s) > 128 || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return "must be a user or group, by name or number, without blanks"
	}
	if number := strings.TrimPrefix(s, "-"); number == "" || strings.Trim(number, "0123456789") != "" {
		return ""
	}
	if n, err := strconv.ParseUint(s, 10, 64); err != nil || n > maxID {
		return fmt.Sprintf("must have a UID or GID of 0 to %d", maxID)
	}
	return ""
}

// Restart checks a restart policy of Docker: no, always, unless-stopped, on-failure[:TIMES].
func Restart(s string) string {
	name, times, counted := strings.Cut(s, ":")
	n, err := strconv.Atoi(times)
	switch {
	case !slices.Contains([]string{"no", "always", "unless-stopped", "on-failure"}, name):
		return "must be no, always, unless-stopped, on-failure or on-failure:TIMES"
	case counted && name != "on-failure":
		return fmt.Sprintf("must not have a number, which is for on-failure only: write %s", name)
	case counted && (err != nil || n < 0):
		return "must have a number of restarts behind the colon, such as on-failure:3"
	}
	return ""
}

// HealthTime checks an interval, a timeout or a period of a health check; 0 selects the default.
func HealthTime(d time.Duration) string {
	if d == 0 || d >= MinHealthTime {
		return ""
	}
	return "must be at least 1ms: write a duration such as 10s"
}

// HealthTest checks the command of a health check in Docker's form: the word CMD, CMD-SHELL or NONE, followed
// by the words of the command.
func HealthTest(words []string) string {
	switch {
	case len(words) == 0 || words[0] == "":
		return ""
	case words[0] == "NONE" && len(words) > 1:
		return "must have nothing behind NONE, which switches the check off"
	case words[0] == "CMD" && len(words) == 1, words[0] == "CMD-SHELL" && len(words) == 1:
		return "must have a command behind " + words[0]
	case !slices.Contains([]string{"NONE", "CMD", "CMD-SHELL"}, words[0]):
		return `must begin with CMD, CMD-SHELL or NONE: ["CMD", "program", "argument"], or one text for a shell`
	}
	return ""
}

// AbsolutePath checks a path in a container.
func AbsolutePath(s string) string {
	if !path.IsAbs(s) {
		return "must be an absolute path"
	}
	return ""
}

// MountTarget checks the path at which a volume is mounted in a container.
func MountTarget(s string) string {
	if rule := AbsolutePath(s); rule != "" {
		return rule
	}
	if path.Clean(s) == "/" {
		return "must not be the root of the container"
	}
	return ""
}

// Object checks the name of a container or volume.
func Object(s string) string {
	if len(s) > 255 || !namePattern.MatchString(s) {
		return "must be a letter or digit, then at least one of letters, digits, '_', '.' and '-'"
	}
	return ""
}

// LabelKey checks the key of a label. Engines and Compose take keys with blanks; only the command line of Docker does
// not.
func LabelKey(s string) string {
	if strings.TrimSpace(s) == "" || strings.ContainsFunc(s, unicode.IsControl) {
		return "keys must not be empty and must not contain control characters"
	}
	return ""
}

// Platform checks the platform of an image in the form OS[/ARCH[/VARIANT]].
func Platform(s string) string {
	const rule = "must be the platform of a Linux image, such as linux/amd64 or linux/arm64/v8"
	known := []string{
		"386", "aarch64", "amd64", "arm", "arm64", "armel", "armhf", "i386", "loong64", "mips", "mips64", "mips64le",
		"mipsle", "ppc64", "ppc64le", "riscv64", "s390x", "x86-64", "x86_64",
	}
	parts := strings.Split(strings.ToLower(s), "/")
	if parts[0] == "linux" {
		parts = parts[1:]
	}
	if len(parts) > 2 || len(parts) > 0 && !slices.Contains(known, parts[0]) {
		return rule
	}
	return ""
}
