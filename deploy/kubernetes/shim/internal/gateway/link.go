package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	rmIDMetadata     = "muster-rm-id"
	resumeMetadata   = "muster-resume-after"
	shutdownMetadata = "muster-shutdown"

	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second // a gateway that is back is found within two seconds
	// A connection that lasted this long was no failed try: the next wait is a short one.
	settledAfter = 5 * time.Second
	// Reconnections in a row without a response between them, before a status that may pass counts as final.
	fruitlessAtMost = 10
	// Take-overs by another connection in a row. One may be due to an own stream that the gateway believed alive.
	takenOverAtMost = 3
)

// Ends that a reconnection does not cure. The process must end: YuniKorn's shim reports its state only once, at its
// start, after it has registered.
var (
	// ErrRegisterAgain: Muster does not know the RM any more, or has lost responses.
	ErrRegisterAgain = errors.New("muster wants a new registration")
	// ErrSuperseded: another shim speaks for the RM.
	ErrSuperseded = errors.New("another shim has registered this cluster, or uses its streams")
	// ErrRefused: Muster does not accept what the shim sent.
	ErrRefused = errors.New("muster refused a stream")
)

// link opens streams to a gateway, again and again.
type link struct {
	connection *grpc.ClientConn
	rmID       string
	log        *zap.Logger
	metrics    *metrics
	fail       func(error) // ends the process
	mutex      sync.Mutex
	open       map[string]bool
}

// isOpen says for each stream whether it is open now.
func (l *link) isOpen() map[string]bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := make(map[string]bool, len(l.open))
	for name, open := range l.open {
		now[name] = open
	}
	return now
}

func (l *link) opened(name string, open bool) {
	l.mutex.Lock()
	changed := l.open[name] != open
	l.open[name] = open
	l.mutex.Unlock()
	value := 0.0
	if open {
		value = 1
	}
	l.metrics.open.WithLabelValues(name).Set(value)
	if changed && open {
		l.log.Info("stream open", zap.String("stream", name))
	}
}

// connection is one life of a stream. heard is set when a response came.
type connection struct {
	grpc.ClientStream
	end   context.CancelFunc
	heard bool
}

// keep opens a stream, lets use work on it until it ends, and begins again, until ctx is over or the end is final.
//
// resume gives the position after which the gateway continues, and whether there is one.
func (l *link) keep(
	ctx context.Context, name, method string, resume func() (uint64, bool), use func(context.Context, *connection) error,
) {
	failures, fruitless, takenOver := 0, 0, 0
	for ctx.Err() == nil {
		began := time.Now()
		heard, err := l.once(ctx, name, method, resume, use)
		l.opened(name, false)
		if ctx.Err() != nil {
			return
		}
		code := status.Code(err)
		l.metrics.lost.WithLabelValues(name, code.String()).Inc()
		if heard {
			fruitless = 0
		}
		if time.Since(began) >= settledAfter {
			failures, takenOver = 0, 0
		}
		switch code {
		case codes.FailedPrecondition, codes.DataLoss:
			l.fail(fmt.Errorf("%w: %s stream: %w", ErrRegisterAgain, name, err))
			return
		case codes.Aborted:
			takenOver++
			if takenOver > takenOverAtMost || strings.Contains(status.Convert(err).Message(), "registered again") {
				l.fail(fmt.Errorf("%w: %s stream: %w", ErrSuperseded, name, err))
				return
			}
		case codes.InvalidArgument, codes.Unimplemented, codes.OutOfRange, codes.NotFound:
			l.fail(fmt.Errorf("%w: %s stream: %w", ErrRefused, name, err))
			return
		case codes.Internal, codes.Unknown, codes.ResourceExhausted, codes.AlreadyExists:
			if fruitless++; fruitless >= fruitlessAtMost {
				l.fail(fmt.Errorf("%w: %s stream, %d times: %w", ErrRefused, name, fruitless, err))
				return
			}
		}
		// (UNAUTHENTICATED and PERMISSION_DENIED are tried again: a token or a policy may be renewed at any time, and a
		// new registration costs more. /health says so meanwhile.)
		wait := backoff(failures)
		failures++
		l.log.Info("stream lost", zap.String("stream", name), zap.String("status", code.String()),
			zap.String("details", status.Convert(err).Message()), zap.Duration("wait", wait))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (l *link) once(
	ctx context.Context, name, method string, resume func() (uint64, bool), use func(context.Context, *connection) error,
) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pairs := []string{rmIDMetadata, l.rmID}
	if after, known := resume(); known {
		pairs = append(pairs, resumeMetadata, fmt.Sprint(after))
	}
	stream, err := l.connection.NewStream(
		metadata.AppendToOutgoingContext(ctx, pairs...),
		&grpc.StreamDesc{StreamName: name, ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(rawCodec{}),
	)
	if err != nil {
		return false, err
	}
	c := &connection{ClientStream: stream, end: cancel}
	err = use(ctx, c)
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.OK, "ended by the gateway")
	}
	return c.heard, err
}

// backoff is the wait before a try, with jitter, after so many failures in a row.
func backoff(failures int) time.Duration {
	ceiling := min(backoffMin<<min(failures, 16), backoffMax)
	return ceiling/2 + rand.N(ceiling/2)
}

// rawCodec passes bytes: the journal keeps messages as they were sent.
type rawCodec struct{}

func (rawCodec) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }
