# Muster: `make help` lists what there is. Everything lives in $(VENV); nothing is installed elsewhere,
# except Debian packages that `install` (python3-venv) and `test` (servers) need and only when run as root.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Some images set it. Each start of a process would then compile every module: 5 s of a core for `muster up`, not 1.5.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
JOBS ?= 2
PYTEST_ARGS ?=
BENCH_OUT ?= bench.json
BENCH_ARGS ?=
RECORDS ?=
SEED ?=
SEEDS ?=
STEPS ?=
KIND ?=
COUNT ?=
MUTATE_ARGS ?=
PLAYS_ARGS ?=
FUZZ_S ?= 600
MINUTES ?= 3
CHAOS_ARGS ?=
OPENB_ARGS ?=
BASE ?= HEAD~20

RUN_TIME := requirements/muster.lock requirements/build.lock
DEVELOPMENT := requirements/dev.lock requirements/build.lock
DOCUMENTATION := requirements/docs.lock
# They break the core on purpose: the simulation's auditors must notice it. They prove the auditors, not the product.
NOTICE_TESTS := $(wildcard tests/simulation/test_*auditor_notices.py)
# Short tests use the whole of as many cores. Whole systems mostly wait: more files at a time than cores, those first
# that take longest (tests/README.md says what takes how long).
PARALLEL_TESTS := $(wildcard tests/unit tests/contract tests/fuzz tests/scenario tests/plays tests/mutation tests/virtual \
  tests/in_virtual_time) \
  $(filter-out $(NOTICE_TESTS),$(wildcard tests/simulation/test_*.py))
# They keep both cores busy with what they measure: one after the other, and beside nothing.
LOAD_TESTS := tests/chaos/test_brokers.py tests/chaos/test_overload.py tests/chaos/test_derive_members.py \
  tests/benchmarks/test_sockets.py
SYSTEM_JOBS ?= $(shell expr 2 '*' $(JOBS) + 1)
# Of whole systems `make test` has what shows that each real thing works: commands, processes, a kill, Kafka, Redis,
# PostgreSQL, TLS, Chromium. The others take three times as long: `make test-systems`, and `make test-long` what it has
# in a larger form (tests/README.md). Those first that take longest.
LONG_SYSTEM_TESTS := $(filter-out %/test_views.py %/test_search.py,$(wildcard tests/page/test_*.py)) $(wildcard \
  $(addprefix tests/chaos/test_,outages.py gateways.py backup.py kill_commands.py kill_gangs.py kill_metrics.py kill_reload.py) \
  $(addprefix tests/e2e/test_,tutorials.py replay.py external_faults.py quotas.py clock_steps.py followers_process.py lost_log.py \
  damaged_*.py absent_rms.py bad_configuration.py migrate.py no_garbage.py) \
  $(addprefix tests/integration/test_,examples.py kafka_notes.py external_page.py external_example.py external_process.py \
  derive_faust.py faust_starts.py followers_front.py followers_process.py scheduler_group.py long_commands.py \
  old_events_kafka.py log_copy.py export_group.py export_restart.py state_consumer.py kafka_fresh.py \
  state_of_the_whole.py callback_stores.py) tests/benchmarks/test_*.py)
LONG_SYSTEM_TESTS := $(filter-out $(LOAD_TESTS),$(LONG_SYSTEM_TESTS))
LONG_TESTS := tests/chaos/test_kill_export.py tests/chaos/test_kill_faults.py tests/e2e/test_generated_bad_calls.py
# (One process plays tests/page, first what looks at the cluster as it begins.)
FIRST_SYSTEM_TESTS := $(wildcard tests/page/test_views.py tests/page/test_search.py $(addprefix tests/e2e/test_,history.py demo.py up.py))
SYSTEM_TESTS := $(FIRST_SYSTEM_TESTS) $(filter-out $(FIRST_SYSTEM_TESTS) $(LONG_SYSTEM_TESTS) $(LONG_TESTS) $(LOAD_TESTS),$(wildcard \
  $(addsuffix /test_*.py,tests/integration tests/e2e tests/chaos)))
# Of their lives and their bad input `make test` has a part, `make test-long` more.
RANDOM_TESTS := tests/unit/scheduler_service/test_machine_recovery.py tests/simulation/test_message_splitting.py \
  tests/unit/scheduler_service/test_machine_external_merge.py tests/unit/core/test_external_lives.py \
  tests/scenario/test_core_answers.py tests/simulation/test_commands_in_steps.py \
  $(addprefix tests/simulation/test_simulation.py::test_,a_random_life_keeps_every_promise history_adds_up_in_random_lives)
LAW_TESTS := tests/unit/core/test_preemption_gang_laws.py \
  tests/simulation/test_preemption_properties.py tests/simulation/test_preemption_flow.py
# (All that decides: node policies, preemption rules, books, lives; and what requests and outcomes pass.)
COMPILED_TESTS := $(addprefix tests/unit/,core queue_config scheduler_service) tests/simulation/test_simulation.py \
  $(addprefix tests/unit/gateway/test_,admission.py codec.py feed.py turns.py) \
  $(addprefix tests/unit/view/test_,core_metrics.py following.py)
# (A part of it, for CI: the machine with its recovery, configurations, encodings, preemption, gangs.)
COMPILED_SLICE := tests/unit/queue_config $(addprefix tests/unit/core/test_,preemption.py gangs.py node_index.py) \
  $(addprefix tests/unit/scheduler_service/test_,machine.py wire.py event_wire.py machine_hostile.py tally.py) \
  $(addprefix tests/unit/gateway/test_,admission.py codec.py) tests/unit/view/test_core_metrics.py
BAD_INPUT_TESTS := tests/e2e/test_generated_bad_input.py tests/e2e/test_generated_bad_calls.py \
  tests/unit/scheduler_service/test_machine_hostile.py tests/unit/scheduler_service/test_machine_external_hostile.py

# Every target of the list below.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*## .*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

install: $(VENV)/.installed ## Muster into .venv (.venv/bin/muster), as machine code where a C compiler is: once, some minutes (COMPILE=no: as source)
	@$(if $(filter no,$(COMPILE)),true,scripts/compiled --where-possible $(VENV))
install-dev: $(VENV)/.installed-dev ## the same, with what tests and checks need

$(VENV)/.installed: $(RUN_TIME) pyproject.toml libs/client/pyproject.toml scripts/venv
	@scripts/venv $(VENV) $(RUN_TIME)
	@touch $@

$(VENV)/.installed-dev: $(DEVELOPMENT) pyproject.toml libs/client/pyproject.toml scripts/venv
	@scripts/venv $(VENV) $(DEVELOPMENT)
	@touch $@ $(VENV)/.installed

compiled: install-dev ## what asks pass as machine code into .venv (two minutes, once; needs a C compiler); tests go on with the source
	@scripts/compiled $(VENV)

plain: $(VENV)/.installed ## takes the compiled core out of .venv again
	@$(BIN)/python -m pip uninstall --quiet --disable-pip-version-check --yes muster-compiled

$(VENV)/.installed-docs: $(VENV)/.installed-dev $(DOCUMENTATION)
	@echo '==> installing what builds the documentation'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(DOCUMENTATION)
	@touch $@

# (Its authors' news of other products.)
docs docs-serve docs-version: export NO_MKDOCS_2_WARNING := 1
# (Pages are made from the source, which the compiled form does not have.)
docs docs-serve docs-version: export MUSTER_COMPILED := 0

docs: $(VENV)/.installed-docs ## the documentation as a site in build/docs; a dead link or anchor fails it
	@$(BIN)/mkdocs --quiet build --strict
	@echo "build/docs: $$(find build/docs -name '*.html' | wc -l) pages, $$(du -sh build/docs | cut -f1)"

docs-serve: $(VENV)/.installed-docs ## the same at http://127.0.0.1:8000/, built again when a page changes
	@$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

docs-version: $(VENV)/.installed-docs ## adds the site of this revision to the branch gh-pages as VERSION (and as latest); pushes nothing
	@PATH="$(abspath $(BIN)):$$PATH" mike deploy --update-aliases $(or $(VERSION),$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("muster"))')) latest

recordings: install-dev ## docs/top-recording.svg and docs/page-recording.svg: muster top and the page while a cluster works
	@$(BIN)/python scripts/recordings.py

demo: $(VENV)/.installed ## a scheduler on this machine, a cluster's trace through it, and a table of what happened
	@$(BIN)/muster demo

demo-live: $(VENV)/.installed ## a cluster whose tasks come, run for a while and end, with gangs and preemption, until Ctrl-C
	@$(BIN)/muster demo --live

examples: $(VENV)/.installed ## every resource manager of examples/, one after the other, against a Muster of its own
	@$(BIN)/python examples/run_all.py

EXAMPLE_EXTERNAL := .cache/example-external
example-external: install ## an example plugin, installed from its own package: VM hosts next to the RM's nodes
	@rm -rf $(EXAMPLE_EXTERNAL)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $(EXAMPLE_EXTERNAL) ./examples/external
	@PYTHONPATH=$(EXAMPLE_EXTERNAL) $(BIN)/python examples/external/run.py

test: install-dev ## the tests, with one of each kind of whole system; finds or installs Kafka, Redis, PostgreSQL and Chromium (tests/README.md)
	@scripts/test-servers
	@SHORT="$(PARALLEL_TESTS)" SYSTEMS="$(SYSTEM_TESTS)" scripts/run-tests $(PYTEST) $(JOBS) $(SYSTEM_JOBS) $(PYTEST_ARGS)

test-systems: install-dev ## the tests of whole systems that `make test` has not: outages, kills, the page, tutorials, examples
	@scripts/test-servers
	$(PYTEST) -n $(SYSTEM_JOBS) --dist loadfile --no-loadscope-reorder $(LONG_SYSTEM_TESTS) $(PYTEST_ARGS)

COSTS ?= $(PARALLEL_TESTS) $(SYSTEM_TESTS) $(LONG_SYSTEM_TESTS)
test-costs: install-dev ## what each file of tests costs in time of processors (COSTS=tests/e2e; PYTEST_ARGS=--part=1/8 for an estimate)
	@$(BIN)/python tests/costs.py .artefacts/costs.json $(BIN)/pytest -q -n $(SYSTEM_JOBS) --dist loadfile $(COSTS) $(PYTEST_ARGS)

test-unit: install-dev ## the tests that need no server
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not kafka and not redis and not postgres' $(PARALLEL_TESTS) $(PYTEST_ARGS)

test-compiled: compiled ## the core's tests, and random lives of a cluster, on the compiled core
	MUSTER_COMPILED=1 $(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not source' tests/compiled $(COMPILED_TESTS) $(PYTEST_ARGS)

test-compiled-slice: compiled ## a part of them
	MUSTER_COMPILED=1 $(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not source' tests/compiled $(COMPILED_SLICE) $(PYTEST_ARGS)

test-long: install-dev ## more of the random lives, the bad input and the kills than `make test` has
	@scripts/test-servers
	MUSTER_SIMULATION_SEEDS=40 MUSTER_SPLIT_LIVES=800 MUSTER_HISTORY_LIVES=800 MUSTER_EXTERNAL_SEEDS=24 \
	$(PYTEST) -n $(JOBS) --dist worksteal $(RANDOM_TESTS) $(PYTEST_ARGS)
	MUSTER_SIMULATION_SEEDS=600 $(PYTEST) -n $(JOBS) --dist worksteal $(LAW_TESTS) $(PYTEST_ARGS)
	MUSTER_BAD_INPUT_EXAMPLES=120 $(PYTEST) -n $(JOBS) --dist loadfile $(BAD_INPUT_TESTS) $(PYTEST_ARGS)
	MUSTER_EXPORT_EVENTS=60000 $(PYTEST) tests/chaos/test_kill_export.py $(PYTEST_ARGS)
	MUSTER_DERIVE_STARTS=60 $(PYTEST) tests/integration/test_faust_starts.py -k many_starts $(PYTEST_ARGS)
	MUSTER_FAULT_KILLS=5 $(PYTEST) tests/chaos/test_kill_faults.py $(PYTEST_ARGS)
	MUSTER_PLAYS=50 $(PYTEST) -n $(JOBS) tests/plays $(PYTEST_ARGS)

test-load: install-dev ## brokers that go under load, and overload, beside nothing else
	@scripts/test-servers
	$(PYTEST) -s $(LOAD_TESTS) $(PYTEST_ARGS)

chaos: install-dev ## all faults at once from a seed, with an auditor outside (SEED=17 MINUTES=3); a failure repeats with its seed
	@scripts/test-servers
	@PYTHONPATH=tests $(BIN)/python -m chaos.storm.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

# (The images are tested where Docker is.)
KUBERNETES_TESTS = MUSTER_REQUIRE_SERVERS=1 $(PYTEST) -v --durations=15
ONLY_WITH_DOCKER = $(shell docker info >/dev/null 2>&1 || echo ' and not docker')

kubernetes-programs: install-dev
	@docker info >/dev/null 2>&1 || echo 'Docker is not here: the images are not tested'
	@$(MAKE) --no-print-directory -C deploy/kubernetes/shim build test
	@PYTHON=$(abspath $(BIN)/python) scripts/go-check
	@$(BIN)/python tests/kubernetes/cluster.py build
	@scripts/helm version --short

kubernetes-test: kubernetes-programs ## pods of a real Kubernetes control plane, which it builds once, under Muster
	$(KUBERNETES_TESTS) -m 'not kubernetes_long$(ONLY_WITH_DOCKER)' tests/kubernetes $(PYTEST_ARGS)

kubernetes-test-long: kubernetes-programs ## the same with kills of one process at a time, and the kills in turn three times
	$(KUBERNETES_TESTS) -m 'kubernetes$(ONLY_WITH_DOCKER)' tests/kubernetes $(PYTEST_ARGS)
	for turn in 2 3; do $(KUBERNETES_TESTS) tests/kubernetes/test_kills.py $(PYTEST_ARGS) || exit 1; done

fuzz: install-dev ## mutated inputs for every decoder, as long as FUZZ_S says (FUZZ_S=600 SEED=7); findings go to tests/fuzz/found
	@PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_S) $(if $(SEED),--seed $(SEED))

fuzz-log: install-dev ## pages, blocks and columns of a log that has lived get another content: none is silent (TRIES=5000 SEED=7)
	@PYTHONPATH=tests $(BIN)/python -m fuzz.log_faults --tries $(or $(TRIES),5000) $(if $(SEED),--seed $(SEED))

mutate: BASE := main
# (More lives than `make test` has: they notice what the tests of one module do not.)
MUTATE_LIVES := MUSTER_SIMULATION_SEEDS=12 MUSTER_HISTORY_LIVES=200 MUSTER_SPLIT_LIVES=500 MUSTER_EXTERNAL_SEEDS=24 \
  MUSTER_BAD_INPUT_EXAMPLES=120
mutate: install-dev ## edits of the core and the fold that no test notices: of files changed since BASE=main, or a sample (SEED=17 COUNT=1000)
	@$(MUTATE_LIVES) PYTHONPATH=tests nice $(BIN)/python -m mutation --jobs $(JOBS) --base $(BASE) $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(MUTATE_ARGS)

mutate-laws: install-dev ## edits of the core that the auditors of random lives must notice, each by the law that it breaks
	$(PYTEST) -n $(JOBS) --dist worksteal $(NOTICE_TESTS) $(PYTEST_ARGS)

mutate-whole: install-dev ## edits of the product that lives of a whole Muster in virtual time must notice, with the seed of each (WHOLE_ARGS='--only standby')
	@PYTHONPATH=tests nice $(BIN)/python -m virtual.mutants --jobs $(JOBS) $(WHOLE_ARGS)

LIVES = $(if $(SEEDS),--seeds $(SEEDS)) $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED))

simulate: install-dev ## random lives of a cluster with an auditor beside them, then lives with all features at once (SEEDS=5000 STEPS=60; SEED=17 for one)
	@PYTHONPATH=tests $(BIN)/python -m simulation $(LIVES)
	@PYTHONPATH=tests $(BIN)/python -m simulation --with gangs,callbacks,external $(LIVES)
	@$(if $(SEED),PYTHONPATH=tests $(BIN)/python -m simulation --with gangs $(LIVES))

compare-plays: install-dev ## random plays on YuniKorn's core and on Muster; what differs is shortened and told (SEEDS=1000 KIND=gangs; SEED=17 for one; needs Go)
	@PYTHONPATH=tests $(BIN)/python -m plays $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(if $(KIND),--kind $(KIND)) $(PLAYS_ARGS)

simulate-gangs: install-dev ## random lives with gangs, twice under another hash seed (SEEDS=2000 STEPS=300; SEED=17 for one)
	@PYTHONPATH=tests $(BIN)/python -m simulation --with gangs $(LIVES)

simulate-callbacks: install-dev ## random lives with an RM that is asked, twice under another hash seed (SEEDS=1000 STEPS=80; SEED=17 for one)
	@PYTHONPATH=tests $(BIN)/python -m simulation --with callbacks $(LIVES)

simulate-external: install-dev ## random lives in which containers and VMs share hosts, twice under another hash seed (SEEDS=1000 STEPS=60; SEED=17 for one)
	@PYTHONPATH=tests $(BIN)/python -m simulation --with external $(LIVES)

simulate-mixed: install-dev ## random lives with gangs, predicates and external resources at once, twice under another hash seed (SEEDS=1000 STEPS=60; SEED=17 for one)
	@PYTHONPATH=tests $(BIN)/python -m simulation --with gangs,callbacks,external $(LIVES)

simulate-whole: install-dev ## the whole of Muster in virtual time under all faults, from a seed (SEED=17 HOURS=1; SEEDS=3)
	@PYTHONPATH=tests $(BIN)/python -m virtual --hours $(or $(HOURS),1) $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(WHOLE_ARGS)

check: install-dev ## style, types, who imports whom, stubs, locks, tables of endpoints
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	PYTHON=$(BIN)/python scripts/proto --check
	$(BIN)/python scripts/check-locks
	$(BIN)/python scripts/route-tables --check
	$(BIN)/python scripts/command-files --check

go-check: install-dev ## gofmt, go vet and staticcheck of the Go programs, and their stubs (needs Go); a part of kubernetes-test
	@PYTHON=$(abspath $(BIN)/python) scripts/go-check

format: install-dev ## put the code into its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install-dev ## allocations per second and latency, embedded and on Kafka, as JSON (BENCH_ARGS='--only stateful')
	@$(BIN)/python -m bench.scenarios_bench --json $(BENCH_OUT) $(BENCH_ARGS)

bench-core: install-dev ## the scheduling core alone: a JSON line for each scenario (BENCH_ARGS='--only binpack,5000,50000,100')
	@$(BIN)/python -m bench.core_bench $(BENCH_ARGS)

bench-memory: install-dev ## memory of each thing that a quota counts
	@PYTHONPATH=tests $(BIN)/python -m bench.memory_bench

bench-whole: install-dev ## start, memory, idle, ten times as much, 16 RMs, growth; JSON (BENCH_ARGS='--only flat --minutes 60')
	@$(BIN)/python -m bench.whole_bench $(BENCH_ARGS)

bench-lived: install-dev ## a Muster that has lived an hour's operations beside new ones, by turns; JSON (BENCH_ARGS='--small --operations 440000')
	@$(BIN)/python -m bench.lived_bench $(BENCH_ARGS)

bench-pauses: install-dev ## the deciding loop's longest pauses at 500 asks/s, with what ran in each: a table (BENCH_ARGS='--minutes 10')
	@$(BIN)/python -m bench.pauses_bench $(BENCH_ARGS)

bench-events: install-dev ## the ring's memory and speed, and streams' latency; one JSON line
	@$(BIN)/python -m bench.events_bench $(BENCH_ARGS)

bench-export: install-dev ## events from Kafka to PostgreSQL, Parquet and JSON lines, then with kill -9 (RECORDS=1000000)
	@$(BIN)/python -m bench.export_bench $(if $(RECORDS),--records $(RECORDS)) $(BENCH_ARGS)

bench-derive: install-dev ## events a second that usage and derived topics are made of: pure, embedded, by Faust (RECORDS=100000)
	@$(BIN)/python -m bench.derive_bench $(if $(RECORDS),--records $(RECORDS)) $(BENCH_ARGS)

bench-external: install-dev ## what other managers' resources cost: 5,000 nodes until known, 2,000 changes/s beside decisions; JSON
	@$(BIN)/python -m bench.external_bench $(BENCH_ARGS)

bench-view: install-dev ## what readers cost decisions, and how fast they are answered: dumps, 1,000 requests/s; JSON
	@$(BIN)/python -m bench.view_bench $(BENCH_ARGS)

bench-positions: install-dev ## what a read with the newest position costs under 5,000 asks/s: p50 and p99 with and without; JSON
	@$(BIN)/python -m bench.positions_bench $(BENCH_ARGS)

bench-failover: install-dev ## how long nothing is decided when a scheduler is killed or stopped, at 100,000 allocations; JSON
	@$(BIN)/python -m bench.failover_bench $(BENCH_ARGS)

bench-group: install-dev ## what several schedulers and their standbys cost; JSON
	@$(BIN)/python -m bench.group_bench

bench-idle: install-dev ## what partitions cost that nobody uses: processor time, memory, start; JSON (BENCH_ARGS='--partitions 32')
	@$(BIN)/python -m bench.idle_bench $(BENCH_ARGS)

bench-scale: install-dev ## 1 to 4 schedulers, 1 to 64 RMs through gateways: rates, processor time, memory; JSON (BENCH_ARGS='--cells 2,2,8')
	@$(BIN)/python -m bench.scale_bench $(BENCH_ARGS)

bench-deciding: install-dev ## the path of asks in the deciding process, without gRPC, plain and compiled by turns; JSON (BENCH_ARGS='--single')
	@$(BIN)/python -m bench.deciding_bench $(BENCH_ARGS)

bench-simulate: install-dev ## decisions per second of simulations in virtual time; a JSON line for each workload
	@$(BIN)/python -m bench.simulate_bench $(BENCH_ARGS)

bench-neighbours: install-dev ## one RM's asks beside an RM that asks for much, hostile configurations, readers of metrics; JSON
	@$(BIN)/python -m bench.neighbours_bench $(BENCH_ARGS)

bench-commands: install-dev ## one command about 100,000 allocations: the loop's longest steps, other RMs' waits; JSON (BENCH_ARGS='--only remove')
	@$(BIN)/python -m bench.commands_bench $(BENCH_ARGS)

profile: install-dev ## where the processor time of one ask goes, by process, thread and stage (BENCH_ARGS='--backend kafka --bulk', '--path', '--syscalls')
	@$(BIN)/python -m bench.profile_bench $(BENCH_ARGS)

flame: install-dev ## flame graphs of that into docs/flame-*.svg, single asks and in bulk, embedded and on Kafka (BENCH_ARGS='--backend embedded')
	@$(BIN)/python -m bench.flame_bench $(BENCH_ARGS)

bench-peer: install-dev ## beside YuniKorn's own core (needs Go), ratios into docs/performance.md; JSON (BENCH_ARGS='--rounds 3')
	@$(BIN)/python -m bench.peer_bench --write $(BENCH_ARGS)

bench-kubernetes: install-dev ## pods/s and ask to bound on a Kubernetes control plane, beside YuniKorn's core in process (needs Go); JSON (BENCH_ARGS='--only small')
	@$(BIN)/python tests/kubernetes/cluster.py build
	@$(BIN)/python -m bench.kubernetes_bench $(BENCH_ARGS)

bench-compare: install-dev ## this revision beside another one, alternately (BASE=main BENCH_ARGS='--rounds 3 --only front'; needs Go)
	@$(BIN)/python -m bench.compare_bench $(BASE) $(BENCH_ARGS)

calibration: install-dev ## how often estimates of "When will it run?" hold the truth, on the openb trace; docs/what-if-when.svg
	@$(BIN)/python -m bench.calibrate --write docs $(BENCH_ARGS)

openb: install-dev ## four node sort policies on the openb trace: table and plot, also into docs/
	@$(BIN)/python examples/openb/compare.py --write docs $(OPENB_ARGS)

openb-sharing: install-dev ## backfill, and fair share by past use, on the openb trace in virtual time: tables and plots into docs/
	@$(BIN)/python examples/openb/sharing.py --write docs $(OPENB_ARGS)

figures: install-dev ## the tables of figures in docs/performance.md and docs/callbacks-predicates.md from bench's JSON
	@$(BIN)/python scripts/figures $(BENCH_OUT)

routes: install-dev ## the tables of endpoints in docs/rest.md and docs/security-rights.md
	@$(BIN)/python scripts/route-tables

command-files: install-dev ## the manual page and the shells' completions in deploy/system
	@$(BIN)/python scripts/command-files

proto: install-dev ## stubs from proto/, and where Go is here those of the programs in Go
	PYTHON=$(BIN)/python scripts/proto
	@if command -v go >/dev/null; then for program in examples/go-rm deploy/kubernetes/shim; do \
	  $(MAKE) -C $$program stubs PROTOC="$(abspath $(BIN))/python -m grpc_tools.protoc" || exit 1; done; fi

lock: install-dev ## resolve requirements/*.lock anew
	PATH="$(abspath $(BIN)):$$PATH" scripts/lock --upgrade

dist: install-dev ## wheels and source distributions of muster and muster-client, into dist/; the same tree gives the same bytes
	@PYTHON=$(BIN)/python scripts/dist dist
	@obstacle=$$($(BIN)/python libs/compiled/compiler.py); if [ -n "$$obstacle" ]; then \
	  echo "no compiled wheel: $$obstacle"; else scripts/compiled $(VENV) dist; fi

dist-compiled: install-dev ## only the wheel of the compiled form, for this Python and platform, into dist/
	@scripts/compiled $(VENV) dist

dist-test: install-dev ## both wheels in empty environments: the demo, a first allocation, every missing extra
	$(BIN)/pytest -s tests/dist $(PYTEST_ARGS)

compose-test: install-dev ## the compose stack for real: build, start, ask everything, replay a trace, account for every task, remove
	@scripts/compose-test

compose-test-brokers: install-dev ## the same with three brokers (compose.brokers.yaml)
	@scripts/compose-test --brokers

compose-test-secure: install-dev ## the same with compose.secure.yaml: TLS, SCRAM, new secrets
	@scripts/compose-test --secure

clean: ## everything that make made
	rm -rf $(VENV) .venv-tools .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
