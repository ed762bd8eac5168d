# `make` says what there is. Needs Python >= 3.11, make and git; the rest goes into .venv.

SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help install demo report test test-slow test-all test-cpus lint format constraints clean

help: ## list the targets
	@echo "posbench: make <target>"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

install: .venv/.runtime ## install posbench and what it needs into .venv

demo: .venv/.runtime ## train and compare nine encodings, in minutes
	@$(BIN)/posbench train -m experiment=demo

report: .venv/.runtime ## compare the runs in outputs/
	@$(BIN)/posbench report

test: .venv/.dev ## run the tests, in minutes (ARGS='-k alibi' for some of them)
	@$(PYTEST) -m 'not slow and not long' $(ARGS)

test-slow: .venv/.dev ## the tests that take longer
	@$(PYTEST) -m 'slow and not long' $(ARGS)

test-all: .venv/.dev ## all tests, those of an hour too
	@$(PYTEST) $(ARGS)

test-cpus: .venv/.dev ## numbers as other processors round them (ARGS='--only sse-float32-1')
	@$(BIN)/python scripts/test_cpus.py $(ARGS)

lint: .venv/.dev ## check style, format, types and the order of the rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache

format: .venv/.dev ## put the code into its format
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

constraints: .venv/.dev ## remake constraints.txt: the newest of everything but torch
	@echo "resolving in build/constraints (minutes) ..."
	@rm -rf build/constraints && mkdir -p build && grep '^torch==' constraints.txt > build/torch.txt
	@$(BIN)/python -m venv build/constraints
	@build/constraints/bin/python -m pip --disable-pip-version-check --no-input install -q \
		-c build/torch.txt '.[dev,china_law,oracles,ray,sympy]'
	@{ sed '/^[^#]/,$$d' constraints.txt; build/constraints/bin/python -m pip freeze --all \
		--exclude pip --exclude posbench | sed 's/^\(torch==[^+]*\)+.*/\1/'; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints build/torch.txt

clean: ## remove caches and build files; .venv and outputs/ stay
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	@find . -name .venv -prune -o -name __pycache__ -prune -exec rm -rf {} +

# Installing, in order: a stamp is written last. While .venv/.unfinished is there, a package may
# be half there and pip would not notice, so the next make starts .venv afresh. pip compiles on one
# core, so Python does it afterwards on all (some files of torch need a newer Python: never mind).
define INSTALL
@if test -e .venv/.unfinished; then \
	echo "the last installation did not finish: starting again"; rm -rf .venv; fi
@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "posbench needs Python 3.11 or newer, '$(PYTHON)' is not: make PYTHON=..." >&2; exit 1; }; \
	echo "creating .venv with $$($(PYTHON) --version)"; \
	$(PYTHON) -m venv --clear .venv; }
@echo "installing $(1) into .venv: a minute or two, 1.4 GB"
@touch .venv/.unfinished
@set -o pipefail; $(PIP) install --no-compile -c constraints.txt -e '$(1)' 2>&1 \
	| tee .venv/install.log | sed -un \
		-e 's/^Collecting \([^ ]*\).*/  collecting \1/p' \
		-e 's|^Processing .*/\([^/-]*\)-.*|  collecting \1|p' \
		-e 's/^Installing collected.*/  unpacking/p' \
	|| { tail -n 20 .venv/install.log >&2; \
		grep -q '^Installing collected' .venv/install.log || rm .venv/.unfinished; exit 1; }
@echo "  compiling"
@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
@rm .venv/.unfinished
endef

.venv/.runtime: pyproject.toml constraints.txt
	$(call INSTALL,.)
	@touch $@

.venv/.dev: pyproject.toml constraints.txt
	$(call INSTALL,.[dev])
	@touch .venv/.runtime $@
