package gateway

import "github.com/prometheus/client_golang/prometheus"

// All metrics of the connection to Muster.
type metrics struct {
	open      *prometheus.GaugeVec
	lost      *prometheus.CounterVec
	sent      *prometheus.CounterVec
	again     *prometheus.CounterVec
	kept      *prometheus.GaugeVec
	received  *prometheus.CounterVec
	repeated  *prometheus.CounterVec
	questions *prometheus.CounterVec
	answering *prometheus.HistogramVec
	waiting   prometheus.Histogram
	settled   *prometheus.CounterVec
	reloads   *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "muster_shim_stream_open", Help: "1 while the stream to Muster's gateway is open.",
		}, []string{"stream"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_streams_lost_total", Help: "Ends of streams, by gRPC status.",
		}, []string{"stream", "status"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_messages_sent_total", Help: "Messages written to streams, repetitions too.",
		}, []string{"stream"}),
		again: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_messages_sent_again_total", Help: "Messages that may have been lost with a connection.",
		}, []string{"stream"}),
		kept: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "muster_shim_journal_messages", Help: "Messages that are unsent, or not known to be taken.",
		}, []string{"stream"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_responses_total", Help: "Responses that the shim has handled.",
		}, []string{"stream"}),
		repeated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_responses_repeated_total", Help: "Responses that came a second time and were dropped.",
		}, []string{"stream"}),
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_questions_total", Help: "Muster's questions, by kind and answer (yes, no, late).",
		}, []string{"kind", "answer"}),
		answering: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "muster_shim_question_seconds", Help: "Time from a question's arrival to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"kind"}),
		waiting: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "muster_shim_allocation_seconds", Help: "Time from an ask to its allocation, as the shim sees it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 1.5, 30), // to two minutes
		}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_bindings_settled_total",
			Help: "Failed bindings, by what became of the pod (bound, released, asked again).",
		}, []string{"result"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_shim_configuration_updates_total", Help: "Updates of the configuration, by result (accepted, refused, failed).",
		}, []string{"result"}),
	}
	registry.MustRegister(m.open, m.lost, m.sent, m.again, m.kept, m.received, m.repeated, m.questions, m.answering, m.waiting, m.settled, m.reloads)
	return m
}
