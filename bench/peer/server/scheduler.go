package main

import (
	"context"
	"errors"
	"io"

	corelog "github.com/apache/yunikorn-core/pkg/log"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/api"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// scheduler passes the calls of one resource manager to the core, and the core's answers to its streams.
type scheduler struct {
	si.UnimplementedSchedulerServer
	core    api.SchedulerAPI
	answers *answers
}

func newScheduler(core api.SchedulerAPI) *scheduler {
	return &scheduler{core: core, answers: &answers{
		allocations:  newMailbox[*si.AllocationResponse](),
		applications: newMailbox[*si.ApplicationResponse](),
		nodes:        newMailbox[*si.NodeResponse](),
	}}
}

func (s *scheduler) RegisterResourceManager(
	_ context.Context, request *si.RegisterResourceManagerRequest,
) (*si.RegisterResourceManagerResponse, error) {
	response, err := s.core.RegisterResourceManager(request, s.answers)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	// A registration sets the core's log level to INFO.
	corelog.UpdateLoggingConfig(map[string]string{"log.level": "ERROR"})
	return response, nil
}

func (s *scheduler) UpdateAllocation(stream si.Scheduler_UpdateAllocationServer) error {
	return serve(stream, s.answers.allocations, s.core.UpdateAllocation)
}

func (s *scheduler) UpdateApplication(stream si.Scheduler_UpdateApplicationServer) error {
	return serve(stream, s.answers.applications, s.core.UpdateApplication)
}

func (s *scheduler) UpdateNode(stream si.Scheduler_UpdateNodeServer) error {
	return serve(stream, s.answers.nodes, s.core.UpdateNode)
}

// serve runs a stream until the resource manager or the core ends it.
func serve[Request, Response any](
	stream grpc.BidiStreamingServer[Request, Response], box *mailbox[*Response], update func(*Request) error,
) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	go func() {
		for {
			batch, err := box.take(ctx)
			if err != nil {
				return
			}
			for _, each := range batch {
				if stream.Send(each) != nil {
					return
				}
			}
		}
	}()
	for {
		request, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF): // it sends no more, and still receives
			<-ctx.Done()
			return nil
		case err != nil:
			return err
		}
		if err := update(request); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	}
}

// answers is what the core calls. It must not block: the core decides nothing meanwhile.
type answers struct {
	allocations  *mailbox[*si.AllocationResponse]
	applications *mailbox[*si.ApplicationResponse]
	nodes        *mailbox[*si.NodeResponse]
}

func (a *answers) UpdateAllocation(response *si.AllocationResponse) error {
	a.allocations.put(response)
	return nil
}

func (a *answers) UpdateApplication(response *si.ApplicationResponse) error {
	a.applications.put(response)
	return nil
}

func (a *answers) UpdateNode(response *si.NodeResponse) error {
	a.nodes.put(response)
	return nil
}

// Every node fits, and nobody reads events or states.

func (a *answers) Predicates(*si.PredicatesArgs) error { return nil }

func (a *answers) PreemptionPredicates(args *si.PreemptionPredicatesArgs) *si.PreemptionPredicatesResponse {
	return &si.PreemptionPredicatesResponse{Success: true, Index: args.GetStartIndex()}
}

func (a *answers) SendEvent([]*si.EventRecord) {}

func (a *answers) UpdateContainerSchedulingState(*si.UpdateContainerSchedulingStateRequest) {}
