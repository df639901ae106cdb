SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup up test test-fast e2e e2e-full kube kube-down node node-down lint format proto lock clean

MODEL ?=
REPLICAS ?= 1
PORT ?= 8000
GRPC_PORT ?= 9000
ARGS ?=
PYTHON ?=

export PYTHON
# Without bytecode files, each process compiles the modules that it imports: seconds at the start of each replica.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Create .venv with all dependencies, unless it is up to date
	@tools/setup.sh

up: setup ## Serve a model here until Ctrl-C (MODEL=, REPLICAS=, PORT=, GRPC_PORT=, ARGS='--set ...')
	@exec .venv/bin/octavo up $(if $(MODEL),'$(MODEL)') --replicas $(REPLICAS) --port $(PORT) --grpc-port $(GRPC_PORT) $(ARGS)

test: setup ## Run all tests of tests/, cheapest tier first
	@tools/test.sh

test-fast: setup ## Run the tests of pure logic, in less than a minute on two cores
	@tools/test.sh fast

e2e: setup ## Run the quick half of the tests on a real API server and a real node (the first run builds both in 20 minutes)
	@.venv/bin/python -m pytest -q e2e -p no:cacheprovider -m "not full" --durations=10 --durations-min=2 $(ARGS)

e2e-full: setup ## Run all of e2e/, with the tests that take minutes: pods, their failures, draining
	@.venv/bin/python -m pytest -q e2e -p no:cacheprovider --durations=20 --durations-min=2 $(ARGS)

kube: setup ## Start a Kubernetes API server with KubeRay and a fake node here, and print how to use it
	@.venv/bin/python -m octavo_testing.kube.cluster up

kube-down: ## Stop that API server and remove its files
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m octavo_testing.kube.cluster down; fi

node: setup ## Start a real Kubernetes node with KubeRay and both images here, and print how to use it (root, Linux)
	@.venv/bin/python -m octavo_testing.node up

node-down: ## Stop that node and remove its files
	@if [ -x .venv/bin/python ]; then .venv/bin/python -m octavo_testing.node down; fi

lint: setup ## Check style, types, the import rules and the prose
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@.venv/bin/python tools/prose.py

format: setup ## Format the code and sort the imports
	@.venv/bin/ruff check --select I --fix
	@.venv/bin/ruff format

proto: setup ## Generate the Python code of the protobuf files
	@tools/protoc.sh

lock: setup ## Resolve the dependencies again into requirements.lock
	@$$(command -v uv || echo .venv/uv/bin/uv) pip compile --quiet --no-header --no-emit-index-url --python-version 3.11 --extra dev pyproject.toml -o requirements.lock

clean: ## Remove .venv and all caches
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
