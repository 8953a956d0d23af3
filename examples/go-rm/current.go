package main

import (
	"fmt"
	"io"

	"google.golang.org/grpc"

	"example/go-rm/muster"
	"example/go-rm/si"
)

// current is the present generation: an ask is an Allocation without a node.
func current(rm *resourceManager) error {
	if err := rm.addNode("node-1"); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return rm.tasks("task-1")
}

// askedFirst is the same with two nodes and two tasks: the RM is asked before anything is placed, and a node has a disk
// for one task only. What it says of the second task depends on where the first one runs, so it wants to be asked about
// one at a time.
func askedFirst(rm *resourceManager, connection *grpc.ClientConn) error {
	stream, err := muster.NewCallbacksClient(connection).Connect(rm.ctx)
	if err != nil {
		return err
	}
	hello := &muster.Hello{RmId: rm.id, Predicates: true, OpenProposals: muster.OpenProposals_OPEN_PROPOSALS_ONE}
	if err := stream.Send(&muster.FromResourceManager{Hello: hello}); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("callbacks: %w", err)
	}
	if first.Welcome == nil {
		return fmt.Errorf("callbacks: expected a welcome, got %v", first)
	}
	fmt.Println("callbacks open")
	rm.callbacks = make(chan error, 1)
	go func() { rm.callbacks <- rm.answer(stream) }()

	for _, nodeID := range []string{"node-1", "node-2"} {
		if err := rm.addNode(nodeID); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	return rm.tasks("task-1", "task-2")
}

// answer says to each question whether the ask may go to the node, until the stream is over.
func (rm *resourceManager) answer(stream muster.Callbacks_ConnectClient) error {
	for {
		asked, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("callbacks: %w", err)
		}
		said := &muster.FromResourceManager{}
		for _, question := range asked.Predicates {
			// Of what was allocated before, it must have heard.
			if err := rm.told.reached(stream.Context(), question.AfterResponse); err != nil {
				return fmt.Errorf("callbacks: what was told before the question: %w", err)
			}
			answer := &muster.PredicatesAnswer{Id: question.Id, Fits: true}
			if other := rm.told.runsOn(question.Args.NodeID); other != "" {
				answer.Fits, answer.Reason = false, other+" has its disk"
			}
			fmt.Println("may", question.Args.AllocationKey, "go to", question.Args.NodeID, answer.Fits)
			said.Predicates = append(said.Predicates, answer)
		}
		if err := stream.Send(said); err != nil {
			return fmt.Errorf("callbacks: %w", err)
		}
	}
}

// tasks adds an application, asks for a place for each of its tasks, and ends them.
func (rm *resourceManager) tasks(keys ...string) error {
	if err := rm.addApplication("app-1"); err != nil {
		return fmt.Errorf("application: %w", err)
	}
	var asks []*si.Allocation
	for _, key := range keys {
		asks = append(asks, &si.Allocation{
			AllocationKey:    key,
			ApplicationID:    "app-1",
			PartitionName:    "default",
			ResourcePerAlloc: resource(map[string]int64{"vcore": 1_000, "memory": 1 << 30}),
			AllocationTags:   map[string]string{"kubernetes.io/meta/podName": key},
		})
	}
	if err := rm.send(&si.AllocationRequest{Allocations: asks}); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	made, err := rm.allocated(len(keys))
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	if err := rm.reaches("Accepted", "Running"); err != nil {
		return err
	}
	for _, each := range made {
		if err := rm.release(each); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}
