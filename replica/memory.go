package replica

import "github.com/KimMachineGun/automemlimit/memlimit"

// memory returns the memory in MiB that this program may use: the limit of its control group, or else the
// memory of the machine. It returns 0 if the system reports neither.
func memory() int64 {
	machine, err := memlimit.FromSystem()
	if err != nil {
		machine = 0
	}
	if limit, err := memlimit.FromCgroup(); err == nil && limit > 0 && (machine == 0 || limit < machine) {
		machine = limit
	}
	return int64(machine >> 20)
}
