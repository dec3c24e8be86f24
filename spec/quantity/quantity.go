// Package quantity parses CPU amounts and sizes with units.
package quantity

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// CPU converts an amount of CPU such as "250m", "0.25" or "1" to millicores.
func CPU(s string) (int64, error) {
	const rule = `must be cores such as 1 or 0.25, or millicores such as "250m"`
	t := strings.TrimSpace(s)
	scale := big.NewRat(1000, 1)
	if m, ok := strings.CutSuffix(t, "m"); ok {
		t, scale = m, big.NewRat(1, 1)
	}
	r, ok := decimal(t)
	if !ok {
		return 0, errors.New(rule)
	}
	r.Mul(r, scale)
	if !r.IsInt() {
		return 0, fmt.Errorf("must be whole millicores: at most three decimals")
	}
	return toInt64(r)
}

// In every spelling (Mi, MiB, MB, M) a unit is a power of 1024, because the fields of the API (memory_mb,
// disk_gb) count MiB and GiB.
var units = []struct {
	suffix string
	shift  uint
}{
	{"kib", 10}, {"mib", 20}, {"gib", 30}, {"tib", 40}, {"pib", 50},
	{"ki", 10}, {"mi", 20}, {"gi", 30}, {"ti", 40}, {"pi", 50},
	{"kb", 10}, {"mb", 20}, {"gb", 30}, {"tb", 40}, {"pb", 50},
	{"k", 10}, {"m", 20}, {"g", 30}, {"t", 40}, {"p", 50},
	{"b", 0},
}

// Size converts a size such as "128Mi", "1.5GiB" or "1G" to units of 1<<shift bytes. It rounds up: a
// reservation may be larger than requested, but never smaller.
func Size(s string, shift uint, example string) (int64, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	for _, u := range units {
		number, ok := strings.CutSuffix(t, u.suffix)
		if !ok {
			continue
		}
		r, ok := decimal(strings.TrimSpace(number))
		if !ok {
			break
		}
		r.Mul(r, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), u.shift)))
		r.Quo(r, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), shift)))
		up := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
		return toInt64(new(big.Rat).SetInt(up.Quo(up, r.Denom())))
	}
	if _, ok := decimal(t); ok {
		if t == "0" {
			return 0, nil
		}
		return 0, fmt.Errorf("needs a unit, such as %q", example)
	}
	return 0, fmt.Errorf("must be a size such as %q", example)
}

// decimal reads a number of digits with at most one point. It accepts a minus sign, so that the check of the
// range can name the value. It refuses exponents, which can make big.Rat very slow.
func decimal(s string) (*big.Rat, bool) {
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || len(digits) > 24 || strings.Count(digits, ".") > 1 || digits == "." {
		return nil, false
	}
	for _, c := range digits {
		if (c < '0' || c > '9') && c != '.' {
			return nil, false
		}
	}
	return new(big.Rat).SetString(s)
}

func toInt64(r *big.Rat) (int64, error) {
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, fmt.Errorf("is out of range")
	}
	return r.Num().Int64(), nil
}
