// Package gateway is the scheduler of YuniKorn's shim: Muster's gateway, over gRPC.
//
//	YuniKorn's shim ── Update… ──▶ journal ──▶ stream ──▶ gateway
//	YuniKorn's shim ◀─ callback ◀─ delivery ◀─ stream ◀─┘
//	YuniKorn's shim ◀─ questions, events, states ◀─ callback stream
//
// The three streams and the callback stream outlive their connections. docs/resource-managers.md and docs/callbacks.md
// have the rules that this package follows.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/api"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"muster/kubernetes/shim/muster"
)

const (
	allocationMethod  = "/si.v1.Scheduler/UpdateAllocation"
	applicationMethod = "/si.v1.Scheduler/UpdateApplication"
	nodeMethod        = "/si.v1.Scheduler/UpdateNode"

	callTimeout     = 60 * time.Second // the gateway itself gives up earlier, with a reason
	maxResponseSize = 64 << 20
	// The gateway pings idle connections, too. gRPC's servers allow a client's ping every five minutes.
	pingAfter = 5*time.Minute + time.Second
)

// Settings of a Scheduler.
type Settings struct {
	Gateway  string // host:port, or several of them with commas between
	Access   Access
	Log      *zap.Logger
	Registry prometheus.Registerer
	// Cluster has the pods; nil: requests are sent as they come.
	Cluster Cluster
	// Running has the UIDs of the pods of this scheduler that run; nil: asks never wait for them.
	Running func() []string
	// Fail ends the process. It is called at most a few times, with errors of this package.
	Fail func(error)
}

// Scheduler is api.SchedulerAPI over gRPC.
type Scheduler struct {
	settings   Settings
	connection *grpc.ClientConn
	metrics    *metrics
	ctx        context.Context
	stop       context.CancelFunc

	mutex        sync.Mutex // of the registration
	registered   bool
	link         *link
	nodes        *stream[*si.NodeResponse]
	applications *stream[*si.ApplicationResponse]
	allocations  *stream[*si.AllocationResponse]
	recovery     *recovery
	waits        *waits
	rebind       *rebind
	callbacks    atomic.Pointer[callbacks]
	running      sync.WaitGroup
	reloading    sync.Mutex
}

var _ api.SchedulerAPI = &Scheduler{}

// New makes a Scheduler. Nothing is sent before RegisterResourceManager.
func New(settings Settings) (*Scheduler, error) {
	connection, err := dial(settings.Gateway, settings.Access)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Scheduler{
		settings: settings, connection: connection, metrics: newMetrics(settings.Registry), ctx: ctx, stop: stop,
	}, nil
}

func dial(gateway string, access Access) (*grpc.ClientConn, error) {
	options, err := access.options()
	if err != nil {
		return nil, err
	}
	options = append(options,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseSize)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: 20 * time.Second}),
		// gRPC's own waits grow to two minutes. The streams' backoff replaces them.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: backoffMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: backoffMax},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	target := gateway
	if addresses := strings.Split(gateway, ","); len(addresses) > 1 {
		// The first one that answers is used; when it goes, the next.
		several := manual.NewBuilderWithScheme("muster")
		state := resolver.State{}
		for _, address := range addresses {
			address = strings.TrimSpace(address)
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: address, ServerName: address}}})
		}
		several.InitialState(state)
		options = append(options, grpc.WithResolvers(several))
		target = "muster:///gateways"
	}
	return grpc.NewClient(target, options...)
}

// RegisterResourceManager registers the cluster, opens the streams, and waits until Muster knows that it may ask. It
// tries again until a gateway answers; a registration that Muster refuses is an error.
func (s *Scheduler) RegisterResourceManager(
	request *si.RegisterResourceManagerRequest, callback api.ResourceManagerCallback,
) (*si.RegisterResourceManagerResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.registered {
		return nil, errors.New("registered already: a new registration needs a new process")
	}
	request.ExtraConfig = withDefaults(request.ExtraConfig)
	response, err := s.register(request)
	if err != nil {
		return nil, err
	}
	s.registered = true
	s.begin(request.RmID, callback)
	s.settings.Log.Info("registered", zap.String("rmID", request.RmID), zap.String("gateway", s.settings.Gateway))
	select {
	case <-s.callbacks.Load().welcome:
		return response, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *Scheduler) register(request *si.RegisterResourceManagerRequest) (*si.RegisterResourceManagerResponse, error) {
	for failures := 0; ; failures++ {
		var trailer metadata.MD
		response, err := func() (*si.RegisterResourceManagerResponse, error) {
			ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
			defer cancel()
			return si.NewSchedulerClient(s.connection).RegisterResourceManager(ctx, request, grpc.Trailer(&trailer))
		}()
		switch status.Code(err) {
		case codes.OK:
			for _, warning := range trailer.Get("muster-warning-bin") {
				s.settings.Log.Warn("muster took the registration with a warning", zap.String("warning", warning))
			}
			return response, nil
		case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.FailedPrecondition:
			return nil, fmt.Errorf("muster refused the registration: %w", err)
		}
		wait := backoff(failures)
		s.settings.Log.Warn("not registered yet", zap.Error(err), zap.Duration("wait", wait))
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
}

// withDefaults adds what Muster must know of this RM. What the ConfigMap says comes first.
func withDefaults(extra map[string]string) map[string]string {
	with := map[string]string{
		"muster.generation": "current",
		// Without the shim's predicates a pod could be placed where it may not run.
		"muster.callbacks.absent": "wait",
		// Users read in their pods' events what YuniKorn's core writes there.
		"service.event.requestEventsEnabled": "true",
		// YuniKorn's shim deletes the pods of an application that an operator ends.
		"muster.applications.end": "true",
	}
	maps.Copy(with, extra)
	return with
}

func (s *Scheduler) begin(rmID string, callback api.ResourceManagerCallback) {
	s.link = &link{
		connection: s.connection, rmID: rmID, log: s.settings.Log, metrics: s.metrics, open: map[string]bool{},
		fail: func(err error) {
			s.end(err)
			s.settings.Fail(err)
		},
	}
	for _, name := range []string{"node", "application", "allocation", callbackName} {
		s.link.opened(name, false)
	}
	p := newProgress()
	s.nodes = newStream("node", s.link, p, func() *si.NodeResponse { return &si.NodeResponse{} }, nodeKeys, callback.UpdateNode)
	s.applications = newStream(
		"application", s.link, p, func() *si.ApplicationResponse { return &si.ApplicationResponse{} }, applicationKeys,
		callback.UpdateApplication,
	)
	s.waits = newWaits(s.metrics.waiting)
	s.allocations = newStream(
		"allocation", s.link, p, func() *si.AllocationResponse { return &si.AllocationResponse{} }, allocationKeys,
		func(response *si.AllocationResponse) error {
			s.waits.came(response)
			s.rebind.came(response)
			err := callback.UpdateAllocation(response)
			s.rebind.handled(response)
			return err
		},
	)
	s.allocations.handled = p.took
	s.recovery = newRecovery(s.settings.Running, func(request *si.AllocationRequest) error {
		return s.allocations.send(allocationPieces(rmID, request))
	}, s.settings.Log)
	s.rebind = newRebind(s.ctx, s.settings.Cluster, s.recovery.take, s.settings.Log, func(result string) {
		s.metrics.settled.WithLabelValues(result).Inc()
	})
	asked := newCallbacks(s.link, p, callback)
	s.callbacks.Store(asked)
	for _, run := range []func(){
		func() { s.nodes.run(s.ctx, nodeMethod) },
		func() { s.applications.run(s.ctx, applicationMethod) },
		func() { s.allocations.run(s.ctx, allocationMethod) },
		func() { asked.run(s.ctx) },
		func() { s.recovery.run(s.ctx) },
	} {
		s.running.Add(1)
		go func() { defer s.running.Done(); run() }()
	}
}

// UpdateAllocation sends asks, releases, and allocations that run already. Asks wait for the latter after a start.
func (s *Scheduler) UpdateAllocation(request *si.AllocationRequest) error {
	if s.settings.Cluster != nil {
		tagAsks(request, s.settings.Cluster.Cached)
		if request = s.rebind.take(request); request == nil {
			return nil
		}
	}
	s.waits.sent(request)
	return s.recovery.take(request)
}

// UpdateApplication sends applications to add and to remove.
func (s *Scheduler) UpdateApplication(request *si.ApplicationRequest) error {
	return s.applications.send(applicationPieces(s.link.rmID, request))
}

// UpdateNode sends nodes to create, update, drain and remove.
func (s *Scheduler) UpdateNode(request *si.NodeRequest) error {
	return s.nodes.send(nodePieces(s.link.rmID, request))
}

// UpdateConfiguration gives Muster the ConfigMaps' present content, and tries until Muster answers. The error of a refused
// one names all problems; the configuration in force stays.
func (s *Scheduler) UpdateConfiguration(request *si.UpdateConfigurationRequest) error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	request.ExtraConfig = withDefaults(request.ExtraConfig)
	for failures := 0; ; failures++ {
		answer, err := func() (*muster.UpdateConfigurationResponse, error) {
			ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
			defer cancel()
			return muster.NewAdminClient(s.connection).UpdateConfiguration(ctx, request)
		}()
		switch status.Code(err) {
		case codes.OK:
			return s.updated(answer)
		case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.FailedPrecondition:
			s.metrics.reloads.WithLabelValues("failed").Inc()
			return fmt.Errorf("muster did not take the configuration: %w", err)
		}
		wait := backoff(failures)
		s.settings.Log.Warn("the configuration is not updated yet", zap.Error(err), zap.Duration("wait", wait))
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

func (s *Scheduler) updated(answer *muster.UpdateConfigurationResponse) error {
	var problems []error
	for _, problem := range answer.Problems {
		text := fmt.Sprintf("%s: line %d, column %d: %s", problem.Path, problem.Line, problem.Column, problem.Message)
		if problem.Severity == muster.ConfigurationProblem_WARNING {
			s.settings.Log.Warn("muster warns of the configuration", zap.String("problem", text))
		} else {
			problems = append(problems, errors.New(text))
		}
	}
	if !answer.Accepted {
		s.metrics.reloads.WithLabelValues("refused").Inc()
		return fmt.Errorf("muster refused the configuration, the last one stays in force: %w", errors.Join(problems...))
	}
	s.metrics.reloads.WithLabelValues("accepted").Inc()
	s.settings.Log.Info("muster has the configuration", zap.Strings("changes", answer.Changes))
	return nil
}

// Stop writes what waits for the network, for a short time, and ends the streams. The RM stays registered: what runs goes
// on, and the next shim takes over.
func (s *Scheduler) Stop() {
	if s.Open() != nil {
		deadline := time.Now().Add(2 * time.Second)
		for time.Now().Before(deadline) && s.ctx.Err() == nil && s.nodes.unsent()+s.applications.unsent()+s.allocations.unsent() > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	s.end(errors.New("the shim stops"))
	s.running.Wait()
	_ = s.connection.Close()
}

func (s *Scheduler) end(err error) {
	s.stop()
	if s.Open() != nil { // else nobody sends yet
		s.nodes.end(err)
		s.applications.end(err)
		s.allocations.end(err)
	}
}

// Open says which streams are open; nil: the RM is not registered yet.
func (s *Scheduler) Open() map[string]bool {
	if !s.mutex.TryLock() {
		return nil // it registers
	}
	defer s.mutex.Unlock()
	if !s.registered {
		return nil
	}
	return s.link.isOpen()
}

// Unplaced is why Muster does not place a pod, while YuniKorn's shim handles this state of it; "": it handles none.
func (s *Scheduler) Unplaced(uid string) string {
	if callbacks := s.callbacks.Load(); callbacks != nil {
		return callbacks.notices.unplaced(uid)
	}
	return ""
}

// Leave tells Muster that the RM is gone for good, as when it is uninstalled.
func Leave(ctx context.Context, gateway string, access Access, rmID string) error {
	connection, err := dial(gateway, access)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, rmIDMetadata, rmID, shutdownMetadata, "true")
	stream, err := si.NewSchedulerClient(connection).UpdateNode(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
