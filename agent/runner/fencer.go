package runner

import (
	"errors"
	"time"

	"github.com/persys/compute/agent/core"
	"github.com/persys/compute/agent/fencer/lease"
)

// renewEvery is the interval at which the agent sends the lease to the fencer.
const renewEvery = 500 * time.Millisecond

// renew sends one message to the fencer. It returns the answer, or the error as text.
func (r *Runner) renew(in lease.Renewal) (lease.Status, string) {
	err := errors.New("PERSYS_FENCER is off")
	var st lease.Status
	if r.cfg.Fencer != nil {
		in.Agent, in.Boot = r.process, r.boot
		st, err = r.cfg.Fencer.Renew(r.life, in)
	}
	if err != nil {
		return lease.Status{}, err.Error()
	}
	return st, ""
}

// meetFencer asks the fencer about the workloads that the agent's previous process left running.
func (r *Runner) meetFencer() {
	defer close(r.met)
	st, problem := r.renew(lease.Renewal{Instance: r.State().Meta.InstanceID, Ask: true})
	r.do(core.FencerMet{Status: st, Problem: problem})
}

// mindFencer sends a message to the fencer at the interval renewEvery, and whenever the core requests one. met
// says whether the fencer has answered already.
func (r *Runner) mindFencer(met bool) {
	defer r.cfg.Fencer.Close()
	if !met {
		r.meetFencer()
	}
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		r.mu.Lock()
		_, err := r.step(core.FencerDue{})
		sent := r.renewal
		r.mu.Unlock()
		if err != nil {
			r.log.Error("could not write the state file", "error", err)
		}
		st, problem := r.renew(sent)
		if r.life.Err() != nil {
			return
		}
		r.do(core.FencerAnswered{Sent: sent, Status: st, Problem: problem})
		r.heard.fire()
		select {
		case <-r.life.Done():
			return
		case <-tick.C:
		case <-r.tell:
		}
	}
}
