package engine

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// NotText returns the rule that a file breaks if it is not text in UTF-8, with the line and the column, counted
// from 1. The rule is "" if the file is text.
func NotText(data []byte) (line, column int, rule string) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return 1, 1, "is UTF-16, not UTF-8; convert it: iconv -f UTF-16 -t UTF-8"
	}
	if bytes.HasPrefix(data, []byte("\x1f\x8b")) {
		return 1, 1, "is compressed with gzip; decompress it: gunzip"
	}
	at := 0
	for at < len(data) && data[at] != 0 {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	if at == len(data) {
		return 0, 0, ""
	}
	before := data[:at]
	line = 1 + bytes.Count(before, []byte("\n"))
	column = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	if data[at] == 0 {
		return line, column, "contains a NUL byte, which a text file must not; if it is UTF-16, convert it: iconv -f UTF-16LE -t UTF-8"
	}
	return line, column, fmt.Sprintf("is not UTF-8: byte 0x%02x; convert the file, for example: iconv -f ISO-8859-1 -t UTF-8", data[at])
}
