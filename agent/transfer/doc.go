// Package transfer copies the files of a volume from one agent to another. The target asks and the source answers, on one
// stream of messages (agent.proto, VolumeReadRequest and VolumeReadResponse).
//
// A copy is made in passes. Each pass makes the target equal to the source's list of files: folders, regular files,
// symbolic and hard links and FIFOs, with owner, mode, times and extended attributes. Of a file that the target has in
// part, the target sends a hash of each block, and the source answers with the blocks that differ. So a pass that was
// interrupted at any point is continued by the next one, and the pass after a workload was stopped sends only what the
// workload changed meanwhile. A file gets its time of change only when its content is complete and on the disk, and files
// with the same size and time are not read again. The last pass, which is made while the workload is stopped, trusts no size
// and no time: it compares the hashes of all blocks.
//
// Paths are resolved within the volume (os.Root). A link that leads out of the volume is copied as a link and never
// followed. A file that another type of file has replaced since it was listed is not opened.
//
// While one side works for long, for example because it lists millions of files, the other side waits: the source sends empty
// messages meanwhile, and the target measures the silence of the source only while it waits for a message.
package transfer
