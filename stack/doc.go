// Package stack loads Compose stacks with compose-go: in a child process with limits, and only from the
// stack's own folder. Schedulers, agents and persysctl load a stack with the same code, so that a fault is
// found at apply and not on the node.
//
//	Source ─Loader.Load→ child process ─model→ *types.Project
//
// A stack's folder holds its Compose files and the regular files beside them. include, extends, env_file,
// label_file, secrets.file, configs.file and relative bind mounts must stay inside. An absolute path, a
// path or symbolic link that leads out of the folder, a folder, a device and a file that is too large are
// faults, which name the line. Two mechanisms enforce this:
//
//   - Refs finds the files that compose-go will read and checks each with os.Root. This package reads
//     env_file and label_file itself, through os.Root.
//   - If the process runs as root, the child first changes its root directory to the folder's parent.
//
// The child has limits of memory, CPU time and output, and a deadline, and ends with its caller. A Loader
// bounds how many children run at the same time.
package stack
