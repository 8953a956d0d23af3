package gateway

import (
	"slices"
	"testing"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
)

type observed []float64

func (o *observed) Observe(value float64) { *o = append(*o, value) }

func TestTheWaitOfAnAskEndsWithItsAllocation(t *testing.T) {
	var seen observed
	now := time.Unix(0, 0)
	w := newWaits(&seen)
	w.now = func() time.Time { return now }
	ask := func(application, key string) *si.Allocation {
		return &si.Allocation{ApplicationID: application, AllocationKey: key}
	}
	w.sent(&si.AllocationRequest{Allocations: []*si.Allocation{
		ask("a", "one"), ask("a", "two"), ask("a", "refused"), ask("a", "withdrawn"), ask("b", "whole"),
		{ApplicationID: "a", AllocationKey: "runs", NodeID: "n"},
	}})
	now = now.Add(time.Second)
	w.sent(&si.AllocationRequest{Allocations: []*si.Allocation{ask("a", "one")}}) // resized while it waits
	w.sent(&si.AllocationRequest{Releases: &si.AllocationReleasesRequest{AllocationsToRelease: []*si.AllocationRelease{
		{ApplicationID: "a", AllocationKey: "withdrawn"}, {ApplicationID: "b"},
	}}})
	now = now.Add(time.Second)
	allocated := func(keys ...string) *si.AllocationResponse {
		response := &si.AllocationResponse{}
		for _, key := range keys {
			response.New = append(response.New, &si.Allocation{AllocationKey: key, NodeID: "n"})
		}
		return response
	}
	w.came(&si.AllocationResponse{RejectedAllocations: []*si.RejectedAllocation{{AllocationKey: "refused"}}})
	w.came(allocated("one", "runs", "withdrawn", "whole", "refused"))
	now = now.Add(time.Second)
	w.came(allocated("one", "two"))
	if !slices.Equal(seen, observed{2, 3}) {
		t.Errorf("observed %v: expected 2 s and 3 s", seen)
	}
	if len(w.asked) != 0 {
		t.Errorf("%v are kept", w.asked)
	}
}
