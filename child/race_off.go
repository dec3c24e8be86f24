//go:build !race

package child

// The factors by which the race detector increases the memory and the CPU time of a program: 1,
// because this build has no race detector.
const (
	memoryFactor = 1
	cpuFactor    = 1
)
