package volume

import (
	"context"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Folders returns how many bytes a workload's volumes without size limit occupy. Such volumes are plain folders
// of this machine. The bytes of a folder that several workloads share are added to the sum of each of these
// workloads.
func (m *Manager) Folders(ctx context.Context, workload string) (int64, error) {
	var sum int64
	for _, a := range m.of(workload) {
		v, ok := m.get(a.VolumeID)
		if !ok || v.Driver != Local || v.Form != Folder || a.StagePath == "" {
			continue
		}
		n, err := occupied(ctx, a.StagePath)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// occupied returns the allocated bytes of all files below a folder. The bytes of a file with several hard links
// are added only once.
func occupied(ctx context.Context, root string) (int64, error) {
	type inode struct{ device, number uint64 }
	linked := map[inode]bool{}
	var sum int64
	err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil // the folder was deleted during the walk
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			id := inode{uint64(st.Dev), st.Ino}
			if linked[id] {
				return nil
			}
			linked[id] = true
		}
		sum += st.Blocks * 512
		return nil
	})
	return sum, err
}
