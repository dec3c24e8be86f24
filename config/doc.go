// Package config loads the settings of every Persys program in one way.
//
// A program describes its settings once, as a struct with tags, and gets flags, environment variables, files,
// YAML keys, defaults, checks, a reference table and a sample file from it:
//
//	type settings struct {
//		Port  int           `env:"GRPC_PORT" flag:"grpc-port" yaml:"grpc_port" kind:"port" default:"8085" usage:"control API port"`
//		Token string        `env:"PERSYS_VAULT_TOKEN" yaml:"vault_token" secret:"true" usage:"Vault token"`
//		Every time.Duration `env:"SCHEDULER_HEARTBEAT_INTERVAL" seconds:"true" default:"3s" min:"1s" usage:"time between heartbeats of agents"`
//	}
//	var s settings
//	l, err := config.New(&s)          // a wrong tag is a programmer's error
//	l.AddFlags(cmd.Flags())
//	cmd.SetArgs(l.Args(os.Args[1:]))  // accepts -insecure for --insecure
//	err = l.Load(config.System())     // in the command's RunE, after the flags are parsed
//
// # Precedence
//
// flag > environment > file named in X_FILE > YAML > default, for each setting by itself. Blank is unset
// everywhere: a variable, a flag, a file or a YAML key that holds only blanks falls through to the next. When
// a setting has several variables, the first that is set wins, and each may be given through its own X_FILE.
//
// An invalid value is an error that names its source, the rule and the value (never the value of a secret);
// the default is not used instead. Load reports all such errors at once, as Errors. An unknown YAML key is an
// error that names the nearest known one. Unknown lists variables that have one of our prefixes but are not
// settings.
//
// # Tags
//
//	env      variables, separated by commas, the first that is set wins
//	flag     long flag without dashes; short:"x" adds a letter
//	yaml     key, with dots between levels
//	default  used when nothing is set; written as in the environment
//	usage    one line for people. It begins with "ignored" if the setting is known
//	         and has no effect; Ignored then lists it if it is set
//	secret   "true": never printed, by Describe, by errors or by Values
//	required "true": Load fails when nothing is set
//	min, max bounds of numbers and durations
//	oneof    allowed words, separated by commas
//	kind     "port": 1 to 65535, or from min:"0" where 0 means any free one;
//	         "yaml": a string that holds a structure, as YAML text
//	bool     "word": only true and false, in any case, as in the scheduler's
//	         contract (without it: every value that strconv.ParseBool accepts)
//	seconds  "true": a duration may also be a whole number of seconds
//
// A struct field without tags that is itself a struct holds more settings. Types are string, bool, int,
// int32, int64, uint, uint16, uint32, uint64, float64, time.Duration, []string (separated by commas) and
// map[string]string (k=v,k2=v2).
//
// # Why not a library
//
// caarlos0/env reads the environment well, but it fills a struct without saying which fields it set. Flags
// above it and files, YAML and defaults below it, with blank as unset and errors that name their source,
// would need the same work for every field again. This package has a few hundred lines.
package config
