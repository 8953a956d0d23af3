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
	return rm.oneTask()
}

// askedFirst is the same with two nodes, of which the RM refuses the first: it is asked before anything is placed.
func askedFirst(rm *resourceManager, connection *grpc.ClientConn) error {
	stream, err := muster.NewCallbacksClient(connection).Connect(rm.ctx)
	if err != nil {
		return err
	}
	hello := &muster.Hello{RmId: rm.id, Predicates: true}
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
	go func() { rm.callbacks <- answer(stream) }()

	for _, nodeID := range []string{"node-1", "node-2"} {
		if err := rm.addNode(nodeID); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	return rm.oneTask()
}

// answer says to each question whether the ask may go to the node, until the stream is over.
func answer(stream muster.Callbacks_ConnectClient) error {
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
			answer := &muster.PredicatesAnswer{Id: question.Id, Fits: question.Args.NodeID != "node-1"}
			if !answer.Fits {
				answer.Reason = "its disk is full"
			}
			fmt.Println("may", question.Args.AllocationKey, "go to", question.Args.NodeID, answer.Fits)
			said.Predicates = append(said.Predicates, answer)
		}
		if err := stream.Send(said); err != nil {
			return fmt.Errorf("callbacks: %w", err)
		}
	}
}

// oneTask adds an application, asks for a place for its one task, and ends it.
func (rm *resourceManager) oneTask() error {
	if err := rm.addApplication("app-1"); err != nil {
		return fmt.Errorf("application: %w", err)
	}
	err := rm.send(&si.AllocationRequest{Allocations: []*si.Allocation{{
		AllocationKey:    "task-1",
		ApplicationID:    "app-1",
		PartitionName:    "default",
		ResourcePerAlloc: resource(map[string]int64{"vcore": 1_000, "memory": 1 << 30}),
		AllocationTags:   map[string]string{"kubernetes.io/meta/podName": "task-1"},
	}}})
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	made, err := rm.allocated(1)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	if err := rm.reaches("Accepted", "Running"); err != nil {
		return err
	}
	if err := rm.release(made[0]); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
