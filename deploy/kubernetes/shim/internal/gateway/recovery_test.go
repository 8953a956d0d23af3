package gateway

import (
	"slices"
	"testing"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
)

// recoveryRig notes what is sent: "ask a", "runs a" or "release a".
type recoveryRig struct {
	*recovery
	pods []string
	sent []string
	time time.Time
}

func recoveryOf(pods ...string) *recoveryRig {
	rig := &recoveryRig{pods: pods, time: time.Unix(0, 0)}
	rig.recovery = newRecovery(func() []string { return rig.pods }, func(request *si.AllocationRequest) error {
		for _, release := range request.GetReleases().GetAllocationsToRelease() {
			rig.sent = append(rig.sent, "release "+release.AllocationKey)
		}
		for _, allocation := range request.Allocations {
			kind := "runs "
			if allocation.NodeID == "" {
				kind = "ask "
			}
			rig.sent = append(rig.sent, kind+allocation.AllocationKey)
		}
		return nil
	}, zap.NewNop())
	rig.now = func() time.Time { return rig.time }
	return rig
}

func (r *recoveryRig) asks(t *testing.T, key string) { r.sends(t, allocationOf(key, "")) }
func (r *recoveryRig) runs(t *testing.T, key string) { r.sends(t, allocationOf(key, "n")) }

func (r *recoveryRig) sends(t *testing.T, allocation *si.Allocation) {
	t.Helper()
	if err := r.take(&si.AllocationRequest{RmID: "rm", Allocations: []*si.Allocation{allocation}}); err != nil {
		t.Fatal(err)
	}
}

func (r *recoveryRig) releases(t *testing.T, key string) {
	t.Helper()
	release := &si.AllocationRelease{ApplicationID: "app", AllocationKey: key}
	releases := &si.AllocationReleasesRequest{AllocationsToRelease: []*si.AllocationRelease{release}}
	if err := r.take(&si.AllocationRequest{RmID: "rm", Releases: releases}); err != nil {
		t.Fatal(err)
	}
}

func (r *recoveryRig) looks(t *testing.T) {
	t.Helper()
	if err := r.look(); err != nil {
		t.Fatal(err)
	}
}

func (r *recoveryRig) wasSent(t *testing.T, expected ...string) {
	t.Helper()
	if !slices.Equal(r.sent, expected) {
		t.Fatalf("sent %q, expected %q", r.sent, expected)
	}
}

func allocationOf(key, node string) *si.Allocation {
	return &si.Allocation{ApplicationID: "app", AllocationKey: key, NodeID: node}
}

func TestAsksWaitUntilAllRunningPodsAreReported(t *testing.T) {
	rig := recoveryOf("a", "b", "c")
	rig.runs(t, "a") // before the first ask
	rig.asks(t, "1")
	rig.runs(t, "b")
	rig.asks(t, "2")
	rig.runs(t, "foreign")
	rig.looks(t)
	rig.wasSent(t, "runs a", "runs b", "runs foreign")
	rig.runs(t, "c")
	rig.wasSent(t, "runs a", "runs b", "runs foreign", "runs c", "ask 1", "ask 2")
	rig.asks(t, "3")
	rig.wasSent(t, "runs a", "runs b", "runs foreign", "runs c", "ask 1", "ask 2", "ask 3")
}

func TestWithoutRunningPodsNothingWaits(t *testing.T) {
	rig := recoveryOf()
	rig.asks(t, "1")
	rig.wasSent(t, "ask 1")
	rig = recoveryOf("a")
	rig.runs(t, "a")
	rig.asks(t, "1")
	rig.wasSent(t, "runs a", "ask 1")
}

func TestAPodThatEndsIsNotWaitedFor(t *testing.T) {
	rig := recoveryOf("a", "b")
	rig.asks(t, "1")
	rig.releases(t, "a") // it was deleted
	rig.wasSent(t, "release a")
	rig.pods = nil // b has ended, and was never reported
	rig.looks(t)
	rig.wasSent(t, "release a", "ask 1")
}

func TestAReleasedAskIsNotSentAnyMore(t *testing.T) {
	rig := recoveryOf("a")
	rig.asks(t, "1")
	rig.asks(t, "2")
	rig.releases(t, "1")
	rig.runs(t, "a")
	rig.wasSent(t, "release 1", "runs a", "ask 2")
}

func TestPodsThatAreNeverReportedDoNotHoldAsksForEver(t *testing.T) {
	rig := recoveryOf("a", "b")
	rig.asks(t, "1")
	rig.time = rig.time.Add(unreportedWait)
	rig.looks(t)
	rig.wasSent(t)
	rig.runs(t, "a") // each reported pod begins the wait anew
	rig.time = rig.time.Add(unreportedWait)
	rig.looks(t)
	rig.wasSent(t, "runs a")
	rig.time = rig.time.Add(time.Second)
	rig.looks(t)
	rig.wasSent(t, "runs a", "ask 1")
}
