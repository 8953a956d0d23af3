// Command server serves YuniKorn's scheduler interface with YuniKorn's own core, in memory.
//
// The core is linked in process and called through its Go interface, as YuniKorn's shim does it. This program adds the
// three streams and nothing else. It serves one resource manager, which registers once: a benchmark starts a new
// process for each run.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"

	"github.com/apache/yunikorn-core/pkg/entrypoint"
	corelog "github.com/apache/yunikorn-core/pkg/log"
	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// A message of a benchmark has a few hundred items.
const messageBytesMax = 64 << 20

func main() {
	address := flag.String("listen", "127.0.0.1:0", "host:port; port 0: any free")
	flag.Parse()

	quiet := zap.NewProductionConfig()
	quiet.Level = zap.NewAtomicLevelAt(zap.ErrorLevel)
	logger, err := quiet.Build()
	if err != nil {
		log.Fatal(err)
	}
	corelog.InitializeLogger(logger, &quiet)
	corelog.UpdateLoggingConfig(map[string]string{"log.level": "ERROR"})

	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	// No manual scheduling, no web server: it would listen on every interface.
	core := entrypoint.StartAllServicesWithParams(false, false)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax))
	si.RegisterSchedulerServer(server, newScheduler(core.RMProxy))
	fmt.Println(listener.Addr()) // the benchmark reads it
	log.Fatal(server.Serve(listener))
}
