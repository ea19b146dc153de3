# What can be done here; `make` alone lists it. Needs Python 3.11 or newer, make and git; everything else is installed into .venv.
#
# PYTHON chooses the interpreter, as in `make setup PYTHON=python3.12`; PYTEST_ARGS adds to `make test` and `make e2e`,
# BENCH_ARGS to `make bench`, CLUSTER_ARGS to `make cluster`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
CLUSTER_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
EXAMPLE := examples/01-ppo-cartpole.yaml

# Versions are pinned, those of the tools that build the package included. Certificates are the system's, as for pip.
INSTALL := $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --constraints constraints.txt --build-constraints constraints.txt

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.installed-dev ## Install the project with all that its tests need into .venv

.PHONY: demo
demo: $(VENV)/.installed-runtime ## Train PPO on CartPole from its manifest; a newcomer's first command
	$(BIN)/rljob run $(EXAMPLE)

.PHONY: check
check: setup ## Run what CI runs first: lint, types, import rules, generated files, links in the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/rljob crd --check crds/rljob.io_rljobs.yaml
	$(BIN)/rljob crd --check charts/rljob/files/crd.yaml
	$(BIN)/python tools/chart_values.py --check
	$(BIN)/rljob schema --format markdown --check docs/manifest.md
	$(BIN)/rljob validate examples/*.yaml
	$(BIN)/python -m monitoring --check
	$(BIN)/python tools/check_docs.py
	$(BIN)/python tools/build_site.py

.PHONY: test
test: setup ## Run the tests, a real Kubernetes API server included, but not whole jobs (e2e), nor those that need a GPU
	$(BIN)/pytest -m "not e2e and not gpu" -n 2 --cov $(PYTEST_ARGS)

# How soon a job runs is seen with nothing else running.
FIRST_JOBS := tests/e2e/test_jobs_on_a_node.py

.PHONY: e2e
e2e: setup ## Run whole jobs, from the command line and, as root, on real nodes; RLJOB_E2E=required fails where it would skip
	@# Pods read this environment and can't write into it: what they import is compiled before. Some packages hold files of other Pythons.
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib rlruntime > /dev/null
	$(BIN)/pytest -m e2e $(FIRST_JOBS) $(PYTEST_ARGS)
	@# Most of these wait more than they compute.
	$(BIN)/pytest -m e2e -n 3 --dist loadfile --ignore=$(FIRST_JOBS) $(PYTEST_ARGS)

.PHONY: programs
programs: ## Build the programs of the tests' clusters, which tests otherwise do: ten minutes, once for each version
	$(PYTHON) tests/cluster/build.py

.PHONY: cluster
cluster: setup ## Start a Kubernetes on this machine, print its KUBECONFIG, end it on Ctrl-C; CLUSTER_ARGS=--help says more
	$(BIN)/python tests/cluster/start.py $(CLUSTER_ARGS)

PEERS := .cache/peers

.PHONY: bench
bench: setup $(PEERS)/.installed ## Measure RLJob beside Stable-Baselines3, sbx and TorchRL; 35 minutes; BENCH_ARGS="--rounds 1" for less
	$(BIN)/python benchmarks/compare.py --peers-python $(PEERS)/bin/python $(BENCH_ARGS)

.PHONY: bench-replay
bench-replay: setup $(PEERS)/.installed ## Measure replay buffers beside those of TorchRL, Stable-Baselines3 and cpprb; 10 minutes
	$(BIN)/python benchmarks/replay/compare.py --peers-python $(PEERS)/bin/python $(BENCH_ARGS)

.PHONY: bench-collectors
bench-collectors: setup ## Measure collectors with environments of even and uneven speed; 6 minutes
	$(BIN)/python benchmarks/collectors.py $(BENCH_ARGS)

.PHONY: bench-learning
bench-learning: setup $(PEERS)/.installed ## Record the learning curves that are missing, hours of work, and draw docs/images/learning.svg
	$(BIN)/python benchmarks/learning/record.py --peers-python $(PEERS)/bin/python $(BENCH_ARGS)
	$(BIN)/python benchmarks/learning/compare.py docs/images/learning.svg

.PHONY: format
format: setup ## Format the code, and repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench-operator
bench-operator: setup ## Measure the operator beside KubeRay, the training operator and a bare client; 20 minutes; BENCH_ARGS="--rounds 1" for less
	$(BIN)/python benchmarks/operator/compare.py $(BENCH_ARGS)

.PHONY: crds
crds: setup ## Write crds/, and the chart's copy, anew from the models
	$(BIN)/rljob crd --output crds/rljob.io_rljobs.yaml
	$(BIN)/rljob crd --output charts/rljob/files/crd.yaml

.PHONY: chart
chart: setup ## Write the page and the schema of the chart's values anew from the comments in its values.yaml
	$(BIN)/python tools/chart_values.py

HELM ?= helm

.PHONY: manifests
manifests: setup ## Write deploy/ anew from the chart; HELM names the program
	$(BIN)/python tools/render_deploy.py --helm $(HELM)

.PHONY: docs
docs: setup ## Write docs/manifest.md anew from the models
	$(BIN)/rljob schema --format markdown --output docs/manifest.md

.PHONY: docs-site
docs-site: setup ## Build the documentation site into build/site
	$(BIN)/python tools/build_site.py

.PHONY: top-picture
top-picture: setup ## Draw docs/images/top.svg: rljob top with a played set of jobs
	$(BIN)/python tools/draw_top.py docs/images/top.svg

.PHONY: dashboards
dashboards: setup ## Write dashboards, alerts and docs/metrics.md anew from the code
	$(BIN)/python -m monitoring

.PHONY: dashboard-pictures
dashboard-pictures: setup ## Run jobs on a real node beside a Prometheus, as root, and draw the dashboards into docs; 10 minutes
	$(BIN)/python tests/cluster/pictures.py

.PHONY: picture
picture: setup ## Train the first example and draw docs/images/ppo-cartpole.svg from that run
	rm -rf build/picture
	$(BIN)/rljob run $(EXAMPLE) -o training.evaluation.everyFrames=5000 -o training.evaluation.stopAtReward=null --out build/picture
	$(BIN)/python tools/draw_run.py build/picture docs/images/ppo-cartpole.svg

.PHONY: constraints
constraints: setup ## Pin in constraints.txt what pyproject.toml asks for; UPGRADE=1 takes the newest versions
	$(BIN)/python tools/pin.py $(if $(UPGRADE),--upgrade)

.PHONY: clean
clean: ## Remove .venv and all that tools left; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PEERS)/.installed: benchmarks/peers.txt $(VENV)/.created
	$(PYTHON) -m venv $(PEERS)
	$(BIN)/uv pip install --quiet --system-certs --python $(PEERS)/bin/python --requirement benchmarks/peers.txt
	touch $@

# A stamp is as old as the last installation: what is newer than it makes it anew.

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/.created
	$(INSTALL) --editable '.[dev]'
	touch $(VENV)/.installed-runtime $@

$(VENV)/.installed-runtime: pyproject.toml constraints.txt $(VENV)/.created
	@echo "Installing rljob[runtime] into $(VENV): a few minutes, most of them for PyTorch"
	$(INSTALL) --editable '.[runtime]'
	touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing), but Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	touch $@
