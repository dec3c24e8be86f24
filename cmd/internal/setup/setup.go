// Package setup has the first steps of every program: it reads the settings and makes the logger.
package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/persys/compute/config"
)

// Main runs a program until run returns, or until SIGINT, SIGTERM or SIGHUP ends its context. After an error it
// prints the error and exits with the error's ExitCode(), or 1.
func Main(name string, run func(context.Context) error) {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			os.Exit(coded.ExitCode())
		}
		os.Exit(1)
	}
}

// Loaded records from which file the settings of a program came, and which settings have no effect. Its method Logger
// writes this to the log.
type Loaded struct {
	loader  *config.Loader
	file    string // path of the YAML file; "" if none was read
	fileEnv string // environment variable that names the file
}

// Load fills target from flags, environment, files, YAML and defaults, in this order of precedence. It
// returns nil if the program only printed its help or version. fileEnv is the environment variable with the
// path of a YAML file. If it is not set, Load reads the first of files that exists.
func Load(name, version, short string, target any, fileEnv string, files ...string) (*Loaded, error) {
	loader, err := config.New(target)
	if err != nil {
		return nil, err
	}
	var loaded *Loaded
	file := ""
	cmd := &cobra.Command{
		Use:           name,
		Short:         short,
		Version:       Version(version),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			src := config.System()
			path := cmp.Or(file, os.Getenv(fileEnv))
			for i := 0; path == "" && i < len(files); i++ {
				if _, err := os.Stat(files[i]); err == nil {
					path = files[i]
				}
			}
			if path != "" {
				if src, err = src.WithYAML(path, true); err != nil {
					return err
				}
			}
			loaded = &Loaded{loader, path, fileEnv}
			return loader.Load(src)
		},
	}
	loader.AddFlags(cmd.Flags())
	usage := "YAML file with settings (environment " + fileEnv + ")"
	if len(files) > 0 {
		usage += "; else the first of these that exists: " + strings.Join(files, ", ")
	}
	cmd.Flags().StringVar(&file, "config", "", usage)
	cmd.SetArgs(loader.Args(TakeArgs(os.Args[1:])))
	err = cmd.Execute()
	return loaded, err
}

// Logger makes the program's logger, on standard error. It logs which settings file was read, and which
// settings and environment variables have no effect.
func (l *Loaded) Logger(level, format string) (*slog.Logger, error) {
	log, err := Logger(os.Stderr, level, format)
	if err != nil {
		return nil, err
	}
	if l.file != "" {
		log.Info("settings were read", "file", l.file)
	}
	for _, line := range l.loader.Ignored() {
		log.Warn("a setting has no effect", "setting", line)
	}
	for _, line := range l.loader.Unknown(config.System(), l.fileEnv) {
		log.Warn("a variable has no effect", "variable", line)
	}
	return log, nil
}

// Version returns the release together with the commit from which the program was built.
func Version(release string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return release
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return release + " (" + s.Value[:12] + ")"
		}
	}
	return release
}

// Logger makes a logger that uses the same keys and formats in every program: an error has the key err, and a
// duration is written as in Go ("1.5s"), also in JSON.
func Logger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("LOG_LEVEL %q: %w", level, err)
	}
	opts := &slog.HandlerOptions{Level: l, ReplaceAttr: normalize}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}

func normalize(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == "error" {
		a.Key = "err"
	}
	switch a.Key {
	case "workload", "node", "epoch":
		if a.Value.Kind() == slog.KindString && a.Value.String() == "" {
			return slog.Attr{} // attributes with an empty value are left out
		}
	}
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
