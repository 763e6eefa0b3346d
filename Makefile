# The project's commands. `make demo` and `make test` set up all that they need.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SLOWEST := --durations=15 --durations-min=5
.DEFAULT_GOAL := help
.PHONY: help setup demo down clean test lint cluster unit e2e soak rollouts fuzz crds images bench scale

help: ## what there is
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready ## a virtual environment with what development needs

.venv/.ready: pyproject.toml requirements-dev.txt
	@echo "setup: virtual environment in .venv (about a minute the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or later is needed; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/pip --quiet --disable-pip-version-check install uv==0.13.9
	@index=$$($(BIN)/pip config get global.index-url 2>/dev/null || true); $${index:+export UV_DEFAULT_INDEX=$$index}; \
	$(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements-dev.txt && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

demo: setup ## from nothing to streamed tokens that went through prefill and decode
	@$(BIN)/python -m e2e.demo

down: setup ## remove the cluster and all in it; only the build cache remains
	@$(BIN)/python -m e2e.cluster down

clean: setup ## the build cache and the virtual environment too
	@$(BIN)/python -m e2e.cluster clean
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis .coverage

test: ## everything that CI runs, with the seconds of each part
	@report=; for part in lint cluster unit e2e; do began=$$SECONDS; $(MAKE) --no-print-directory $$part || exit; \
	report+=" $$part $$((SECONDS - began)) s,"; done; echo "test:$$report $$SECONDS s in all"

lint: setup ## style, types, import contracts, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m phasewise_operator.api.crd --check

unit: setup ## without a cluster, with coverage; the pure modules must stay above 95 %
	@$(BIN)/pytest -q -n auto --dist worksteal $(SLOWEST) --cov --cov-report=
	@files=$$($(BIN)/python -m tests.pure_modules) && $(BIN)/coverage report --include="$$files" --fail-under=95

cluster: setup ## the local cluster, with the helm that the chart's tests use
	@$(BIN)/python -m e2e.cluster up

e2e: setup ## on the local cluster, with real engines
	@$(BIN)/pytest -q $(SLOWEST) e2e

soak: setup ## twenty scale-ups and scale-downs under streams; some 20 minutes, not in CI
	@$(BIN)/python -m e2e.soak

rollouts: setup ## every kind of rollout under requests, with the table of docs/rollouts.md; some 40 minutes, not in CI
	@$(BIN)/python -m e2e.rollouts

fuzz: setup ## 2,000 mutated objects against a real API server, on a cluster of its own; some ten minutes, not in CI
	@export PHASEWISE_CLUSTER_NAME=fuzz PHASEWISE_STATE=/tmp/phasewise-fuzz; $(BIN)/python -m e2e.fuzz; status=$$?; \
	$(BIN)/python -m e2e.cluster down; exit $$status

crds: setup ## write crds/, the chart's copy and its RBAC rules from the code
	@$(BIN)/python -m phasewise_operator.api.crd

images: setup ## build the images that ship
	@$(BIN)/python -m e2e.images build all

bench: setup ## what the README claims, measured on the cluster that is up
	@$(BIN)/python -m bench.children 20
	@$(BIN)/python -m bench.scrape
	@$(BIN)/python -m bench.watch

scale: setup ## 1,000 services and 10,000 pods beside one operator (kwok); some 40 minutes, not in CI
	@$(BIN)/python -m bench.scale
	@$(BIN)/python -m bench.scale down
