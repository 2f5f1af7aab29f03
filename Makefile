# `make` alone lists the targets. Everything is brought by the targets themselves: on a bare machine start with
# `make demo` or `make test`.

SHELL := /bin/bash
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/muster
NODES ?= 2
GPUS ?= 8
KWOK ?= 0
PYTEST ?=
TORCH ?= 2.6.0

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-zA-Z0-9_-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## bring uv and the Python environment (.venv)
	@bash hack/setup.sh

.PHONY: cluster
cluster: setup ## a real Kubernetes with made-up GPUs, and an S3 server (NODES=2 GPUS=8 KWOK=0)
	@.venv/bin/python -m hack.cluster up --nodes $(NODES) --gpus $(GPUS) --kwok-nodes $(KWOK)

.PHONY: cluster-down
cluster-down: setup ## take the cluster away; nothing stays
	@.venv/bin/python -m hack.cluster down

# A cluster that is up is taken as it is, unless somebody says how large it shall be.
said = $(if $(filter command environment,$(origin $(1))),$(2) $($(1)))
SIZES = $(call said,NODES,--nodes) $(call said,GPUS,--gpus) $(call said,KWOK,--kwok-nodes)

.PHONY: install
install: setup ## Muster on the local cluster: images, chart, a namespace and a bucket (starts the cluster too: NODES, GPUS, KWOK)
	@.venv/bin/python -m hack.demo --install-only $(SIZES)

.PHONY: demo
demo: setup ## cluster, images, chart and a training run that loses a worker and resumes (NODES, GPUS, KWOK)
	@.venv/bin/python -m hack.demo $(SIZES)

.PHONY: dashboards
dashboards: setup ## pictures of all dashboards in build/dashboards, from a Prometheus beside the local cluster (ARGS=--keep)
	@.venv/bin/python -m hack.monitoring.show $(ARGS)

.PHONY: chaos
chaos: setup ## faults on the local cluster, and what they cost a run (ROW=rank-sigkill SEED=3 for one; LIST=1 lists them)
	@.venv/bin/python -m hack.chaos $(if $(LIST),--list) $(addprefix --row ,$(ROW)) $(addprefix --seed ,$(SEED)) $(ARGS)

.PHONY: soak
soak: setup ## 20 gangs on the local cluster and a fault every 20 s until all have ended (ARGS="--jobs 4 --seed 2")
	@.venv/bin/python -m hack.chaos.soak $(ARGS)

.PHONY: test
test: setup ## every check and test: static, unit, runtime, cluster, e2e
	@.venv/bin/python -m hack.checks all

.PHONY: check
check: setup ## the static checks alone: ruff, mypy, import-linter, generated files
	@.venv/bin/python -m hack.checks static

.PHONY: test-unit
test-unit: setup ## tests that need nothing but Python
	@.venv/bin/python -m pytest -m unit $(PYTEST)

# The tests that MUSTER_THOROUGH=1 makes more of. (Those of tests/cluster need a cluster.)
THOROUGH := tests/scheduling/test_machine.py \
  tests/unit/history/test_cuts.py::test_only_what_nobody_saw_is_estimated_and_all_else_is_exact \
  tests/runtime/checkpoint/test_protocol.py::test_in_every_order \
  tests/runtime/checkpoint/test_race.py::test_two_gangs_race_for_one_prefix \
  tests/runtime/checkpoint/test_faults.py::test_the_writer_is_killed_at_every_request_of_a_prune \
  tests/runtime/checkpoint/test_machine.py \
  tests/runtime/launch/test_memory_tier.py::test_a_killed_rank_resumes_from_memory_while_s3_answers_503 \
  tests/runtime/launch/test_memory_tier.py::test_a_torn_slot_is_refused_and_s3_taken \
  tests/runtime/launch/test_memory_peer.py::test_what_a_pod_holds_of_the_state_while_it_is_saved \
  tests/runtime/launch/test_replacement.py::test_only_the_lost_pods_are_new_and_every_bit_of_the_run_is_the_same

.PHONY: test-thorough
test-thorough: setup ## what `make test` tries a part of, whole: kills at each request, 1,000 races, more orders (PYTEST="-k race")
	@MUSTER_THOROUGH=1 .venv/bin/python -m pytest --timeout=3600 --durations=30 $(THOROUGH) $(PYTEST)

.PHONY: test-gpu
test-gpu: setup ## tests that need a CUDA GPU, which `make test` leaves out even where there is one
	@.venv/bin/python -m pytest -m gpu tests/runtime $(PYTEST)

.PHONY: test-torch
test-torch: setup ## tests of the runtime under another torch, in an environment of its own (TORCH=2.6.0 PYTEST="-k resume")
	@.venv/bin/python -m hack.other_torch $(TORCH) $(PYTEST)

.PHONY: test-kubernetes
test-kubernetes: setup ## tests of API server and operator against another Kubernetes (KUBERNETES=1.31.14 ETCD=3.5.21 PYTEST="-k crds")
	@MUSTER_KUBERNETES=$(or $(KUBERNETES),$(error say which: KUBERNETES=1.31.14)) $(if $(ETCD),MUSTER_ETCD=$(ETCD)) \
	  .venv/bin/python -m pytest -m cluster -n 2 --dist loadfile tests/cluster $(PYTEST)

.PHONY: bench-preemption
bench-preemption: setup ## choose victims among 1,000 candidates on 12,500 nodes: time on one core, gap to a lower bound
	@.venv/bin/python bench/preemption.py $(ARGS)

.PHONY: bench-simulate
bench-simulate: setup ## Muster beside FIFO and EASY on 30 traces of 80,000 jobs (ARGS=--quick for two short ones a load)
	@.venv/bin/python bench/simulate.py $(ARGS)

.PHONY: bench-attainable
bench-attainable: setup ## what waits could be on these traces: an oracle that knows every duration
	@.venv/bin/python bench/attainable.py $(ARGS)

.PHONY: bench-placement
bench-placement: setup ## one gang of 1,024 GPUs on 12,500 nodes, a full cycle over 10,000 waiting jobs, and how both grow, drawn (ARGS="--repeats 50")
	@.venv/bin/python bench/placement.py --chart docs/images/growth.svg $(ARGS)

.PHONY: bench-telemetry
bench-telemetry: setup ## what telemetry costs a training step, in processor time
	@.venv/bin/python bench/telemetry.py $(ARGS)

.PHONY: bench-queues
bench-queues: setup ## put 10,000 waiting jobs of 1,000 queues in order, and open the books of their quota
	@.venv/bin/python bench/queues.py $(ARGS)

.PHONY: bench-metrics
bench-metrics: setup ## /metrics of the operator with 10,000 jobs: bytes and processor time
	@PYTHONPATH=. .venv/bin/python bench/metrics.py $(ARGS)

.PHONY: bench-reservations
bench-reservations: setup ## reservations, the proof of backfill, and expected starts of 10,000 waiting jobs
	@.venv/bin/python bench/reservations.py $(ARGS)

.PHONY: bench-admission
bench-admission: setup ## jobs admitted on a real API server: 15,000 gangs, 640 simulated nodes, no pods (ARGS="--scale 0.1 --pods" for a tenth with pods, ARGS=--kueue beside Kueue)
	@PYTHONPATH=. .venv/bin/python bench/admission.py $(ARGS)

.PHONY: bench-start
bench-start: setup ## a gang of 512 pods beside a bare Indexed Job of 512, on simulated nodes, until all are bound
	@PYTHONPATH=. .venv/bin/python bench/start.py $(ARGS)

.PHONY: bench-api
bench-api: setup ## pages of 100 of 10,000 jobs for 20 clients, beside a loop that plans (ARGS="--seconds 5")
	@PYTHONPATH=. .venv/bin/python bench/api.py $(ARGS)

.PHONY: bench-history
bench-history: setup ## what the history costs a turn of one of 10,000 jobs, and how fast it is written to SQLite and PostgreSQL
	@PYTHONPATH=. .venv/bin/python bench/history.py $(ARGS)

.PHONY: bench-checkpoint
bench-checkpoint: ## checkpoints to a real S3 server beside other ways: stall, speed, memory (ARGS="--megabytes 100 --repetitions 1")
	@bash hack/setup.sh --group bench
	@PYTHONPATH=. .venv/bin/python bench/checkpoint.py $(ARGS)

.PHONY: bench-yielding
bench-yielding: setup ## what threads beside the training cost ranks that wait for one another: niced, and when idle
	@PYTHONPATH=. .venv/bin/python bench/yielding.py $(ARGS)

.PHONY: generate
generate: setup ## write anew what is made from the models and the metrics: CRDs, field reference, dashboards
	@.venv/bin/python -m muster.api.generate
	@.venv/bin/python -m hack.monitoring

.PHONY: images
images: setup ## build the operator's and the runtime's image and load them into the local cluster
	@.venv/bin/python -m hack.images

.PHONY: clean
clean: ## remove what was built in this folder
	@rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
