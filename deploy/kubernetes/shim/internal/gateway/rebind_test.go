package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// bindingRig is a cluster with one pod, "one" of application "app", whose binding to node "n" has failed.
type bindingRig struct {
	*rebind
	mutex sync.Mutex
	pod   *v1.Pod // of the apiserver; nil: there is none
	gets  []error // the next answers of Get, before the pod
	binds []error // the next answers of Bind; then it binds
	seen  []string
}

func newBindingRig(t *testing.T) *bindingRig {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := &bindingRig{pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "s", UID: "one"}}}
	r.rebind = newRebind(ctx, r, func(request *si.AllocationRequest) error {
		for _, release := range request.Releases.AllocationsToRelease {
			r.note("release " + release.AllocationKey)
		}
		go func() { // Muster's answer
			response := &si.AllocationResponse{Released: request.Releases.AllocationsToRelease}
			r.came(response)
			r.handled(response)
		}()
		return nil
	}, zap.NewNop(), func(result string) { r.note(result) })
	r.came(&si.AllocationResponse{New: []*si.Allocation{{ApplicationID: "app", AllocationKey: "one", NodeID: "n"}}})
	return r
}

func (r *bindingRig) note(what string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.seen = append(r.seen, what)
}

func (r *bindingRig) Cached(uid string) *v1.Pod {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if uid != "one" {
		return nil
	}
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "s", UID: "one"}, Spec: v1.PodSpec{NodeName: "n"}}
}

func (r *bindingRig) Get(context.Context, string, string) (*v1.Pod, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if len(r.gets) > 0 {
		err := r.gets[0]
		r.gets = r.gets[1:]
		return nil, err
	}
	if r.pod == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p")
	}
	return r.pod.DeepCopy(), nil
}

func (r *bindingRig) Bind(_ context.Context, pod *v1.Pod, node string) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.seen = append(r.seen, "bind "+node)
	if len(r.binds) > 0 {
		err := r.binds[0]
		r.binds = r.binds[1:]
		return err
	}
	r.pod.Spec.NodeName = node
	return nil
}

func (r *bindingRig) Task(string, string) Task             { return r }
func (r *bindingRig) GetTaskState() string                 { return sentState }
func (r *bindingRig) MarkPreviouslyAllocated(_, at string) { r.note("task bound to " + at) }
func (r *bindingRig) Forget(string, *v1.Pod)               { r.note("forget") }
func (r *bindingRig) Add(app string, pod *v1.Pod)          { r.note(fmt.Sprintf("add %s/%s", app, pod.UID)) }

// failBinding is what YuniKorn's shim sends after a failed binding.
func (r *bindingRig) failBinding() *si.AllocationRequest {
	return r.take(&si.AllocationRequest{RmID: "rm", Releases: &si.AllocationReleasesRequest{
		AllocationsToRelease: []*si.AllocationRelease{{
			ApplicationID: "app", AllocationKey: "one", TerminationType: si.TerminationType_STOPPED_BY_RM,
		}},
	}})
}

func (r *bindingRig) expect(t *testing.T, want ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		r.mutex.Lock()
		seen := slices.Clone(r.seen)
		r.mutex.Unlock()
		if slices.Equal(seen, want) {
			return
		}
		if len(seen) > len(want) || time.Now().After(deadline) {
			t.Fatalf("seen %q, expected %q", seen, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAPodWhoseBindingsAnswerWasLostKeepsItsAllocation(t *testing.T) {
	r := newBindingRig(t)
	r.pod.Spec.NodeName = "n"
	r.gets = []error{errors.New("connection refused"), errors.New("connection refused")}
	if rest := r.failBinding(); rest != nil {
		t.Fatalf("%v is sent", rest)
	}
	r.expect(t, "forget", "add app/one", "task bound to n", "bound")
}

func TestABindingThatTheApiserverMissedIsTriedAgain(t *testing.T) {
	r := newBindingRig(t)
	r.binds = []error{errors.New("connection refused"), apierrors.NewTooManyRequests("slow", 1)}
	r.failBinding()
	r.expect(t, "bind n", "bind n", "bind n", "forget", "add app/one", "task bound to n", "bound")
}

func TestARefusedBindingIsReleasedAndAskedForAgain(t *testing.T) {
	r := newBindingRig(t)
	r.binds = []error{apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("no"))}
	r.failBinding()
	r.expect(t, "bind n", "forget", "released", "release one", "asked again", "add app/one")
	// The pod is not Muster's to hold any more: the next release is sent at once.
	if rest := r.failBinding(); rest == nil {
		t.Fatal("a release of what is not allocated waits")
	}
}

func TestAPodWithVolumesIsNotBoundPastThem(t *testing.T) {
	r := newBindingRig(t)
	r.pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
	r.failBinding()
	r.expect(t, "forget", "released", "release one", "asked again", "add app/one")
}

func TestAPodThatIsGoneIsReleased(t *testing.T) {
	for name, end := range map[string]func(*bindingRig){
		"gone":     func(r *bindingRig) { r.pod = nil },
		"replaced": func(r *bindingRig) { r.pod.UID = "two" },
		"over":     func(r *bindingRig) { r.pod.Status.Phase = v1.PodSucceeded },
	} {
		t.Run(name, func(t *testing.T) {
			r := newBindingRig(t)
			end(r)
			r.failBinding()
			r.expect(t, "released", "release one")
		})
	}
}

func TestOtherReleasesAreSentAtOnce(t *testing.T) {
	r := newBindingRig(t)
	request := &si.AllocationRequest{RmID: "rm", Releases: &si.AllocationReleasesRequest{
		AllocationsToRelease: []*si.AllocationRelease{
			{ApplicationID: "app", AllocationKey: "unknown", TerminationType: si.TerminationType_STOPPED_BY_RM},
			{ApplicationID: "app"},
			{ApplicationID: "app", AllocationKey: "one", TerminationType: si.TerminationType_PREEMPTED_BY_SCHEDULER},
		},
	}}
	if r.take(request) != request {
		t.Error("a release waits that follows no failed binding")
	}
	r.expect(t)
}
