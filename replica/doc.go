// Package replica is one scheduler of a cluster, as a library. It connects the Raft node, the leader's loop,
// the gRPC server, DNS, the mirror in etcd, certificates and the HTTP endpoints.
//
// cfg, err := replica.DefaultConfig()
// cfg.Insecure, cfg.DataDir, cfg.BootstrapExpect = true, dir, 1
// r, err := replica.Start(ctx, cfg, "1.0", slog.Default())
// err = r.Run(ctx) // until ctx ends
//
// cmd/internal/schedulerd runs one replica, and `persys dev` runs three in one process.
//
// The fields of Config have struct tags for package config: environment variable, flag, default, range. The
// alternative, a second struct without tags, would repeat some seventy fields and need a line of code to copy each.
// Programs that embed a scheduler can ignore the tags: they call DefaultConfig and set fields. An error about a setting
// names its environment variable, even if the program has set the field.
//
// Parts that need little of a replica are separate packages: keyring makes the schedulers agree on the
// cluster key, coredns watches CoreDNS servers, auditsink exports the audit logs, and mirrorspec translates
// between specifications and the records in etcd.
package replica
