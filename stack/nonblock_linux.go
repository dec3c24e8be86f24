package stack

import "syscall"

const nonblock = syscall.O_NONBLOCK
