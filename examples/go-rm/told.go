package main

import (
	"context"
	"sync"

	"example/go-rm/si"
)

// told is what the allocation stream has said so far. Answers on the callback stream depend on it, and streams have no
// order among each other: so a question says behind which response it is to be answered.
type told struct {
	mutex    sync.Mutex
	sequence uint64            // of the last response that was handled
	nodes    map[string]string // where each allocation runs
	moved    chan struct{}     // closed when there is more
}

func newTold() *told {
	return &told{nodes: map[string]string{}, moved: make(chan struct{})}
}

// take notes a response that was handled.
func (told *told) take(answer *si.AllocationResponse) {
	told.mutex.Lock()
	defer told.mutex.Unlock()
	for _, allocation := range answer.New {
		told.nodes[allocation.AllocationKey] = allocation.NodeID
	}
	for _, gone := range answer.Released {
		delete(told.nodes, gone.AllocationKey)
	}
	told.sequence = max(told.sequence, answer.ResponseSequence)
	close(told.moved)
	told.moved = make(chan struct{})
}

// reached waits until the response with this number, or a later one, was handled.
func (told *told) reached(ctx context.Context, sequence uint64) error {
	for {
		told.mutex.Lock()
		handled, moved := told.sequence, told.moved
		told.mutex.Unlock()
		if handled >= sequence {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// runsOn says what runs on the node; "" is nothing.
func (told *told) runsOn(nodeID string) string {
	told.mutex.Lock()
	defer told.mutex.Unlock()
	for key, there := range told.nodes {
		if there == nodeID {
			return key
		}
	}
	return ""
}
