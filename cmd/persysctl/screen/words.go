package screen

import (
	"fmt"
	"strings"
	"time"
)

// Span formats a duration with its two largest units: 3m12s, 2h5m, 4d3h.
func Span(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	s := int64(d / time.Second)
	two := func(big int64, bigUnit string, small int64, smallUnit string) string {
		if small == 0 {
			return fmt.Sprintf("%d%s", big, bigUnit)
		}
		return fmt.Sprintf("%d%s%d%s", big, bigUnit, small, smallUnit)
	}
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return two(s/60, "m", s%60, "s")
	case s < 86400:
		return two(s/3600, "h", s%3600/60, "m")
	case s < 10*86400:
		return two(s/86400, "d", s%86400/3600, "h")
	}
	return fmt.Sprintf("%dd", s/86400)
}

// Natural compares ids, with numbers at their end by value: web-2 comes before web-10.
func Natural(a, b string) int {
	stem := func(s string) (string, string) {
		i := len(s)
		for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
			i--
		}
		return s[:i], s[i:]
	}
	as, an := stem(a)
	bs, bn := stem(b)
	if as == bs && len(an) != len(bn) && an != "" && bn != "" {
		return len(an) - len(bn)
	}
	return strings.Compare(a, b)
}
