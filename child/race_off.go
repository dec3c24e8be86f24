//go:build !race

package child

// The race detector multiplies the memory and the CPU time that a program needs by these factors. They are 1,
// because this build has no race detector.
const (
	memoryFactor = 1
	cpuFactor    = 1
)
