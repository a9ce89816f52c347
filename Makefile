# Everything a person or CI runs. Needs Python 3.11 or newer with venv, and make; `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python here that is new enough; `make PYTHON=/path/to/python3.12 venv` picks another.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
STAMP := .venv/installed
TORCH := $(shell grep '^torch==' constraints.txt)
CPU_TORCH_INDEX := https://download.pytorch.org/whl/cpu

# The type checker doesn't ask the network for news of itself.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Tests start hundreds of processes that import the same files: they need not compile them each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo check format test test-soak test-unit bench bench-recovery bench-overhead bench-checkpoint bench-restore bench-peer-restore \
	bench-throttled-store bench-collectives bench-parity bench-anomalies bench-sharded-recovery bench-sharded-modes bench-streaming bench-coordinator bench-startup bench-chaos bench-detection bench-elasticity bench-service bench-service-deaths bench-monitoring bench-gpu clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-23s %s\n", $$1, $$2}' Makefile

venv: $(STAMP) ## make .venv and install TrainFlow with all extras into it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "got PYTHON='$(PYTHON)', expected Python 3.11 or newer: make PYTHON=/path/to/python"; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "got a Python without venv, expected one with it: apt-get install python3-venv"; \
		exit 1; }
	$(PYTHON) -m venv .venv
	@if $(call wants_cpu_torch); then \
		$(BIN)/pip install --no-deps --index-url $(CPU_TORCH_INDEX) $(TORCH); \
	fi
	$(BIN)/pip install -c constraints.txt -e '.[lm,s3,service,postgres,sinks,grafana,gpu,bench,dev]'
	touch $@

# No GPU here, PyTorch's index of CPU builds answers, and the usual index would bring CUDA.
define wants_cpu_torch
! command -v nvidia-smi >/dev/null \
&& ! $(BIN)/python -c 'import torch' 2>/dev/null \
&& $(BIN)/python -c 'import urllib.request as r; r.urlopen("$(CPU_TORCH_INDEX)/torch/", timeout=5)' 2>/dev/null \
&& $(BIN)/pip install --quiet --dry-run --no-deps --report - $(TORCH) 2>/dev/null | grep -qE '^ *"(nvidia|cuda)-'
endef

demo: $(STAMP) ## train on three simulated nodes while a worker, a node and the coordinator die
	$(BIN)/python jobs/demo.py

check: $(STAMP) ## format, lint, types, layers, architecture; under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

format: $(STAMP) ## format the code and mend what the linter can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Tests that mind neither each other nor a busy machine. A cluster, and a recovery with a deadline,
# have the machine to themselves.
SIDE_BY_SIDE := tests/architecture tests/unit tests/crash
PYTEST_SIDE_BY_SIDE := $(BIN)/python -m pytest -n auto --maxprocesses 4

test: $(STAMP) ## the tests; some fifty minutes on two cores
	$(PYTEST_SIDE_BY_SIDE) $(SIDE_BY_SIDE) -m 'not soak'
	$(BIN)/python -m pytest $(SIDE_BY_SIDE:%=--ignore=%) -m 'not soak' --durations=40

test-soak: $(STAMP) ## further tests, of other modes and rarer faults; an hour and a half, before a release
	$(BIN)/python -m pytest tests/chaos tests/crash tests/distributed tests/integration -m soak

test-unit: $(STAMP) ## the tests of plain values, without the slow ones; under a minute
	$(PYTEST_SIDE_BY_SIDE) tests/unit -m 'not slow'

bench: bench-recovery bench-chaos bench-detection bench-elasticity bench-service bench-service-deaths bench-sharded-recovery bench-sharded-modes bench-streaming bench-coordinator bench-startup bench-overhead bench-monitoring bench-checkpoint bench-restore bench-peer-restore bench-throttled-store bench-collectives bench-parity bench-anomalies ## every benchmark

bench-recovery: $(STAMP) ## time to recover from a kill, beside Ray Train and torchft
	$(BIN)/python -m benchmarks.recovery

bench-chaos: $(STAMP) ## goodput while faults of all kinds fall, and beside Ray Train; an hour and a half
	$(BIN)/python -m benchmarks.chaos
	$(BIN)/python -m benchmarks.chaos_ray_train

bench-detection: $(STAMP) ## how soon each fault is told of, and what is told of without one; an hour
	$(BIN)/python -m benchmarks.detection

bench-elasticity: $(STAMP) ## how long training stands when the world grows and shrinks
	$(BIN)/python -m benchmarks.elasticity

bench-service: $(STAMP) ## how soon the service answers, and what asking it costs a job
	$(BIN)/python -m benchmarks.service

bench-service-deaths: $(STAMP) ## what the service answers while a replica, the coordinator or the head dies
	$(BIN)/python -m benchmarks.service_deaths

bench-sharded-recovery: $(STAMP) ## the same of a sharded model, beside Ray Train with FSDP2
	$(BIN)/python -m benchmarks.sharded_recovery

bench-sharded-modes: $(STAMP) ## losses and memory by parallel.mode
	$(BIN)/python -m benchmarks.sharded_modes

bench-coordinator: $(STAMP) ## what the coordinator computes with 10 to 1,000 workers
	$(BIN)/python -m benchmarks.coordinator_scale

bench-gpu: $(STAMP) ## steps, kernels, NCCL and deaths on a GPU; not one of `make bench`
	$(BIN)/python -m benchmarks.gpu

bench-startup: $(STAMP) ## where the time of a start goes, by phase
	$(BIN)/python -m benchmarks.startup

bench-streaming: $(STAMP) ## what copies of shards to other nodes cost a step; as root, in network namespaces
	$(BIN)/python -m benchmarks.streaming

bench-overhead: $(STAMP) ## time of a step without failures, beside bare DDP
	$(BIN)/python -m benchmarks.overhead

bench-monitoring: $(STAMP) ## what monitoring costs a step, with and without by turns; 17 minutes
	$(BIN)/python -m benchmarks.monitoring

bench-checkpoint: $(STAMP) ## what a checkpoint costs, beside torch.save, DCP and torch_checkpointing
	$(BIN)/python -m benchmarks.checkpoint

bench-restore: $(STAMP) ## a restore from storage, beside DCP's load
	$(BIN)/python -m benchmarks.checkpoint --only-restores

bench-peer-restore: $(STAMP) ## a restore from another node's memory, beside a copy over the same link
	$(BIN)/python -m benchmarks.peer_restore

bench-throttled-store: $(STAMP) ## what training feels of a store at a tenth of the rate it needs
	$(BIN)/python -m benchmarks.throttled_store

bench-collectives: $(STAMP) ## sums over slow links, by what is sent; as root, in network namespaces
	$(BIN)/python -m benchmarks.collectives

bench-parity: $(STAMP) ## what compression does to what a model learns; three quarters of an hour
	$(BIN)/python -m benchmarks.parity

bench-anomalies: $(STAMP) ## what is found of made-up losses that are wrong, and false alarms, of the demo's too; a quarter of an hour
	$(BIN)/python -m benchmarks.anomalies

clean: ## remove what was built and measured; the .venv stays
	rm -rf out build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
