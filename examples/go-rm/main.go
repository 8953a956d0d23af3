// A resource manager in Go: registers, brings nodes, an application and tasks, hears what the scheduler decides, leaves.
//
//	muster up --data-dir /tmp/muster
//	make && bin/go-rm -gateway 127.0.0.1:9090 [-generation previous] [-callbacks=false]
//
// Its stubs (packages si and muster) are made by the Makefile from Muster's protos.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"example/go-rm/si"
)

const queues = `
partitions:
  - name: default
    nodesortpolicy:
      type: binpacking
    queues:
      - name: root
        submitacl: '*'
        queues:
          - name: batch
`

func main() {
	gateway := flag.String("gateway", "127.0.0.1:9090", "address of a gateway")
	rmID := flag.String("rm", "go-rm", "id of this resource manager")
	generation := flag.String("generation", "current", "of the interface: current or previous")
	callbacks := flag.Bool("callbacks", true, "be asked where a task may go (current generation)")
	announce := flag.Bool("announce", true, "say the rmID when a stream is opened, so that answers can come at once")
	timeout := flag.Duration("timeout", 30*time.Second, "for the whole run")
	access := accessFlags()
	flag.Parse()

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	options, err := access.options()
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(*gateway, options...)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()

	var play func(*resourceManager) error
	switch {
	case *generation == "previous":
		play = previous
	case *generation == "current" && *callbacks:
		play = func(rm *resourceManager) error { return askedFirst(rm, connection) }
	case *generation == "current":
		play = current
	default:
		log.Fatalf("-generation %q: expected current or previous", *generation)
	}
	if err := run(ctx, connection, *rmID, *announce, play); err != nil {
		log.Fatal(err)
	}
}

// run is an RM's life: registered, its three streams open at the same time, and gone for good.
func run(
	ctx context.Context, connection *grpc.ClientConn, rmID string, announce bool, play func(*resourceManager) error,
) error {
	scheduler := si.NewSchedulerClient(connection)
	_, err := scheduler.RegisterResourceManager(ctx, &si.RegisterResourceManagerRequest{
		RmID: rmID, Version: "1", PolicyGroup: "queues", Config: queues,
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	fmt.Println("registered", rmID)

	rm := &resourceManager{id: rmID, ctx: ctx, told: newTold()}
	if announce {
		rm.ctx = metadata.AppendToOutgoingContext(ctx, "muster-rm-id", rmID)
	}
	if rm.nodes, err = scheduler.UpdateNode(rm.ctx); err != nil {
		return err
	}
	if rm.applications, err = scheduler.UpdateApplication(rm.ctx); err != nil {
		return err
	}
	if rm.allocations, err = scheduler.UpdateAllocation(rm.ctx); err != nil {
		return err
	}
	if err := play(rm); err != nil {
		return err
	}
	if err := leave(ctx, scheduler, rmID); err != nil {
		return err
	}
	return rm.over()
}

// leave says on a stream of its own that the RM is gone for good; the scheduler then ends every stream.
func leave(ctx context.Context, scheduler si.SchedulerClient, rmID string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "muster-rm-id", rmID, "muster-shutdown", "true")
	stream, err := scheduler.UpdateNode(ctx)
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("leave: expected the end of the stream, got %w", err)
	}
	fmt.Println("left")
	return nil
}
