package main

import (
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/yunikorn-scheduler-interface/lib/go/si"
)

// /proc counts CPU time in these.
const ticksPerSecond = 100

// figures of a run, by name: seconds, milliseconds and rates say so in their names.
type figures map[string]float64

func (m *manager) run(scenario string, rate float64, pids []string) (figures, error) {
	took, err := m.register()
	if err != nil {
		return nil, err
	}
	found := figures{"nodes_s": took.Seconds()}
	switch scenario {
	case "front":
		return found, m.front(found, pids)
	case "churn":
		return found, m.churn(found, pids)
	case "clock":
		return found, m.clock(found, rate, pids)
	}
	return nil, fmt.Errorf("scenario: %q, expected front, churn or clock", scenario)
}

func (m *manager) front(found figures, pids []string) error {
	before, err := cpuSeconds(pids)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.allocate("a", 0, m.load.asks, 0); err != nil {
		return err
	}
	found["allocations_per_s"] = m.rate(&m.allocated, m.load.asks, began)
	m.percentiles(found)
	return addCPU(found, before, pids, m.load.asks)
}

func (m *manager) churn(found figures, pids []string) error {
	if err := m.allocate("a", 0, m.load.asks, 0); err != nil {
		return err
	}
	before, err := cpuSeconds(pids)
	if err != nil {
		return err
	}
	m.mutex.Lock()
	released, allocated := m.released.until(m.load.asks), m.allocated.until(m.load.asks)
	m.mutex.Unlock()
	began := time.Now()
	for first := 0; first < m.load.asks; first += m.load.perMessage {
		gone := make([]*si.AllocationRelease, 0, m.load.perMessage)
		for number := first; number < min(first+m.load.perMessage, m.load.asks); number++ {
			gone = append(gone, m.load.release("a", number))
		}
		releases := &si.AllocationReleasesRequest{AllocationsToRelease: gone}
		if err := m.allocations.Send(&si.AllocationRequest{RmID: rmID, Releases: releases}); err != nil {
			return err
		}
		if err := m.send("b", first, len(gone), 0); err != nil {
			return err
		}
	}
	if err := m.wait("releases", released); err != nil {
		return err
	}
	if err := m.wait("allocations", allocated); err != nil {
		return err
	}
	found["releases_per_s"] = m.rate(&m.released, m.load.asks, began)
	found["allocations_per_s"] = m.rate(&m.allocated, m.load.asks, began)
	return addCPU(found, before, pids, m.load.asks)
}

func (m *manager) clock(found figures, rate float64, pids []string) error {
	pace := time.Duration(float64(time.Second) / rate)
	warm := int(rate * warmSeconds)
	if err := m.allocate("a", 0, warm, pace); err != nil {
		return err
	}
	before, err := cpuSeconds(pids)
	if err != nil {
		return err
	}
	measured := m.load.asks - warm
	began := time.Now()
	if err := m.allocate("a", warm, measured, pace); err != nil {
		return err
	}
	found["allocations_per_s"] = m.rate(&m.allocated, measured, began)
	m.percentiles(found)
	return addCPU(found, before, pids, measured)
}

// allocate asks, and waits for the allocations.
func (m *manager) allocate(prefix string, first, many int, pace time.Duration) error {
	m.mutex.Lock()
	reached := m.allocated.until(many)
	m.latencies = m.latencies[:0]
	m.mutex.Unlock()
	if err := m.send(prefix, first, many, pace); err != nil {
		return err
	}
	return m.wait("allocations", reached)
}

func (m *manager) rate(of *count, many int, began time.Time) float64 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return float64(many) / of.last.Sub(began).Seconds()
}

func (m *manager) percentiles(found figures) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	slices.Sort(m.latencies)
	for _, percent := range []int{50, 95, 99} {
		rank := int(math.Ceil(float64(percent) / 100 * float64(len(m.latencies))))
		found[fmt.Sprintf("latency_p%d_ms", percent)] = m.latencies[rank-1].Seconds() * 1000
	}
}

// cpuSeconds reads the CPU time of NAME=PID processes so far.
func cpuSeconds(pids []string) (figures, error) {
	found := figures{}
	for _, each := range pids {
		name, pid, isNamed := strings.Cut(each, "=")
		if !isNamed {
			continue
		}
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return nil, err
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, field := range fields[11:13] { // in user mode, and in the kernel
			ticks, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return nil, err
			}
			found[name] += ticks / ticksPerSecond
		}
	}
	return found, nil
}

func addCPU(found, before figures, pids []string, asks int) error {
	after, err := cpuSeconds(pids)
	for name, seconds := range after {
		found["cpu_ms_"+name] = (seconds - before[name]) / float64(asks) * 1000
	}
	return err
}

func chunks[T any](items []T, size int) iter.Seq[[]T] { return slices.Chunk(items, size) }
