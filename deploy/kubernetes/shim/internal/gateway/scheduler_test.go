package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"muster/kubernetes/shim/muster"
)

// No test waits for time to pass; a busy machine needs a fraction of this.
const patience = 60 * time.Second

// gatewayRig is a gateway that a test plays: nodes says what to do with each request of the node stream.
type gatewayRig struct {
	si.UnimplementedSchedulerServer
	muster.UnimplementedCallbacksServer
	muster.UnimplementedAdminServer

	mutex     sync.Mutex
	resumed   []string // muster-resume-after of each opening of the node stream
	heard     []string // nodes, in order
	answers   []*muster.PredicatesAnswer
	hellos    []*muster.Hello
	extra     map[string]string
	nodes     func(stream si.Scheduler_UpdateNodeServer, node string) error
	questions chan *muster.ToResourceManager
	breaks    chan error // ends a callback stream
	update    *muster.UpdateConfigurationResponse
	allocated chan *si.AllocationResponse
}

func (r *gatewayRig) RegisterResourceManager(_ context.Context, request *si.RegisterResourceManagerRequest) (*si.RegisterResourceManagerResponse, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.extra = request.ExtraConfig
	return &si.RegisterResourceManagerResponse{}, nil
}

func (r *gatewayRig) UpdateNode(stream si.Scheduler_UpdateNodeServer) error {
	if err := stream.SendHeader(metadata.Pairs("muster-gateway", "g")); err != nil {
		return err
	}
	given, _ := metadata.FromIncomingContext(stream.Context())
	r.mutex.Lock()
	r.resumed = append(r.resumed, fmt.Sprint(given.Get(resumeMetadata)))
	r.mutex.Unlock()
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, node := range request.Nodes {
			r.mutex.Lock()
			r.heard = append(r.heard, node.NodeID)
			r.mutex.Unlock()
			if err := r.nodes(stream, node.NodeID); err != nil {
				return err
			}
		}
	}
}

func (r *gatewayRig) UpdateApplication(stream si.Scheduler_UpdateApplicationServer) error {
	return quiet(stream)
}

func (r *gatewayRig) UpdateAllocation(stream si.Scheduler_UpdateAllocationServer) error {
	if err := stream.SendHeader(metadata.Pairs("muster-gateway", "g")); err != nil {
		return err
	}
	for {
		select {
		case response := <-r.allocated:
			if err := stream.Send(response); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (r *gatewayRig) Connect(stream muster.Callbacks_ConnectServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	r.mutex.Lock()
	r.hellos = append(r.hellos, first.Hello)
	r.mutex.Unlock()
	if err := stream.Send(&muster.ToResourceManager{Welcome: &muster.Welcome{GatewayId: "g"}}); err != nil {
		return err
	}
	go func() {
		for {
			said, err := stream.Recv()
			if err != nil {
				return
			}
			r.mutex.Lock()
			r.answers = append(r.answers, said.Predicates...)
			r.mutex.Unlock()
		}
	}()
	for {
		select {
		case message := <-r.questions:
			if err := stream.Send(message); err != nil {
				return err
			}
		case err := <-r.breaks:
			return err
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (r *gatewayRig) UpdateConfiguration(context.Context, *si.UpdateConfigurationRequest) (*muster.UpdateConfigurationResponse, error) {
	return r.update, nil
}

func quiet(stream grpc.ServerStream) error {
	if err := stream.SendHeader(metadata.Pairs("muster-gateway", "g")); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// shimRig is a shim that writes down what it is told.
type shimRig struct {
	mutex    sync.Mutex
	accepted []string
	placed   []string
	events   int
	holds    chan struct{} // UpdateAllocation waits for it
	fits     func(*si.PredicatesArgs) error
}

func (s *shimRig) UpdateAllocation(response *si.AllocationResponse) error {
	if s.holds != nil {
		<-s.holds
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, made := range response.New {
		s.placed = append(s.placed, made.AllocationKey)
	}
	return nil
}
func (s *shimRig) UpdateApplication(*si.ApplicationResponse) error { return nil }
func (s *shimRig) UpdateNode(response *si.NodeResponse) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, node := range response.Accepted {
		s.accepted = append(s.accepted, node.NodeID)
	}
	return nil
}
func (s *shimRig) Predicates(args *si.PredicatesArgs) error { return s.fits(args) }
func (s *shimRig) PreemptionPredicates(*si.PreemptionPredicatesArgs) *si.PreemptionPredicatesResponse {
	return nil
}
func (s *shimRig) SendEvent(events []*si.EventRecord) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.events += len(events)
}
func (s *shimRig) UpdateContainerSchedulingState(*si.UpdateContainerSchedulingStateRequest) {}

// connected is a registered shim at a gateway of the test.
func connected(t *testing.T, r *gatewayRig, s *shimRig) (*Scheduler, chan error) {
	t.Helper()
	r.questions, r.breaks, r.allocated = make(chan *muster.ToResourceManager), make(chan error), make(chan *si.AllocationResponse)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	si.RegisterSchedulerServer(server, r)
	muster.RegisterCallbacksServer(server, r)
	muster.RegisterAdminServer(server, r)
	go func() { _ = server.Serve(listener) }()
	failed := make(chan error, 8)
	scheduler, err := New(Settings{
		Gateway: listener.Addr().String(), Log: zap.NewNop(), Registry: prometheus.NewRegistry(),
		Fail: func(err error) { failed <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { scheduler.Stop(); server.Stop() })
	if _, err := scheduler.RegisterResourceManager(&si.RegisterResourceManagerRequest{RmID: "rm"}, s); err != nil {
		t.Fatal(err)
	}
	return scheduler, failed
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func sendNodes(t *testing.T, scheduler *Scheduler, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := scheduler.UpdateNode(&si.NodeRequest{Nodes: []*si.NodeInfo{{NodeID: name}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestABrokenStreamLosesNothing(t *testing.T) {
	sequence, r, s := uint64(0), &gatewayRig{}, &shimRig{}
	broken := map[string]bool{}
	r.nodes = func(stream si.Scheduler_UpdateNodeServer, node string) error {
		if (node == "3" || node == "6") && !broken[node] {
			broken[node] = true // lost with the connection
			return status.Error(codes.Unavailable, "the gateway stops")
		}
		sequence += 2 // other streams have the numbers between
		answer := numbered(&si.NodeResponse{Accepted: []*si.AcceptedNode{{NodeID: node}}}, sequence)
		if err := stream.Send(answer); err != nil {
			return err
		}
		return stream.Send(answer) // a second time: the shim must not hear of it
	}
	scheduler, failed := connected(t, r, s)
	sendNodes(t, scheduler, numbers(0, 10)...)
	eventually(t, "all nodes are accepted", func() bool {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		return slices.Contains(s.accepted, "9")
	})
	s.mutex.Lock()
	defer s.mutex.Unlock()
	// What was taken and not yet proven comes again. The order of first hearings is that of sending.
	var first []string
	for _, node := range s.accepted {
		if !slices.Contains(first, node) {
			first = append(first, node)
		}
	}
	if !slices.Equal(first, numbers(0, 10)) {
		t.Fatalf("accepted %v", s.accepted)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if len(r.resumed) != 3 || r.resumed[0] != "[]" || r.resumed[1] != "[6]" {
		t.Fatalf("resumed after %v, expected nothing first, then 6", r.resumed)
	}
	if len(failed) > 0 {
		t.Fatal(<-failed)
	}
}

func TestEndsThatAReconnectionDoesNotCureEndTheProcess(t *testing.T) {
	for _, each := range []struct {
		status   error
		expected error
	}{
		{status.Error(codes.FailedPrecondition, "rmID rm is not registered"), ErrRegisterAgain},
		{status.Error(codes.DataLoss, "retention deleted responses"), ErrRegisterAgain},
		{status.Error(codes.Aborted, "superseded: rmID rm registered again, open new streams"), ErrSuperseded},
		{status.Error(codes.Aborted, "superseded: a newer stream"), ErrSuperseded}, // again and again
		{status.Error(codes.InvalidArgument, "no message"), ErrRefused},
		{status.Error(codes.ResourceExhausted, "too large"), ErrRefused}, // again and again
	} {
		r := &gatewayRig{nodes: func(si.Scheduler_UpdateNodeServer, string) error { return each.status }}
		scheduler, failed := connected(t, r, &shimRig{})
		sendNodes(t, scheduler, "0")
		select {
		case err := <-failed:
			if !errors.Is(err, each.expected) {
				t.Errorf("%v: %v, expected %v", each.status, err, each.expected)
			}
		case <-time.After(patience):
			t.Fatalf("%v: the process goes on", each.status)
		}
		if err := scheduler.UpdateNode(&si.NodeRequest{Nodes: []*si.NodeInfo{{NodeID: "1"}}}); err == nil {
			t.Errorf("%v: a later message is taken", each.status)
		}
	}
}

func TestAQuestionIsAnsweredBehindWhatWasAllocated(t *testing.T) {
	s := &shimRig{holds: make(chan struct{})}
	s.fits = func(*si.PredicatesArgs) error {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		return fmt.Errorf("beside %v", s.placed)
	}
	r := &gatewayRig{}
	scheduler, _ := connected(t, r, s)
	// As in life, nodes are answered before anything is allocated: a number below the first one is of an earlier registration.
	scheduler.nodes.progress.came(4)
	r.allocated <- numbered(&si.AllocationResponse{New: []*si.Allocation{{AllocationKey: "a"}}}, 5)
	r.questions <- &muster.ToResourceManager{
		ResponseSequence: 6,
		Predicates:       []*muster.PredicatesQuestion{{Id: 1, Args: &si.PredicatesArgs{AllocationKey: "b"}, AfterResponse: 5}},
	}
	close(s.holds)
	eventually(t, "an answer", func() bool {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		return len(r.answers) > 0
	})
	if answer := r.answers[0]; answer.Fits || answer.Reason != "beside [a]" {
		t.Fatalf("answer %v", answer)
	}
}

func TestANewCallbackStreamGetsRecentAnswersAndGoesOnWithEvents(t *testing.T) {
	s := &shimRig{fits: func(*si.PredicatesArgs) error { return nil }}
	r := &gatewayRig{}
	connected(t, r, s)
	eventID, position := uint64(41), uint64(7)
	r.questions <- &muster.ToResourceManager{
		ResponseSequence: 3,
		Predicates:       []*muster.PredicatesQuestion{{Id: 1, Args: &si.PredicatesArgs{AllocationKey: "a"}}},
		Events: &muster.RmEvents{
			Events: []*muster.Event{{Id: &eventID, Record: &si.EventRecord{ObjectID: "a"}}}, RequestPosition: &position,
		},
	}
	answers := func(count int) func() bool {
		return func() bool {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			return len(r.answers) >= count
		}
	}
	eventually(t, "an answer", answers(1))
	r.breaks <- status.Error(codes.Unavailable, "the gateway stops")
	eventually(t, "the same answer on the next stream", answers(2))
	r.mutex.Lock()
	defer r.mutex.Unlock()
	hello := r.hellos[1]
	if r.answers[1].Id != 1 || hello.GetEventsAfter() != 41 || hello.GetRequestEventsAfter() != 7 || r.hellos[0].EventsAfter != nil {
		t.Fatalf("answers %v, hello %v", r.answers, hello)
	}
	if r.extra["muster.callbacks.absent"] != "wait" {
		t.Fatalf("registered with %v: pods could be placed without predicates", r.extra)
	}
	if r.extra["muster.applications.end"] != "true" {
		t.Fatalf("registered with %v: operators could not end applications", r.extra)
	}
}

func TestARefusedConfigurationNamesItsProblems(t *testing.T) {
	r := &gatewayRig{update: &muster.UpdateConfigurationResponse{Problems: []*muster.ConfigurationProblem{
		{Severity: muster.ConfigurationProblem_ERROR, Path: "partitions[0].queues", Line: 3, Column: 5, Message: "no root"},
	}}}
	scheduler, _ := connected(t, r, &shimRig{})
	err := scheduler.UpdateConfiguration(&si.UpdateConfigurationRequest{RmID: "rm"})
	if err == nil || err.Error() != "muster refused the configuration, the last one stays in force: "+
		"partitions[0].queues: line 3, column 5: no root" {
		t.Fatal(err)
	}
	r.update = &muster.UpdateConfigurationResponse{Accepted: true}
	if err := scheduler.UpdateConfiguration(&si.UpdateConfigurationRequest{RmID: "rm"}); err != nil {
		t.Fatal(err)
	}
}

func TestAllStreamsAreShown(t *testing.T) {
	scheduler, _ := connected(t, &gatewayRig{}, &shimRig{})
	eventually(t, "all streams are open", func() bool {
		open := scheduler.Open()
		return len(open) == 4 && open["node"] && open["application"] && open["allocation"] && open["callback"]
	})
	if _, err := scheduler.RegisterResourceManager(&si.RegisterResourceManagerRequest{RmID: "rm"}, &shimRig{}); err == nil {
		t.Fatal("registered twice")
	}
}
