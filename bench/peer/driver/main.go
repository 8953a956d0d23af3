// Command driver is a resource manager that measures a scheduler: YuniKorn's core behind gRPC, or Muster.
//
// It speaks the scheduler interface and nothing of Muster's own, so that both get the same messages. It registers, adds
// nodes and applications, and then runs one scenario:
//
//	front  all asks as fast as they are taken
//	churn  the same; then each allocation is released while as many new asks come in
//	clock  one ask in a message, so many a second, each at its time whatever happened to those before
//
// It prints one JSON object. A latency begins when an ask was due (clock) or was handed to the stream.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A step that takes longer has failed.
const stepTimeout = 4 * time.Minute

func main() {
	log.SetFlags(0)
	var load workload
	address := flag.String("address", "", "host:port of the scheduler")
	scenario := flag.String("scenario", "front", "front, churn or clock")
	rate := flag.Float64("rate", 500, "asks a second (clock)")
	seconds := flag.Float64("seconds", 10, "how long (clock)")
	pids := flag.String("pids", "", "NAME=PID,...: processes whose CPU time counts")
	flag.IntVar(&load.nodes, "nodes", 1000, "nodes")
	flag.IntVar(&load.asks, "asks", 10000, "asks (front, churn)")
	flag.IntVar(&load.queues, "queues", 10, "queues")
	flag.IntVar(&load.applications, "applications", 100, "applications")
	flag.IntVar(&load.shapes, "shapes", 1, "different sizes of asks")
	flag.IntVar(&load.priorities, "priorities", 1, "different priorities of asks")
	flag.IntVar(&load.perMessage, "per-message", 100, "asks, releases or nodes in a message")
	flag.Parse()
	if *scenario == "clock" {
		load.asks = int(*rate * (*seconds + warmSeconds))
	}

	connection, err := grpc.NewClient(*address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	manager := newManager(ctx, connection, load)
	found, err := manager.run(*scenario, *rate, strings.Split(*pids, ","))
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
