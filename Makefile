# `make` lists the verbs. Each of them first updates .venv (contrib/bootstrap names what it installs).
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint types unit oracles faults any-input fuzz browser screenshots shim integrations slurm gpu campaign fake-campaigns soak slow-clients test-kills test-forks test-docker bench docs clean python cluster docker-campaign

BIN := .venv/bin
PYTEST := $(BIN)/pytest -q -n 2
TESTS := lint types docs unit oracles faults browser shim integrations slurm
KILLS ?= 200
ROUNDS ?= 500
SECONDS ?= 180
SEED ?= 1
PLAIN ?=
CAMPAIGNS ?= 2000
HOURS ?= 24
CLUSTERS ?= 10000
EPOCHS ?= 1000
EXAMPLES ?= 200
INPUTS ?= 100000
SLURM ?= 22.05
SUBSET ?=

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: cluster ## real training jobs preempted, resized and finished, on a private Slurm cluster on this host
	$(BIN)/metasched demo

test: ## everything that must pass: the ten below, all of them even if one fails
	@failed=; for verb in $(TESTS); do begun=$$(date +%s); \
	$(MAKE) --no-print-directory $$verb || failed="$$failed $$verb"; \
	echo "make $$verb: $$(($$(date +%s) - begun)) s"; done; \
	if [ -n "$$failed" ]; then echo "make test: failed:$$failed"; exit 1; fi; echo "make test: passed: $(TESTS)"

lint: python ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: python ## mypy, strict
	$(BIN)/mypy

docs: python ## the documentation: the site in build/site, the man pages in build/man
	$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees -c docs/site . build/site
	$(BIN)/python docs/site/man_pages.py build/man

unit: python ## tests without Slurm and without process groups
	$(PYTEST) tests/unit

oracles: python ## EXAMPLES=200 random instances of each policy against independent programs; 5000 take an hour
	ORACLE_EXAMPLES=$(EXAMPLES) $(PYTEST) --timeout 0 tests/oracles

faults: python ## losses of power, and some campaigns of faults on a fake Slurm
	$(PYTEST) tests/campaign

browser: ## tests of the web page in Chromium (installs it where it is missing)
	@contrib/bootstrap browser
	$(PYTEST) --dist loadscope tests/browser

screenshots: python ## docs/images/web-*.webp of the web page, from a generated site
	@contrib/bootstrap browser
	$(BIN)/python -m tests.browser.screenshots

shim: python ## tests with real torch.distributed processes
	$(PYTEST) --dist loadscope tests/shim

integrations: python ## tests of the shim inside PyTorch Lightning, the Hugging Face Trainer and Accelerate
	$(PYTEST) --dist loadgroup tests/integrations

slurm: cluster ## tests on a private Slurm cluster on this host, one of them in Chromium
	@contrib/bootstrap browser
	$(PYTEST) --dist loadfile tests/slurm

gpu: python ## tests of the shim on a GPU, where there is one; not part of `make test`
	$(PYTEST) tests/gpu

any-input: python ## CLUSTERS=10000 random clusters, each decided by every policy; `make oracles` has 200
	HYPOTHESIS_PROFILE=thorough ANY_INPUT_EXAMPLES=$(CLUSTERS) $(BIN)/pytest -q tests/oracles/test_any_input.py

slow-clients: python ## ROUNDS=500 rounds beside a crowded, stopped and killed web page; `make unit` has 12
	ROUNDS=$(ROUNDS) $(BIN)/pytest -q tests/unit/web/test_slow_clients.py

fuzz: python ## INPUTS=100000 hostile inputs for each parser, guided by coverage (installs atheris)
	$(BIN)/pip install --quiet --no-deps atheris==3.0.0
	$(BIN)/python -m tests.fuzz --runs $(INPUTS)

campaign: cluster ## SECONDS=180 SEED=1 [PLAIN=yes]: random faults of daemon, Slurm, nodes and trainers on a private Slurm
	$(BIN)/python -m tests.campaign --seconds $(SECONDS) --seed $(SEED) $(if $(PLAIN),--plain)

docker-campaign: python ## SECONDS=180 SEED=1 SLURM=22.05: random faults of hosts on a cluster of several hosts in containers
	CAMPAIGN_SECONDS=$(SECONDS) CAMPAIGN_SEED=$(SEED) contrib/docker/cluster test $(SLURM) -k test_a_campaign_of_faults_of_hosts

fake-campaigns: python ## CAMPAIGNS=2000 SEED=1 campaigns on a fake Slurm with faults, and a simulated clock
	$(BIN)/python -m tests.campaign.simulated --campaigns $(CAMPAIGNS) --seed $(SEED)

soak: python ## HOURS=24 of a simulated clock in which thousands of jobs come and go: memory, files and store must not grow
	$(BIN)/python -m tests.soak --hours $(HOURS)

test-kills: python ## KILLS=200 random kills of one training's ranks, without Slurm; the training must stay whole
	$(BIN)/python -m tests.kills --kills $(KILLS)

test-forks: python ## EPOCHS=1000 of two ranks whose loader workers are forked in each, on a busy host; nothing may hang
	$(BIN)/python -m tests.shim.fork_epochs --epochs $(EPOCHS)

test-docker: python ## SLURM=22.05|24.11|26.05 [SUBSET=bounded]: tests on a cluster of several hosts in containers, which is removed afterwards
	contrib/docker/cluster test $(SLURM) $(if $(SUBSET),-m $(SUBSET))

bench: ## which benchmarks there are, and how to run them
	@cat docs/researcher/BENCHMARKS.md

clean: ## remove .venv and everything else that was made here
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@contrib/bootstrap

cluster:
	@contrib/bootstrap slurm
