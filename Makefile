# make demo      see it work, on servers of its own
# make install   install it into .venv
# make test      run every test, on servers of its own
# make help      all targets

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MINUTES ?= 10
# How many tests run side by side, at most four: as many as there are cores. Each process has servers of its own.
SIDE_BY_SIDE ?= $(shell nproc 2>/dev/null || echo 2)
# What `check` compares with, and for how many seconds its tests may begin.
BASE ?= main
SECONDS ?= 90
STAMP := $(VENV)/.installed

.PHONY: help install demo check test soak lint types wheel bench java postgresql pgbouncer kafka chromium prometheus systemd docs docs-serve screenshots clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

install: $(STAMP) java ## Penstock and what it needs, into .venv

demo: $(STAMP) java ## copy between two embedded PostgreSQL servers, with one failure on purpose
	@$(BIN)/penstock demo

test: $(STAMP) java postgresql pgbouncer kafka chromium prometheus systemd ## run the test suite
	@$(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --maxprocesses 4 $(PYTEST_ARGS)

check: lint types java postgresql pgbouncer kafka chromium prometheus systemd ## before a commit: lint, types, and the tests of what changed since main
	@$(BIN)/python scripts/changed_tests.py --base $(BASE) --seconds $(SECONDS) $(PYTEST_ARGS)

soak: $(STAMP) java postgresql pgbouncer kafka chromium prometheus systemd ## the long tests, random histories, statements and values, then faults under load: make soak MINUTES=60
	@$(BIN)/python -m pytest -m soak --timeout 0 $(PYTEST_ARGS)
	@HYPOTHESIS_PROFILE=other $(BIN)/python -m pytest tests/properties tests/apply --timeout 0 $(PYTEST_ARGS)
	@$(BIN)/python -m tests.fuzz.ddl --minutes 10
	@$(BIN)/python -m tests.fuzz.types --minutes 10
	@$(BIN)/python -m tests.fuzz.events --minutes 10
	@$(BIN)/python -m tests.fuzz.histories --minutes 10
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK_ARGS)

lint: $(STAMP) ## ruff, codespell, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell && $(BIN)/lint-imports

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

wheel: $(STAMP) ## build the wheel, and install it and the commit as users do, in an environment of their own
	@scripts/check-wheel

bench: $(STAMP) java ## beside PostgreSQL's own replication: make bench WORKLOADS="mixed hot" ROUNDS=1
	@$(BIN)/python -m bench $(WORKLOADS) $(if $(ROUNDS),--rounds $(ROUNDS)) $(BENCH_ARGS)

docs: $(STAMP) ## build the documentation as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open site/index.html"

docs-serve: $(STAMP) ## show the documentation at http://127.0.0.1:8000, anew with each change of a page
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

screenshots: $(STAMP) java chromium ## make the pictures of the page for docs/web.md anew
	@$(BIN)/python scripts/screenshots.py

java:
	@scripts/ensure-java

postgresql:
	@scripts/ensure-postgresql

pgbouncer:
	@scripts/ensure-pgbouncer

chromium:
	@scripts/ensure-chromium

prometheus:
	@scripts/ensure-prometheus

systemd:
	@scripts/ensure-systemd

kafka: $(STAMP) java
	@$(BIN)/python -m tests.kafka.jars

$(STAMP): pyproject.toml scripts/make-venv
	@scripts/make-venv $(PYTHON) $(VENV)
	@touch $@

clean: ## remove what was installed here
	rm -rf $(VENV)
