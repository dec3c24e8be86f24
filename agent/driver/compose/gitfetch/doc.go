// Package gitfetch brings the files of one Git commit into a folder.
//
// The work runs in a child process with limits, because a small pack can unpack to any size. The files are
// written without a Git directory, so no credentials stay on the disk. A commit with a symbolic link that leads
// out of the folder is refused.
package gitfetch
