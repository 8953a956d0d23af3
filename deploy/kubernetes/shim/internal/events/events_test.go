package events

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// slow is an apiserver that answers when it is told to.
type slow struct {
	events.EventSink
	answer chan struct{}
	mutex  sync.Mutex
	began  []string
}

func (s *slow) Create(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	s.mutex.Lock()
	s.began = append(s.began, event.Name)
	s.mutex.Unlock()
	<-s.answer
	return event, nil
}

func TestFewEventsAreWrittenAtATimeAndTheOldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slow{answer: make(chan struct{})}
		s := newSink(api, prometheus.NewRegistry())
		for i := range 5 {
			go func() { _, _ = s.Create(t.Context(), named(fmt.Sprint(i))) }()
			synctest.Wait()
		}
		if got := strings.Join(api.began, ""); got != "01" {
			t.Fatalf("at once: got %s, want 01", got)
		}
		if waiting := testutil.ToFloat64(s.waiting); waiting != 5 {
			t.Fatalf("waiting: got %v, want 5", waiting)
		}
		for i := range 5 {
			api.answer <- struct{}{}
			synctest.Wait()
			if want := "01234"[:min(3+i, 5)]; strings.Join(api.began, "") != want {
				t.Fatalf("after %d answers: got %v, want %s", i+1, api.began, want)
			}
		}
		if written := testutil.ToFloat64(s.written); written != 5 {
			t.Fatalf("written: got %v, want 5", written)
		}
	})
}

func TestAnEventDoesNotWaitForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slow{answer: make(chan struct{})}
		s := newSink(api, prometheus.NewRegistry())
		for i := range 4 {
			go func() { _, _ = s.Create(t.Context(), named(fmt.Sprint(i))) }()
		}
		time.Sleep(patience - time.Second)
		synctest.Wait()
		if len(api.began) != 2 {
			t.Fatalf("before its patience ends: got %v", api.began)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(api.began) != 4 {
			t.Fatalf("after its patience: got %v, want all four", api.began)
		}
		close(api.answer)
	})
}

func TestAnEventThatWaitsEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slow{answer: make(chan struct{})}
		s := newSink(api, prometheus.NewRegistry())
		for range atOnce {
			go func() { _, _ = s.Create(t.Context(), named("before")) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.Create(ctx, named("late"))
			ended <- err
		}()
		cancel()
		if err := <-ended; err == nil {
			t.Fatal("want the context's error")
		}
		close(api.answer)
	})
}

func named(name string) *eventsv1.Event {
	return &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// noted keeps what is recorded.
type noted struct{ reasons, actions, notes []string }

func (n *noted) Eventf(_, _ runtime.Object, _, reason, action, note string, args ...any) {
	n.reasons, n.actions = append(n.reasons, reason), append(n.actions, action)
	n.notes = append(n.notes, fmt.Sprintf(note, args...))
}

func TestAnUnschedulablePodsEventHasTheReason(t *testing.T) {
	said := ""
	to := &noted{}
	r := &recorder{to, func(uid string) string {
		if uid != "uid-1" {
			t.Errorf("asked for %q", uid)
		}
		return said
	}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "uid-1"}}
	record := func() {
		r.Eventf(pod, nil, v1.EventTypeNormal, unschedulable, unschedulable, "Task %s is pending", "n/p")
	}
	record()
	said = "no node has 64 cores, 100% of 3 nodes are smaller"
	record()
	said = "another reason"
	record()
	want := []string{
		"Task n/p is pending", "Task n/p is pending: no node has 64 cores, 100% of 3 nodes are smaller", "Task n/p is pending: another reason",
	}
	if fmt.Sprint(to.notes) != fmt.Sprint(want) {
		t.Fatalf("got %q, want %q", to.notes, want)
	}
	if to.actions[0] != unschedulable || to.actions[1] == to.actions[2] {
		t.Fatalf("got actions %q: want YuniKorn's without a reason, and different ones of different reasons", to.actions)
	}
	// (Other events do not ask.)
	r.reason = func(string) string { t.Error("asked"); return "" }
	r.Eventf(pod, nil, v1.EventTypeNormal, "Scheduled", "Scheduled", "Successfully assigned %s", "n/p")
	if to.notes[3] != "Successfully assigned n/p" {
		t.Fatalf("got %q", to.notes[3])
	}
}

func TestALongNoteIsCut(t *testing.T) {
	for _, length := range []int{0, noteBytes - 1, noteBytes, noteBytes + 1, 3 * noteBytes} {
		for _, letter := range []string{"a", "ü", "…"} {
			got := cut("x" + strings.Repeat(letter, length/len(letter)))
			if len(got) > noteBytes || !utf8.ValidString(got) {
				t.Errorf("%d times %s: %d bytes, valid: %v", length, letter, len(got), utf8.ValidString(got))
			}
		}
	}
}
