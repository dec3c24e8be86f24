package testbed

import (
	"strings"
	"sync"
)

// Output is an io.Writer that stores all text written to it. It can be read while other goroutines write. The
// zero value is ready for use.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns all text.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Has reports whether the output contains text.
func (o *Output) Has(text string) bool { return strings.Contains(o.String(), text) }

// Reset discards all text.
func (o *Output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}
