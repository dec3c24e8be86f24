package testbed

import (
	"strings"
	"sync"
)

// Output is what a program or a log has written so far; it may be read while that goes on. The zero
// value is ready for use.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is all of it.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Has reports whether text was written.
func (o *Output) Has(text string) bool { return strings.Contains(o.String(), text) }

// Reset forgets what was written.
func (o *Output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}
