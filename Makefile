# `make lab` opens the first lesson, `make test` checks everything. Both need only Python 3.11 to 3.13 and make.
# Another Python: `make lab PYTHON=python3.12`. Another environment folder: `make lab VENV=/tmp/venv`.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; print("$(p)" if (3, 11) <= sys.version_info < (3, 14) else "")' 2>/dev/null)))
VENV ?= .venv
LESSON ?= 00
PORT ?= 8888

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LAYOUT := build/layout
SOURCES := $(wildcard notebooks/source/*.md)

.PHONY: lab test lint style types imports notebooks images bench performance kill-matrix clean help
.DEFAULT_GOAL := help

help:
	@echo "make lab        open your copy of lesson $(LESSON) in JupyterLab (LESSON=00 PORT=8888)"
	@echo "make test       lint, types, import directions, all tests"
	@echo "make lint       style, types, import directions"
	@echo "make notebooks  rebuild notebooks/*.ipynb from notebooks/source/*.md"
	@echo "make images     retake the pictures in docs/images, and remake docs/scenes.md"
	@echo "make bench      measure the host side on this machine; writes docs/performance-host.md"
	@echo "make performance  remake docs/performance.md from what pagedlab bench kernels wrote on a GPU"
	@echo "make kill-matrix  remake docs/exercise-kill-matrix.md: what the exercises catch"
	@echo "make clean      remove the environment, builds and caches"

# --- the environment ----------------------------------------------------------------------------------------

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	    || { echo "pagedlab needs Python 3.11, 3.12 or 3.13. Say where it is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making the environment $(VENV) with $$($(PYTHON) --version) ..."; \
	    $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed: on Debian and Ubuntu, apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }; }
	@echo "Installing pagedlab and its tools (once; it downloads torch) ..."
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	    $(BIN)/python -m pip install --quiet --editable ".[lab,test,docs]"
	@touch $@

# --- the two commands ----------------------------------------------------------------------------------------

lab: $(STAMP)
	@$(BIN)/pagedlab lab $(LESSON) --port $(PORT) $(LAB_ARGS)

test: $(STAMP)
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile $(PYTEST_ARGS)

# --- one check each --------------------------------------------------------------------------------------------

lint: style types imports

style: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check . ; echo "To format: $(BIN)/ruff format ." >&2; exit 1; }
	@echo "style    ok"

# mypy and import-linter see the package as it will be installed (with pagedlab.kernels in its place).
$(LAYOUT): FORCE $(STAMP)
	@rm -rf $(LAYOUT) && mkdir -p build
	@$(BIN)/python -c 'import setuptools; setuptools.setup()' -q build_py --build-lib $(LAYOUT) >build/layout.log 2>&1 \
	    || { cat build/layout.log >&2; exit 1; }
FORCE:

types: $(LAYOUT)
	@cd $(LAYOUT) && MYPYPATH=. $(abspath $(BIN))/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p pagedlab >../types.log 2>&1 \
	    || { sed -e 's#^pagedlab/kernels/#kernels/#' ../types.log >&2; exit 1; }
	@echo "types    ok"

imports: $(LAYOUT)
	@cd $(LAYOUT) && $(abspath $(BIN))/lint-imports ../../pyproject.toml --cache-dir ../../.import_linter_cache >../imports.log 2>&1 \
	    || { cat ../imports.log >&2; exit 1; }
	@echo "imports  ok"

# --- what is built ----------------------------------------------------------------------------------------------

notebooks: $(STAMP)
	@$(BIN)/python notebooks/source/build.py

images: $(STAMP)
	@$(BIN)/python -m pytest tests/browser --update-images $(PYTEST_ARGS)
	@$(BIN)/python docs/build_scenes.py

bench: $(STAMP)
	@$(BIN)/pagedlab bench host --page docs/performance-host.md

performance: $(STAMP)
	@$(BIN)/python docs/build_performance.py

kill-matrix: $(STAMP)
	@$(BIN)/python docs/build_kill_matrix.py

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache tests/output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
