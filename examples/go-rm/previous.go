package main

import (
	"fmt"

	"example/go-rm/si"
)

// previous is the generation before: a node brings what runs on it, an ask may stand for several allocations, and a
// UUID tells these apart.
func previous(rm *resourceManager) error {
	if err := rm.addApplication("app-1"); err != nil {
		return fmt.Errorf("application: %w", err)
	}
	core := resource(map[string]int64{"vcore": 1_000, "memory": 1 << 30})
	survivor := &si.Allocation{
		AllocationKey: "survivor", UUID: "9c2f6b1e", NodeID: "node-1",
		ApplicationID: "app-1", PartitionName: "default", ResourcePerAlloc: core,
	}
	if err := rm.addNode("node-1", survivor); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	if _, err := rm.allocated(1); err != nil {
		return fmt.Errorf("recovery: %w", err)
	}
	if err := rm.reaches("Accepted", "Starting", "Running"); err != nil {
		return err
	}

	// Three would be there; a node that is full after two more keeps one of them waiting.
	large := resource(map[string]int64{"vcore": 1_500, "memory": 1 << 30})
	err := rm.send(&si.AllocationRequest{Asks: []*si.AllocationAsk{{
		AllocationKey: "task", ApplicationID: "app-1", PartitionName: "default",
		ResourceAsk: large, MaxAllocations: 3,
	}}})
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	made, err := rm.allocated(2)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	if made[0].UUID == made[1].UUID {
		return fmt.Errorf("two allocations have one UUID: %s", made[0].UUID)
	}
	err = rm.send(&si.AllocationRequest{Releases: &si.AllocationReleasesRequest{
		AllocationAsksToRelease: []*si.AllocationAskRelease{{
			PartitionName: "default", ApplicationID: "app-1", AllocationKey: "task",
		}},
	}})
	if err != nil {
		return fmt.Errorf("release of an ask: %w", err)
	}
	err = rm.hear(func(answer *si.AllocationResponse) bool {
		for _, gone := range answer.ReleasedAsks {
			fmt.Println("released ask", gone.AllocationKey)
		}
		return len(answer.ReleasedAsks) > 0
	})
	if err != nil {
		return fmt.Errorf("release of an ask: %w", err)
	}
	if err := rm.release(made[0]); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
