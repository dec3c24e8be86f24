package main

import "context"

// resized never sends: Windows has no signal for a new size of the terminal.
func resized(context.Context) <-chan struct{} { return nil }
