package gateway

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
)

const (
	// Asks go on after so long without one more of the running pods reported: their application may be refused.
	unreportedWait = 30 * time.Second
	// Pods end while others are still to be reported.
	unreportedLook = time.Second
)

// recovery holds asks back until the pods that run already are reported. YuniKorn's shim sends both application by
// application, in any order, and a scheduler that does not know yet what runs on a node would place too much there.
type recovery struct {
	running func() []string // UIDs of the pods that run; nil: nothing is held back
	send    func(*si.AllocationRequest) error
	log     *zap.Logger
	now     func() time.Time

	started atomic.Bool // begun or over, without the mutex

	mutex    sync.Mutex // over send, too: nothing overtakes
	begun    bool
	over     bool
	reported map[string]bool // before the first ask
	missing  map[string]bool
	held     []*si.Allocation
	rmID     string
	since    time.Time // the last progress
}

func newRecovery(running func() []string, send func(*si.AllocationRequest) error, log *zap.Logger) *recovery {
	r := &recovery{
		running: running, send: send, log: log, now: time.Now, over: running == nil, reported: map[string]bool{},
	}
	r.started.Store(r.over)
	return r
}

// take sends a request, without the asks that have to wait.
func (r *recovery) take(request *si.AllocationRequest) error {
	// (Before the mutex: the shim's own locks are taken in there. Only for the first ask: it looks at all pods.)
	var running []string
	if !r.started.Load() && slices.ContainsFunc(request.Allocations, isAsk) {
		running = r.running()
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.over {
		return r.send(request)
	}
	r.rmID = request.RmID
	var now, asks []*si.Allocation
	for _, allocation := range request.Allocations {
		if isAsk(allocation) {
			asks = append(asks, allocation)
			continue
		}
		now = append(now, allocation)
		r.seen(allocation.AllocationKey)
	}
	for _, release := range request.GetReleases().GetAllocationsToRelease() {
		r.forget(release)
	}
	if len(asks) > 0 && !r.begun {
		r.begin(running)
	}
	r.held = append(r.held, asks...)
	if len(now) > 0 || request.Releases != nil {
		if err := r.send(&si.AllocationRequest{RmID: request.RmID, Allocations: now, Releases: request.Releases}); err != nil {
			return err
		}
	}
	return r.goOn()
}

func isAsk(allocation *si.Allocation) bool { return allocation.NodeID == "" }

// begin notes what is still to be reported. (The shim knows all pods before it sends the first ask.)
func (r *recovery) begin(running []string) {
	r.started.Store(true)
	r.begun, r.since, r.missing = true, r.now(), map[string]bool{}
	for _, uid := range running {
		if !r.reported[uid] {
			r.missing[uid] = true
		}
	}
	r.reported = nil
	if len(r.missing) > 0 {
		r.log.Info("asks wait until the running pods are reported", zap.Int("pods", len(r.missing)))
	}
}

func (r *recovery) seen(uid string) {
	switch {
	case !r.begun:
		r.reported[uid] = true
	case r.missing[uid]:
		delete(r.missing, uid)
		r.since = r.now()
	}
}

// forget drops a held ask. (The release is sent nevertheless: Muster takes releases of what it does not know.)
func (r *recovery) forget(release *si.AllocationRelease) {
	delete(r.missing, release.AllocationKey)
	whole := release.AllocationKey == ""
	r.held = slices.DeleteFunc(r.held, func(ask *si.Allocation) bool {
		return ask.ApplicationID == release.ApplicationID && (whole || ask.AllocationKey == release.AllocationKey)
	})
}

func (r *recovery) goOn() error {
	if !r.begun || len(r.missing) > 0 {
		return nil
	}
	r.over = true
	held := r.held
	r.held = nil
	if len(held) == 0 {
		return nil
	}
	r.log.Info("asks go on", zap.Int("asks", len(held)))
	return r.send(&si.AllocationRequest{RmID: r.rmID, Allocations: held})
}

// look lets asks go on when the missing pods have ended, or are not reported in time.
func (r *recovery) look() error {
	if !r.started.Load() {
		return nil
	}
	running := map[string]bool{}
	for _, uid := range r.running() {
		running[uid] = true
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.over {
		return nil
	}
	for uid := range r.missing {
		if !running[uid] {
			delete(r.missing, uid)
		}
	}
	if len(r.missing) > 0 && r.now().Sub(r.since) > unreportedWait {
		r.log.Warn("running pods are not reported: asks go on without them", zap.Int("pods", len(r.missing)))
		r.missing = nil
	}
	return r.goOn()
}

// run looks until nothing waits any more, or ctx is over.
func (r *recovery) run(ctx context.Context) {
	if r.running == nil {
		return
	}
	tick := time.NewTicker(unreportedLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := r.look(); err != nil {
			r.log.Warn("held asks are not sent", zap.Error(err))
		}
		r.mutex.Lock()
		over := r.over
		r.mutex.Unlock()
		if over {
			return
		}
	}
}
