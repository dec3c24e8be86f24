package replica

import "github.com/KimMachineGun/automemlimit/memlimit"

// Memory returns the memory in bytes that this program may use: the limit of its control group, or else the
// memory of the machine.
func Memory() (uint64, error) {
	machine, err := memlimit.FromSystem()
	if limit, cgroupErr := memlimit.FromCgroup(); cgroupErr == nil && limit > 0 && (err != nil || limit < machine) {
		return limit, nil
	}
	return machine, err
}

// memoryMiB returns Memory in MiB, or 0 if the system does not report it.
func memoryMiB() int64 {
	n, err := Memory()
	if err != nil {
		return 0
	}
	return int64(n >> 20)
}
