package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"
)

// profilesSocket is the Unix socket of Go's profiles in the data directory. Profiles show parts of the memory and
// take CPU time, so only users who may read the data directory get them.
const profilesSocket = "pprof.sock"

func listenProfiles(dataDir string) (net.Listener, error) {
	path := filepath.Join(dataDir, profilesSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // remove a socket that was left by a killed process
		return nil, fmt.Errorf("SCHEDULER_PPROF: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("SCHEDULER_PPROF: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("SCHEDULER_PPROF: %w", err), l.Close())
	}
	return l, nil
}

func profileServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Minute}
}
