//go:build race

package child

// The race detector multiplies the memory and the CPU time that a program needs by these factors.
const (
	memoryFactor = 10
	cpuFactor    = 4
)
