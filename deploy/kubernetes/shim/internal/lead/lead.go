// Package lead lets one of several shims of a cluster work: the one that holds a Lease.
package lead

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Settings of an election; the durations are client-go's.
type Settings struct {
	Namespace, Lease, Identity string
	Duration, Deadline, Retry  time.Duration
}

// Run waits for the Lease and calls begin when it has it. When it loses the Lease it calls lost, which must end the
// process at once: another shim binds pods now. Run returns when ctx is over and the Lease is given back.
func Run(ctx context.Context, client kubernetes.Interface, settings Settings, begin func(), lost func(), seen func(leader string)) error {
	lock, err := resourcelock.New(
		resourcelock.LeasesResourceLock, settings.Namespace, settings.Lease, client.CoreV1(), client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: settings.Identity},
	)
	if err != nil {
		return fmt.Errorf("lease %s/%s: %w", settings.Namespace, settings.Lease, err)
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: settings.Lease,
		LeaseDuration: settings.Duration, RenewDeadline: settings.Deadline, RetryPeriod: settings.Retry,
		ReleaseOnCancel: true, // whoever ends in order lets the next one begin at once
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { begin() },
			OnStoppedLeading: func() {
				if ctx.Err() == nil {
					lost()
				}
			},
			OnNewLeader: seen,
		},
	})
	if err != nil {
		return fmt.Errorf("lease %s/%s: %w", settings.Namespace, settings.Lease, err)
	}
	elector.Run(ctx)
	return nil
}
