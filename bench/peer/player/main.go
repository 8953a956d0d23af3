// Command player plays one play on YuniKorn's own core, one step at a time.
//
// It reads one step as JSON from each line of its standard input, and writes what the core answered as one line of
// JSON. The core schedules only when it is told to (its manual mode). So a step is over when nothing is left to decide,
// nothing depends on the order of goroutines, and no test waits for time to pass.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// A step has a few items.
const lineBytesMax = 4 << 20

// step is one line of the input: what the resource manager sends, or that time passes.
type step struct {
	Method  string          `json:"method"`
	Message json.RawMessage `json:"message"`
	// Of a step in which time passes: the queue configuration whose delays are over.
	Config   string `json:"config"`
	Reserves bool   `json:"reserves"`
}

// answer is one message of the core.
type answer struct {
	Method  string          `json:"method"`
	Message json.RawMessage `json:"message"`
}

// outcome is one line of the output.
type outcome struct {
	Error   string            `json:"error,omitempty"`
	Answers []answer          `json:"answers"`
	Queues  map[string]string `json:"queues"` // of the applications, by their names
}

func main() {
	core := startCore()
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, lineBytesMax)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var next step
		if err := json.Unmarshal(input.Bytes(), &next); err != nil {
			log.Fatal(err)
		}
		result := outcome{Answers: []answer{}}
		if err := core.play(&next); err != nil {
			result.Error = err.Error()
		}
		for _, each := range core.take() {
			text, err := protojson.Marshal(each.message)
			if err != nil {
				log.Fatal(err)
			}
			result.Answers = append(result.Answers, answer{Method: each.method, Message: text})
		}
		result.Queues = core.queues()
		if err := output.Encode(result); err != nil {
			log.Fatal(err)
		}
	}
}

func read(text json.RawMessage, message proto.Message) {
	if err := protojson.Unmarshal(text, message); err != nil {
		log.Fatal(err)
	}
}
