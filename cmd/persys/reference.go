package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/persys/compute/agent/metrics"
	"github.com/persys/compute/cmd/internal/agentd"
	"github.com/persys/compute/cmd/internal/gatewayd"
	"github.com/persys/compute/config"
	"github.com/persys/compute/gateway"
	"github.com/persys/compute/replica"
	"github.com/persys/compute/telemetry"
)

const sampleHeader = `# Every environment variable that the programs read, with its default. Written by ` + "`make sample-env`" + `.
# All lines are commented out: copy the file, remove the # from what you change. An empty value counts
# as unset; a bad one stops the program with an error that names it. Order: flag > environment > file
# named in X_FILE > YAML > default; X_FILE works for every variable X, for example PERSYS_TLS_KEY_FILE.
`

// envCommand returns the command that prints sample.env from the settings of all programs.
func envCommand() *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "print every setting of the daemons as a sample environment file", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return writeSample(cmd.OutOrStdout()) },
	}
}

func writeSample(w io.Writer) error {
	if _, err := io.WriteString(w, sampleHeader); err != nil {
		return err
	}
	for _, p := range []struct {
		name   string
		target any
	}{
		{"persys-scheduler", &replica.Config{}},
		{"persys-agent", &agentd.Config{}},
		{"persys-gateway", &gatewayd.Config{}},
	} {
		l, err := config.New(p.target)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "\n# ----- %s -----\n\n", p.name); err != nil {
			return err
		}
		// Settings without effect are not listed.
		offered := slices.DeleteFunc(l.Describe(), config.Setting.Ignored)
		if err := config.SampleEnv(w, offered); err != nil {
			return err
		}
	}
	return nil
}

const metricsHeader = `# Metrics

Written by ` + "`make reference`" + ` from what the programs declare. Every program serves them at ` + "`/metrics`" + ` (scheduler 8084,
agent 8089, gateway on both listeners), with Go's own and the process's metrics beside them.
`

// metricsCommand returns the command that prints docs/reference/metrics.md from the metrics of all programs.
func metricsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "metrics", Short: "print every metric of the daemons as a Markdown page", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return writeMetrics(cmd.OutOrStdout()) },
	}
}

// exported returns the metrics that each program exports.
func exported() []struct {
	program string
	metrics []telemetry.Metric
} {
	return []struct {
		program string
		metrics []telemetry.Metric
	}{
		{"Scheduler", replica.Metrics()},
		{"Agent", metrics.List()},
		{"Gateway", gateway.Metrics()},
	}
}

func writeMetrics(w io.Writer) error {
	var b strings.Builder
	b.WriteString(metricsHeader)
	for _, p := range exported() {
		fmt.Fprintf(&b, "\n## %s\n\n| Name | Type | Labels | Meaning |\n|---|---|---|---|\n", p.program)
		for _, m := range p.metrics {
			labels := "—"
			if len(m.Labels) > 0 {
				labels = strings.Join(m.Labels, ", ")
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.Name, m.Kind, labels, m.Help)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
