// Package events writes the events of YuniKorn's shim to the apiserver.
//
// Each placed pod has three of them, and only one binding. So events give way to bindings, which pods wait for. An event of a
// pod that cannot be placed has Muster's sentence, because `kubectl describe` shows events but no messages of conditions.
package events

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"
	"unicode/utf8"

	yunikorn "github.com/apache/yunikorn-k8shim/pkg/common/events"
	"github.com/prometheus/client_golang/prometheus"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

const (
	// Events that are written at the same time.
	atOnce = 2
	// An event that has waited so long is written beside all others: events come late, and none is kept back for good.
	patience = 30 * time.Second
	// The reason of YuniKorn's events of a pod that is not placed.
	unschedulable = "PodUnschedulable"
	// The apiserver refuses a longer note.
	noteBytes = 1024
)

// Start lets YuniKorn's shim write its events, until ctx is over.
//
// reason is what Muster says of a pod that it cannot place, by UID; "": nothing.
func Start(
	ctx context.Context, client kubernetes.Interface, reporter string, reason func(uid string) string, registry prometheus.Registerer,
) error {
	sink := newSink(&events.EventSinkImpl{Interface: client.EventsV1()}, registry)
	broadcaster := events.NewBroadcaster(sink)
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return err
	}
	yunikorn.SetRecorder(&recorder{broadcaster.NewRecorder(scheme.Scheme, reporter), reason})
	return nil
}

// recorder adds Muster's reasons to YuniKorn's events.
type recorder struct {
	events.EventRecorder
	reason func(uid string) string
}

func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	if reason == unschedulable {
		if object, err := meta.Accessor(regarding); err == nil {
			if said := r.reason(string(object.GetUID())); said != "" {
				note, args = "%s", []any{cut(fmt.Sprintf(note, args...) + ": " + said)}
				// Events that differ in their notes alone count as one, with the first one's note.
				action = fmt.Sprintf("%s-%08x", action, digest(said))
			}
		}
	}
	r.EventRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
}

func digest(text string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(text))
	return hash.Sum32()
}

func cut(note string) string {
	const ellipsis = "…"
	if len(note) <= noteBytes {
		return note
	}
	end := noteBytes - len(ellipsis)
	for !utf8.RuneStart(note[end]) {
		end--
	}
	return note[:end] + ellipsis
}

// sink writes few events at a time, the oldest first.
type sink struct {
	events.EventSink
	places   chan struct{}
	patience time.Duration
	waiting  prometheus.Gauge
	written  prometheus.Counter
}

func newSink(to events.EventSink, registry prometheus.Registerer) *sink {
	s := &sink{
		EventSink: to, places: make(chan struct{}, atOnce), patience: patience,
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "muster_shim_events_waiting", Help: "Events that are not written yet, because pods are bound first.",
		}),
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "muster_shim_events_written_total", Help: "Events that the apiserver has.",
		}),
	}
	registry.MustRegister(s.waiting, s.written)
	return s
}

func (s *sink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	s.waiting.Inc()
	defer s.waiting.Dec()
	late := time.NewTimer(s.patience)
	defer late.Stop()
	select { // (Go serves the senders of a channel in their order.)
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-late.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	made, err := s.EventSink.Create(ctx, event)
	if err == nil {
		s.written.Inc()
	}
	return made, err
}
