package translate

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Note tells the user about a field of the input for which workload files have no equivalent field. It says to which
// similar field it was translated, or that it was left out.
type Note struct {
	Workload string // id of the workload; "" = all
	Field    string // path of the field in the input; "" = none in particular
	Text     string
}

// Config is a config (a file that workloads get) from the input, with its content.
type Config struct {
	Name string
	Data []byte
}

// Result is a translation.
type Result struct {
	Workloads int
	YAML      []byte   // workload file with one document for each workload
	Networks  []string // networks that the workloads join, sorted
	Secrets   []string // secrets that the workloads use, sorted. Their values are not in the input.
	Configs   []Config // configs that the workloads use, by name
	Notes     []Note
}

// The types below are the parts of a workload file that this package writes (docs/reference/workload.md).

type workload struct {
	ID          string            `yaml:"id"`
	Namespace   string            `yaml:"namespace,omitempty"`
	Kind        string            `yaml:"kind,omitempty"`
	Count       *int64            `yaml:"count,omitempty"`
	Priority    int64             `yaml:"priority,omitempty"`
	Container   *container        `yaml:"container,omitempty"`
	Compose     *composeStack     `yaml:"compose,omitempty"`
	Resources   *resources        `yaml:"resources,omitempty"`
	Job         *job              `yaml:"job,omitempty"`
	Cron        *cron             `yaml:"cron,omitempty"`
	HealthCheck *healthCheck      `yaml:"health_check,omitempty"`
	Constraints []string          `yaml:"constraints,omitempty"`
	Spread      []spread          `yaml:"spread,omitempty"`
	Affinity    []affinity        `yaml:"affinity,omitempty"`
	AntiAffin   []affinity        `yaml:"anti_affinity,omitempty"`
	Update      *update           `yaml:"update,omitempty"`
	Reschedule  *reschedule       `yaml:"reschedule,omitempty"`
	Metadata    map[string]string `yaml:"metadata,omitempty"`
}

type composeStack struct {
	Inline string `yaml:"inline"`
}

// container is a container of a workload file, or a service of a Compose file. The fields of both have the
// same names.
type container struct {
	Image        string             `yaml:"image,omitempty"`
	Entrypoint   []string           `yaml:"entrypoint,omitempty,flow"`
	Command      []string           `yaml:"command,omitempty,flow"`
	Environment  map[string]string  `yaml:"environment,omitempty"`
	User         string             `yaml:"user,omitempty"`
	GroupAdd     []string           `yaml:"group_add,omitempty,flow"`
	WorkingDir   string             `yaml:"working_dir,omitempty"`
	Hostname     string             `yaml:"hostname,omitempty"`
	NetworkMode  string             `yaml:"network_mode,omitempty"`
	Networks     map[string]network `yaml:"networks,omitempty"`
	EndpointMode string             `yaml:"endpoint_mode,omitempty"`
	Ports        []port             `yaml:"ports,omitempty"`
	Volumes      []string           `yaml:"volumes,omitempty"`
	Managed      []volume           `yaml:"managed_volumes,omitempty"`
	Tmpfs        []string           `yaml:"tmpfs,omitempty"`
	Secrets      []file             `yaml:"secrets,omitempty"`
	Configs      []file             `yaml:"configs,omitempty"`
	CapAdd       []string           `yaml:"cap_add,omitempty,flow"`
	CapDrop      []string           `yaml:"cap_drop,omitempty,flow"`
	SecurityOpt  []string           `yaml:"security_opt,omitempty"`
	Privileged   bool               `yaml:"privileged,omitempty"`
	ReadOnly     bool               `yaml:"read_only,omitempty"`
	Init         *bool              `yaml:"init,omitempty"`
	TTY          bool               `yaml:"tty,omitempty"`
	StdinOpen    bool               `yaml:"stdin_open,omitempty"`
	Devices      []string           `yaml:"devices,omitempty"`
	Sysctls      map[string]string  `yaml:"sysctls,omitempty"`
	Ulimits      map[string]ulimit  `yaml:"ulimits,omitempty"`
	ShmSize      string             `yaml:"shm_size,omitempty"`
	PidsLimit    int64              `yaml:"pids_limit,omitempty"`
	OOMScoreAdj  int64              `yaml:"oom_score_adj,omitempty"`
	StopSignal   string             `yaml:"stop_signal,omitempty"`
	StopGrace    string             `yaml:"stop_grace_period,omitempty"`
	HealthCheck  *engineCheck       `yaml:"healthcheck,omitempty"`
	ExtraHosts   []string           `yaml:"extra_hosts,omitempty"`
	DNS          []string           `yaml:"dns,omitempty,flow"`
	DNSSearch    []string           `yaml:"dns_search,omitempty,flow"`
	DNSOpt       []string           `yaml:"dns_opt,omitempty,flow"`
	PID          string             `yaml:"pid,omitempty"`
	IPC          string             `yaml:"ipc,omitempty"`
	UTS          string             `yaml:"uts,omitempty"`
	Userns       string             `yaml:"userns_mode,omitempty"`
	Runtime      string             `yaml:"runtime,omitempty"`
	Logging      *logging           `yaml:"logging,omitempty"`
	Labels       map[string]string  `yaml:"labels,omitempty"`
	Restart      string             `yaml:"restart,omitempty"`
}

type network struct {
	Aliases []string `yaml:"aliases,omitempty,flow"`
}

// port is a published port. Its fields have the names of Compose, which the container of a workload file
// also accepts.
type port struct {
	Container int64  `yaml:"target"`
	Host      int64  `yaml:"published,omitempty"`
	Protocol  string `yaml:"protocol,omitempty"`
	Name      string `yaml:"name,omitempty"`
	Mode      string `yaml:"mode,omitempty"`
}

type volume struct {
	Name     string `yaml:"name"`
	Path     string `yaml:"path"`
	ReadOnly bool   `yaml:"read_only,omitempty"`
	Retain   string `yaml:"retain,omitempty"`
}

// file is the use of a secret or a config.
type file struct {
	Source string `yaml:"source"`
	Target string `yaml:"target,omitempty"`
	UID    string `yaml:"uid,omitempty"`
	GID    string `yaml:"gid,omitempty"`
	Mode   string `yaml:"mode,omitempty"`
}

// MarshalYAML writes the short form, only the name, if no other field is set.
func (f file) MarshalYAML() (any, error) {
	if f == (file{Source: f.Source}) {
		return f.Source, nil
	}
	type plain file
	return plain(f), nil
}

type ulimit struct {
	Soft int64 `yaml:"soft"`
	Hard int64 `yaml:"hard"`
}

type engineCheck struct {
	Test        []string `yaml:"test,omitempty,flow"`
	Interval    string   `yaml:"interval,omitempty"`
	Timeout     string   `yaml:"timeout,omitempty"`
	Retries     int64    `yaml:"retries,omitempty"`
	StartPeriod string   `yaml:"start_period,omitempty"`
	Disable     bool     `yaml:"disable,omitempty"`
}

type healthCheck struct {
	HTTP     string   `yaml:"http,omitempty"`
	TCP      bool     `yaml:"tcp,omitempty"`
	Command  []string `yaml:"command,omitempty,flow"`
	Service  string   `yaml:"service,omitempty"`
	Port     int64    `yaml:"port,omitempty"`
	Interval string   `yaml:"interval,omitempty"`
	Timeout  string   `yaml:"timeout,omitempty"`
}

type logging struct {
	Driver  string            `yaml:"driver,omitempty"`
	Options map[string]string `yaml:"options,omitempty"`
}

type resources struct {
	CPU     string           `yaml:"cpu,omitempty"`
	Memory  string           `yaml:"memory,omitempty"`
	Devices map[string]int64 `yaml:"devices,omitempty"`
}

type job struct {
	Completions   int64          `yaml:"completions,omitempty"`
	Parallelism   int64          `yaml:"parallelism,omitempty"`
	EveryNode     bool           `yaml:"every_node,omitempty"`
	Retries       *int64         `yaml:"retries,omitempty"`
	Parameterized *parameterized `yaml:"parameterized,omitempty"`
}

type parameterized struct {
	Input      string      `yaml:"input,omitempty"`
	Parameters []parameter `yaml:"parameters,omitempty"`
}

type parameter struct {
	Name     string `yaml:"name"`
	Required bool   `yaml:"required,omitempty"`
}

type cron struct {
	Schedule    string `yaml:"schedule"`
	TimeZone    string `yaml:"time_zone,omitempty"`
	Concurrency string `yaml:"concurrency,omitempty"`
	Suspend     bool   `yaml:"suspend,omitempty"`
}

type spread struct {
	By   string `yaml:"by"`
	When string `yaml:"when"`
}

type affinity struct {
	Node   string `yaml:"node,omitempty"`
	Group  string `yaml:"group,omitempty"`
	By     string `yaml:"by,omitempty"`
	When   string `yaml:"when,omitempty"`
	Weight int64  `yaml:"weight,omitempty"`
}

type update struct {
	Order           string `yaml:"order,omitempty"`
	MaxParallel     int64  `yaml:"max_parallel,omitempty"`
	MinHealthyTime  string `yaml:"min_healthy_time,omitempty"`
	HealthyDeadline string `yaml:"healthy_deadline,omitempty"`
	Canary          int64  `yaml:"canary,omitempty"`
	AutoRevert      bool   `yaml:"auto_revert,omitempty"`
}

type reschedule struct {
	Attempts int64  `yaml:"attempts"`
	Interval string `yaml:"interval,omitempty"`
}

// translation collects the workload files, notes and configs of the workloads that were translated.
type translation struct {
	workloads []*workload
	networks  map[string]bool
	secrets   map[string]bool
	configs   map[string][]byte
	notes     []Note
}

func newTranslation() *translation {
	return &translation{networks: map[string]bool{}, secrets: map[string]bool{}, configs: map[string][]byte{}}
}

func (t *translation) note(workload, field, format string, args ...any) {
	t.notes = append(t.notes, Note{Workload: workload, Field: field, Text: fmt.Sprintf(format, args...)})
}

// leftOver adds a note for every field of s that the translation has not read.
func (t *translation) leftOver(workload string, s *source) {
	for _, n := range s.unread() {
		n.Workload = workload
		t.notes = append(t.notes, n)
	}
}

func (t *translation) result() (*Result, error) {
	out := &Result{
		Workloads: len(t.workloads), Networks: slices.Sorted(maps.Keys(t.networks)), Secrets: slices.Sorted(maps.Keys(t.secrets)), Notes: t.notes,
	}
	for name, data := range t.configs {
		out.Configs = append(out.Configs, Config{name, data})
	}
	slices.SortFunc(out.Configs, func(a, b Config) int { return cmp.Compare(a.Name, b.Name) })
	var err error
	out.YAML, err = encode(t.workloads...)
	return out, err
}

// millicores returns an amount of CPU as text; "" for 0.
func millicores(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("%dm", n)
}

// mebibytes returns an amount of memory, in bytes, as text, rounded up; "" for 0.
func mebibytes(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("%dMi", (n+1<<20-1)>>20)
}

// octal returns permission bits as octal text; "" for the default, 0444.
func octal(mode int64) string {
	if mode == 0 || mode == 0o444 {
		return ""
	}
	return fmt.Sprintf("%04o", mode)
}

// composeFile is the Compose file of a stack.
type composeFile struct {
	Services map[string]*container `yaml:"services"`
	Volumes  map[string]*struct{}  `yaml:"volumes,omitempty"`
}

// encode writes YAML documents.
func encode[T any](documents ...T) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	for _, d := range documents {
		if err := e.Encode(d); err != nil {
			return nil, err
		}
	}
	err := e.Close()
	return b.Bytes(), err
}
