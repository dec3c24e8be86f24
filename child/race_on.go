//go:build race

package child

// The factors by which the race detector increases the memory and the CPU time that a program needs.
const (
	memoryFactor = 10
	cpuFactor    = 4
)
