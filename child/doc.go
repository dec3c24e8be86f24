// Package child runs one task of this program in a process of its own, with limits on memory, CPU time, wall
// time, the size of files and the length of the answer.
//
// It is for work whose input comes from a user or a server, and whose cost is therefore not known in advance:
// loading a Compose project, unpacking a Git repository. If a task exceeds a limit, only its process ends. The
// program continues, and reports which limit was reached.
package child
