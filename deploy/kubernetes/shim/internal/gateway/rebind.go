package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// Each call of the apiserver; a try follows until it answers.
	clusterCall = 20 * time.Second
	// Before a pod is asked for again whose binding the apiserver refused: the reason may last.
	resubmitMin = time.Second
	resubmitMax = time.Minute
	// What YuniKorn's shim and Muster need to take a release.
	settledWait = time.Minute
	// States of a task whose pod the shim has sent to Muster.
	sentState, boundState = "Scheduling", "Bound"
)

// Cluster is the apiserver and YuniKorn's shim, as far as bindings need them.
type Cluster interface {
	// Cached is the pod that the shim knows by this UID; nil: none.
	Cached(uid string) *v1.Pod
	Get(ctx context.Context, namespace, name string) (*v1.Pod, error)
	Bind(ctx context.Context, pod *v1.Pod, node string) error
	// Task is the shim's task of a pod; nil: none.
	Task(application, uid string) Task
	// Forget lets the shim know neither pod nor task.
	Forget(application string, pod *v1.Pod)
	// Add lets the shim see a pod as a new one, unless it knows it.
	Add(application string, pod *v1.Pod)
}

// Task is a pod's task in YuniKorn's shim.
type Task interface {
	GetTaskState() string
	MarkPreviouslyAllocated(allocationKey string, nodeID string)
}

// rebind settles failed bindings. YuniKorn's shim tries each binding once. If that fails, the shim releases the
// allocation and never asks for the pod again, also when the apiserver only restarted, or bound the pod and its answer was
// lost. So a release of a pod that lives waits here until the apiserver says what became of it.
type rebind struct {
	cluster Cluster
	send    func(*si.AllocationRequest) error
	log     *zap.Logger
	count   func(result string)
	ctx     context.Context

	mutex     sync.Mutex
	allocated map[string]string        // nodes of the pods that Muster allocated to this process
	releasing map[string]chan struct{} // closed when Muster has answered the release
	refusals  map[string]int           // bindings of a pod that the apiserver refused in a row
}

func newRebind(ctx context.Context, cluster Cluster, send func(*si.AllocationRequest) error, log *zap.Logger, count func(string)) *rebind {
	return &rebind{
		cluster: cluster, send: send, log: log, count: count, ctx: ctx,
		allocated: map[string]string{}, releasing: map[string]chan struct{}{}, refusals: map[string]int{},
	}
}

// came notes what Muster allocated and released.
func (r *rebind) came(response *si.AllocationResponse) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, allocation := range response.New {
		r.allocated[allocation.AllocationKey] = allocation.NodeID
	}
	for _, release := range response.Released {
		if release.TerminationType == si.TerminationType_STOPPED_BY_RM {
			delete(r.allocated, release.AllocationKey)
		}
	}
}

// handled notes that YuniKorn's shim has taken the releases of a response.
func (r *rebind) handled(response *si.AllocationResponse) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, release := range response.Released {
		if answered, waits := r.releasing[release.AllocationKey]; waits {
			delete(r.releasing, release.AllocationKey)
			close(answered)
		}
	}
}

// take keeps releases that follow failed bindings, and returns the request without them; nil: nothing is left.
func (r *rebind) take(request *si.AllocationRequest) *si.AllocationRequest {
	releases := request.GetReleases().GetAllocationsToRelease()
	if len(releases) == 0 {
		return request
	}
	var rest []*si.AllocationRelease
	for _, release := range releases {
		if pod, node := r.failed(release); pod != nil {
			go r.settle(request.RmID, release, pod, node)
		} else {
			rest = append(rest, release)
		}
	}
	if len(rest) == len(releases) {
		return request
	}
	if len(rest) == 0 && len(request.Allocations) == 0 {
		return nil
	}
	return &si.AllocationRequest{
		RmID: request.RmID, Allocations: request.Allocations,
		Releases: &si.AllocationReleasesRequest{AllocationsToRelease: rest},
	}
}

// failed is the pod and the node of a release that may be due to a failed binding; nil: it is another one. (No lock of the
// shim's contexts and tasks is taken here: the caller has some of them.)
func (r *rebind) failed(release *si.AllocationRelease) (*v1.Pod, string) {
	key := release.AllocationKey
	if key == "" || release.TerminationType != si.TerminationType_STOPPED_BY_RM {
		return nil, ""
	}
	r.mutex.Lock()
	node, allocated := r.allocated[key]
	r.mutex.Unlock()
	if !allocated {
		return nil, ""
	}
	pod := r.cluster.Cached(key)
	if pod == nil || over(pod) {
		r.forget(key)
		return nil, ""
	}
	return pod, node
}

func (r *rebind) forget(key string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.allocated, key)
	delete(r.refusals, key)
}

func over(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// settle asks the apiserver until it says what became of the pod. A bound pod keeps its allocation, an unbound one is
// bound again, and what cannot be bound is released and asked for again.
func (r *rebind) settle(rmID string, release *si.AllocationRelease, known *v1.Pod, node string) {
	key, application := release.AllocationKey, release.ApplicationID
	say := r.log.With(zap.String("namespace", known.Namespace), zap.String("pod", known.Name), zap.String("uid", key))
	for failures := 0; r.ctx.Err() == nil; failures++ {
		if failures > 0 && !r.pause(backoff(failures)) {
			return
		}
		pod, err := r.get(known)
		if err != nil && !apierrors.IsNotFound(err) {
			continue
		}
		unbound := pod != nil && pod.Spec.NodeName == ""
		if err != nil || string(pod.UID) != key || over(pod) || unbound && pod.DeletionTimestamp != nil {
			r.forget(key)
			r.release(rmID, release)
			return
		}
		switch {
		case !unbound && pod.Spec.NodeName == node:
			say.Info("the pod is bound", zap.String("node", node))
			r.keep(application, pod, node)
			return
		case !unbound || hasClaims(pod):
			// Another one has bound it, or its volumes are not bound yet.
		default:
			err = r.bind(pod, node)
			if err == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				continue // what the apiserver says now decides
			}
		}
		say.Warn("the pod cannot be bound: it is asked for again", zap.String("node", node), zap.Error(err))
		r.again(rmID, release, pod)
		return
	}
}

func (r *rebind) get(pod *v1.Pod) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(r.ctx, clusterCall)
	defer cancel()
	return r.cluster.Get(ctx, pod.Namespace, pod.Name)
}

func (r *rebind) bind(pod *v1.Pod, node string) error {
	ctx, cancel := context.WithTimeout(r.ctx, clusterCall)
	defer cancel()
	return r.cluster.Bind(ctx, pod, node)
}

func (r *rebind) release(rmID string, release *si.AllocationRelease) {
	r.count("released")
	err := r.send(&si.AllocationRequest{
		RmID: rmID, Releases: &si.AllocationReleasesRequest{AllocationsToRelease: []*si.AllocationRelease{release}},
	})
	if err != nil {
		r.log.Warn("a release is not sent", zap.Error(err))
	}
}

// keep gives a bound pod a new task, which goes on as if the binding had not failed. (The shim removes failed tasks.)
func (r *rebind) keep(application string, pod *v1.Pod, node string) {
	key := string(pod.UID)
	r.cluster.Forget(application, pod)
	r.cluster.Add(application, pod)
	r.mutex.Lock()
	delete(r.refusals, key)
	r.mutex.Unlock()
	sent := func() bool {
		task := r.cluster.Task(application, key)
		return task != nil && (task.GetTaskState() == sentState || task.GetTaskState() == boundState)
	}
	if r.until(sent) {
		if task := r.cluster.Task(application, key); task != nil {
			task.MarkPreviouslyAllocated(key, node)
		}
	}
	r.count("bound")
}

// again releases an allocation and, after a pause, lets the shim ask for the pod anew.
func (r *rebind) again(rmID string, release *si.AllocationRelease, pod *v1.Pod) {
	key, answered := release.AllocationKey, make(chan struct{})
	r.mutex.Lock()
	delete(r.allocated, key)
	r.releasing[key] = answered
	refusals := r.refusals[key]
	r.refusals[key]++
	r.mutex.Unlock()
	// (First: the shim's cache keeps the node of a released pod, and would report the pod as running there.)
	r.cluster.Forget(release.ApplicationID, pod)
	r.release(rmID, release)
	select {
	case <-answered:
	case <-time.After(settledWait):
	case <-r.ctx.Done():
		return
	}
	if !r.pause(min(resubmitMin<<min(refusals, 10), resubmitMax)) {
		return
	}
	for failures := 0; ; failures++ {
		now, err := r.get(pod)
		switch {
		case apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || over(now)):
			r.forget(key)
			return
		case err == nil:
			r.count("asked again")
			r.cluster.Add(release.ApplicationID, now)
			return
		}
		if !r.pause(backoff(failures)) {
			return
		}
	}
}

// until waits for a condition that YuniKorn's shim brings about soon. It says whether that came.
func (r *rebind) until(condition func() bool) bool {
	for deadline := time.Now().Add(settledWait); !condition(); {
		if time.Now().After(deadline) || !r.pause(10*time.Millisecond) {
			return false
		}
	}
	return true
}

func (r *rebind) pause(length time.Duration) bool {
	select {
	case <-time.After(length):
		return true
	case <-r.ctx.Done():
		return false
	}
}

func hasClaims(pod *v1.Pod) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			return true
		}
	}
	return false
}
