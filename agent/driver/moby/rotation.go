package moby

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// The log rotation that a container gets if neither its spec nor the engine's configuration has log settings.
// Without it the engine writes one file of unlimited size.
const (
	rotatedDriver = "json-file"
	rotatedSize   = "20m"
	rotatedFiles  = "3"
)

// maxDaemonConfig is the maximum number of bytes read from the engine's configuration file.
const maxDaemonConfig = 1 << 20

// facts are properties that the engine reports about itself.
type facts struct {
	folder  string              // folder of the engine's images and volumes
	logging string              // the engine's default log driver
	devices map[string][]string // see cdiDevices
}

// remember stores the facts about the engine that its answer to an info request (parameter info) contains, and
// returns them. The facts change only when the engine restarts.
func (e *Engine) remember(info client.SystemInfoResult) facts {
	f := facts{folder: info.Info.DockerRootDir, logging: info.Info.LoggingDriver, devices: cdiDevices(info.Info.DiscoveredDevices)}
	e.known.Store(&f)
	return f
}

// facts returns the stored facts, or asks the engine if there are none. If there are none and the engine
// does not answer, it returns empty facts.
func (e *Engine) facts(ctx context.Context) facts {
	if f := e.known.Load(); f != nil {
		return *f
	}
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return facts{}
	}
	return e.remember(res)
}

// Paths returns the paths of the engine's socket, if it is local, and of its data folder. The result lacks the
// data folder until the engine has answered once and reported it.
func (e *Engine) Paths(ctx context.Context) (out []string) {
	if socket, local := e.socket(); local {
		out = append(out, socket)
	}
	if f := e.facts(ctx); f.folder != "" {
		out = append(out, f.folder)
	}
	return out
}

func (e *Engine) socket() (path string, local bool) {
	return strings.CutPrefix(e.Client.DaemonHost(), "unix://")
}

// Rotation returns the log configuration of a container whose spec has none. The zero value means that the
// engine's own configuration applies.
func (e *Engine) Rotation(ctx context.Context) container.LogConfig {
	var config []byte
	if _, local := e.socket(); local {
		if f, err := os.Open(e.opt.DaemonConfig); err == nil {
			config, _ = io.ReadAll(io.LimitReader(f, maxDaemonConfig))
			f.Close()
		}
	}
	return rotation(e.facts(ctx).logging, config)
}

// rotation chooses the log configuration from the engine's default log driver and its configuration file,
// which may be empty.
func rotation(logging string, config []byte) container.LogConfig {
	var set struct {
		Driver  string            `json:"log-driver"`
		Options map[string]string `json:"log-opts"`
	}
	// An engine does not start with a configuration file that is not JSON. So if config is not JSON, the
	// running engine does not use this file, and config is ignored.
	if err := json.Unmarshal(config, &set); err == nil && (set.Driver != "" || len(set.Options) > 0) || logging != rotatedDriver {
		return container.LogConfig{}
	}
	return container.LogConfig{Type: rotatedDriver, Config: map[string]string{"max-size": rotatedSize, "max-file": rotatedFiles}}
}
