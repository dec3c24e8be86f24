package moby

const (
	minShares    = 2 // the smallest CPU weight that the kernel accepts
	sharesPerCPU = 1024
)

// CPUWeight returns the CPU weight (cpu_shares) of a container with a CPU limit in millicores and no weight of its own.
func CPUWeight(milli int64) int64 { return max(milli*sharesPerCPU/1000, minShares) }
