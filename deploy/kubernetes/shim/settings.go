package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"muster/kubernetes/shim/internal/gateway"
	"muster/kubernetes/shim/internal/lead"
)

// settings are flags; each has a variable for its default. How Muster is reached securely is in the variables that all
// of Muster's clients read (MUSTER_TOKEN_FILE, MUSTER_TLS_CA ...). Everything about Kubernetes, the cluster's id and the
// levels of logs are YuniKorn's settings, in its ConfigMaps.
type settings struct {
	gateway string
	listen  string
	elect   bool
	lead    lead.Settings
	access  gateway.Access
}

func parse(name string, arguments []string) (*settings, error) {
	s := &settings{access: gateway.AccessOfEnvironment()}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	hostname, _ := os.Hostname()
	flags.StringVar(&s.gateway, "gateway", text("MUSTER_GATEWAY", "127.0.0.1:9090"),
		"address of Muster's gateway; several with commas between (MUSTER_GATEWAY)")
	flags.StringVar(&s.listen, "http-address", text("MUSTER_SHIM_HTTP_ADDRESS", ":9089"),
		"address of /live, /health and /metrics (MUSTER_SHIM_HTTP_ADDRESS)")
	elect, err := strconv.ParseBool(text("MUSTER_SHIM_LEADER_ELECT", "true"))
	if err != nil {
		return nil, fmt.Errorf("MUSTER_SHIM_LEADER_ELECT %q: expected true or false", os.Getenv("MUSTER_SHIM_LEADER_ELECT"))
	}
	flags.BoolVar(&s.elect, "leader-elect", elect, "work only while this shim holds the Lease (MUSTER_SHIM_LEADER_ELECT)")
	flags.StringVar(&s.lead.Lease, "lease", text("MUSTER_SHIM_LEASE", "muster-kubernetes-shim"),
		"name of the Lease, in the namespace of NAMESPACE (MUSTER_SHIM_LEASE)")
	flags.StringVar(&s.lead.Identity, "identity", text("POD_NAME", hostname), "this shim's name in the Lease (POD_NAME)")
	flags.DurationVar(&s.lead.Duration, "lease-duration", 15*time.Second, "after this time without renewal another shim takes over")
	flags.DurationVar(&s.lead.Deadline, "renew-deadline", 10*time.Second, "a shim that could not renew for so long ends")
	flags.DurationVar(&s.lead.Retry, "retry-period", 2*time.Second, "between tries to get or to renew the Lease")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%s: expected no further arguments, got %q", name, flags.Args())
	}
	// Two processes on one machine, or a restarted one, are two shims.
	s.lead.Identity = fmt.Sprintf("%s_%d_%x", s.lead.Identity, os.Getpid(), time.Now().UnixNano()&0xffffff)
	return s, nil
}

func text(variable, otherwise string) string {
	if value := os.Getenv(variable); value != "" {
		return value
	}
	return otherwise
}
