package main

import "testing"

// The agent that `persys dev` starts must have the features of an agent with default settings, such as Compose stacks,
// but without TLS, fixed ports and virtual machines.
func TestAgentOfDevRunsStacks(t *testing.T) {
	cfg, err := agentConfig(t.TempDir(), []string{"127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.Docker || !cfg.Compose || !cfg.Exec || !cfg.GC || !cfg.Reconcile || cfg.Threshold != 80 {
		t.Errorf("the agent of persys dev has docker %t, compose %t, exec %t, gc %t, reconcile %t, threshold %d; want all true and 80", cfg.Docker, cfg.Compose, cfg.Exec, cfg.GC, cfg.Reconcile, cfg.Threshold)
	}
	if !cfg.Insecure || cfg.GRPCPort != 0 || cfg.MetricsPort != 0 || cfg.VM {
		t.Errorf("the agent of persys dev has insecure %t, ports %d and %d, virtual machines %t; want true, 0, 0 and false", cfg.Insecure, cfg.GRPCPort, cfg.MetricsPort, cfg.VM)
	}
}
