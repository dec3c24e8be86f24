//go:build unix

package persysctl

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// resized returns a channel that receives a value whenever the size of the terminal has changed, until ctx
// ends.
func resized(ctx context.Context) <-chan struct{} {
	got, out := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(got, syscall.SIGWINCH)
	go func() {
		defer signal.Stop(got)
		for {
			select {
			case <-got:
				select {
				case out <- struct{}{}:
				default:
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
