# The few commands of the house. `make demo` and `make test` set up all that they need.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup demo down clean test lint cluster unit e2e soak crds images bench

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
	@$(BIN)/python -m e2e.clean
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis .coverage

test: lint cluster unit e2e ## everything that CI runs

lint: setup ## style, types, the rooms' contracts, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m phasewise_operator.api.crd --check

unit: setup ## without a cluster, with coverage; the pure rooms must stay above 95 %
	@$(BIN)/pytest -q --cov --cov-report=
	@$(BIN)/coverage report --include='$(PURE)' --fail-under=95

ROUTER := runtime/phasewise_runtime/router
PURE := operator/phasewise_operator/api/*,operator/phasewise_operator/render/*,operator/phasewise_operator/rollout/*,operator/phasewise_operator/reconcile/plan.py,operator/phasewise_operator/reconcile/report.py,operator/phasewise_operator/reconcile/managed_fields.py,operator/phasewise_operator/reconcile/pod_problems.py,operator/phasewise_operator/observed.py,operator/phasewise_operator/reconcile/conditions.py,operator/phasewise_operator/reconcile/events.py,operator/phasewise_operator/reconcile/sizes.py,operator/phasewise_operator/reconcile/status.py,operator/phasewise_operator/reconcile/deletion_cost.py,operator/phasewise_operator/scaling/external.py,operator/phasewise_operator/scaling/policy/*,operator/phasewise_operator/scaling/pools.py,operator/phasewise_operator/scaling/signals/*,operator/phasewise_operator/scaling/types.py,runtime/phasewise_runtime/contract.py,runtime/phasewise_runtime/engine/command.py,runtime/phasewise_runtime/engine/config.py,runtime/phasewise_runtime/model/uri.py,$(ROUTER)/policy.py,$(ROUTER)/protocol.py,$(ROUTER)/sse.py,$(ROUTER)/assembly.py,$(ROUTER)/breaker.py,$(ROUTER)/errors.py,$(ROUTER)/frames.py,$(ROUTER)/loads.py,$(ROUTER)/outcome.py,$(ROUTER)/slo.py,$(ROUTER)/waiting.py,$(ROUTER)/headers.py,$(ROUTER)/pods.py

cluster: setup ## the local cluster, with the helm that the chart's tests use
	@$(BIN)/python -m e2e.cluster up

e2e: setup ## on the local cluster, with real engines
	@$(BIN)/pytest -q e2e

soak: setup ## twenty scale-ups and scale-downs under streams; some 20 minutes, not in CI
	@$(BIN)/python -m e2e.soak

crds: setup ## write crds/ and the chart's copy from the models
	@$(BIN)/python -m phasewise_operator.api.crd

images: setup ## build the images that ship
	@$(BIN)/python -m e2e.images build all

bench: setup ## what the README claims, measured on the cluster that is up
	@$(BIN)/python -m bench.children 20
	@$(BIN)/python -m bench.scrape
