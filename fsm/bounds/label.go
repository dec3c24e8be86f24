package bounds

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	maxLabel = 63
	hashHex  = 6
)

// DNSLabel returns the DNS label of an id (docs/RULES.md, "Ids"). An id that is a lower-case host label is
// its own label. Any other id becomes its cleaned lower-case form, "-" and 6 hex digits of its SHA-256. An id with
// upper case letters is changed too, because DNS names are case-insensitive.
func DNSLabel(id string) string {
	if IsDNSLabel(id) {
		return id
	}
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, id)
	clean = strings.Trim(clean[:min(len(clean), maxLabel-1-hashHex)], "-")
	sum := sha256.Sum256([]byte(id))
	hash := hex.EncodeToString(sum[:])[:hashHex]
	if clean == "" {
		return "x-" + hash
	}
	return clean + "-" + hash
}

// IsDNSLabel reports whether s is a host label (RFC 1123, 2.1) in lower case.
func IsDNSLabel(s string) bool {
	if s == "" || len(s) > maxLabel || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
