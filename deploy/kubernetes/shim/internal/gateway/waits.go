package gateway

import (
	"sync"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"github.com/prometheus/client_golang/prometheus"
)

// waits measures the time from each ask to its allocation.
type waits struct {
	observe prometheus.Observer
	now     func() time.Time

	mutex sync.Mutex
	asked map[string]wait // by allocation key
}

type wait struct {
	since       time.Time
	application string
}

func newWaits(observe prometheus.Observer) *waits {
	return &waits{observe: observe, now: time.Now, asked: map[string]wait{}}
}

// sent notes the asks of a request, and forgets those that it withdraws. An ask that is sent again keeps its time.
func (w *waits) sent(request *si.AllocationRequest) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, allocation := range request.Allocations {
		if !isAsk(allocation) {
			continue
		}
		if _, has := w.asked[allocation.AllocationKey]; !has {
			w.asked[allocation.AllocationKey] = wait{w.now(), allocation.ApplicationID}
		}
	}
	for _, release := range request.GetReleases().GetAllocationsToRelease() {
		if release.AllocationKey != "" {
			delete(w.asked, release.AllocationKey)
			continue
		}
		for key, each := range w.asked {
			if each.application == release.ApplicationID {
				delete(w.asked, key)
			}
		}
	}
}

// came observes the allocations of a response, and forgets the asks that it refuses or releases.
func (w *waits) came(response *si.AllocationResponse) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, allocation := range response.New {
		if each, has := w.asked[allocation.AllocationKey]; has {
			w.observe.Observe(w.now().Sub(each.since).Seconds())
			delete(w.asked, allocation.AllocationKey)
		}
	}
	for _, refused := range response.RejectedAllocations {
		delete(w.asked, refused.AllocationKey)
	}
	for _, released := range response.Released {
		delete(w.asked, released.AllocationKey)
	}
}
