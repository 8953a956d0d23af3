// Package serve answers /live, /health and /metrics.
package serve

import (
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health is what /health says, as JSON.
type Health struct {
	// Role is standby (another shim leads), starting (registers, or reads the cluster) or leading.
	Role string `json:"role"`
	// Leader is the identity of the shim that leads; "": not known, or no election.
	Leader string `json:"leader,omitempty"`
	// Streams says for each stream to Muster whether it is open.
	Streams map[string]bool `json:"streams,omitempty"`
}

// Roles of a shim.
const (
	Standby  = "standby"
	Starting = "starting"
	Leading  = "leading"
)

// State is the health of this process. Its zero value is a standby.
type State struct {
	mutex   sync.Mutex
	role    string
	leader  string
	streams func() map[string]bool
}

// Begin notes another role.
func (s *State) Begin(role string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.role = role
}

// Led notes who leads.
func (s *State) Led(leader string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.leader = leader
}

// Watch gives the source of the streams' states.
func (s *State) Watch(streams func() map[string]bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.streams = streams
}

// Health is the state now, and whether all is well: a standby waits, or a leader has all streams open.
func (s *State) Health() (Health, bool) {
	s.mutex.Lock()
	health, streams := Health{Role: s.role, Leader: s.leader}, s.streams
	s.mutex.Unlock()
	if health.Role == "" {
		health.Role = Standby
	}
	if health.Role == Standby {
		return health, true
	}
	if streams != nil {
		health.Streams = streams()
	}
	well := health.Role == Leading && len(health.Streams) > 0
	for _, open := range health.Streams {
		well = well && open
	}
	return health, well
}

// Listen serves on an address, in the background, and returns the address that it got.
//
//	/live     200 while the process runs. Lost streams do not make it 503: a restart would not bring Muster back.
//	/health   200 with a Health if all is well, else 503 with the same
//	/metrics  for Prometheus
func Listen(address string, state *State, registry *prometheus.Registry) (net.Addr, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		health, well := state.Health()
		w.Header().Set("Content-Type", "application/json")
		if !well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(health)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr(), nil
}
