package gateway

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/api"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
)

// More events than this that wait for the apiserver are too old to help anybody.
const eventsKept = 10_000

// Events of asks that YuniKorn's core does not write. The shim's own "Scheduling" and "Scheduled" say the same of the pod, and
// each event is a write to the apiserver, which is the bottleneck of a burst.
var unwritten = map[string]bool{"New application added": true, "Successful allocation": true}

// notices hands events and scheduling states to YuniKorn's shim, which writes them to the apiserver. So they must not
// hold up questions. Of a pod's states only the last one counts.
type notices struct {
	rm      api.ResourceManagerCallback
	mutex   sync.Mutex
	order   []string
	states  map[string]*si.UpdateContainerSchedulingStateRequest
	records []*si.EventRecord
	changed chan struct{}
	handled atomic.Pointer[si.UpdateContainerSchedulingStateRequest] // now, by the shim
}

func newNotices(rm api.ResourceManagerCallback) *notices {
	return &notices{
		rm: rm, states: map[string]*si.UpdateContainerSchedulingStateRequest{}, changed: make(chan struct{}, 1),
	}
}

func (n *notices) state(state *si.UpdateContainerSchedulingStateRequest) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	key := askKey(state.ApplicationID, state.AllocationKey)
	if _, waits := n.states[key]; !waits {
		n.order = append(n.order, key)
	}
	n.states[key] = state
	n.wake()
}

func (n *notices) events(records []*si.EventRecord) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, record := range records {
		if record.Type != si.EventRecord_REQUEST || !unwritten[record.Message] {
			n.records = append(n.records, record)
		}
	}
	if excess := len(n.records) - eventsKept; excess > 0 {
		n.records = n.records[excess:]
	}
	n.wake()
}

func (n *notices) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

func (n *notices) run(ctx context.Context) {
	for {
		n.mutex.Lock()
		var state *si.UpdateContainerSchedulingStateRequest
		records := n.records
		n.records = nil
		if len(n.order) > 0 {
			state = n.states[n.order[0]]
			delete(n.states, n.order[0])
			n.order = n.order[1:]
		}
		n.mutex.Unlock()
		if len(records) > 0 {
			guarded(func() string { n.rm.SendEvent(records); return "" })
		}
		if state != nil {
			n.handled.Store(state)
			guarded(func() string { n.rm.UpdateContainerSchedulingState(state); return "" })
			n.handled.Store(nil)
			continue
		}
		select {
		case <-n.changed:
		case <-ctx.Done():
			return
		}
	}
}

// unplaced is Muster's reason in the state that the shim handles now, if it is this pod's; "": it is not.
func (n *notices) unplaced(uid string) string {
	if state := n.handled.Load(); state != nil && state.AllocationKey == uid {
		return state.Reason
	}
	return ""
}

// inALine makes an error's text fit for a sentence: joined errors have a line each.
func inALine(err error) string {
	return cut(strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), ": "))
}

func cut(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if runes := []rune(text); len(runes) > maxReason {
		return string(runes[:maxReason-1]) + "…"
	}
	return text
}
