# `make lab` opens the first lesson, `make test` checks everything. Both need only Python 3.11 to 3.13 and make.
# Another Python: `make lab PYTHON=python3.12`. Another environment folder: `make lab VENV=/tmp/venv`.

include lab.mk

TOOLS := $(VENV)/.tools
comma := ,
NODE_STAMP := node_modules/.installed
LAYOUT := build/layout
SOURCES := $(wildcard notebooks/source/*.md)

.PHONY: test lint style types imports notebooks pages images bench performance kill-matrix clean help
.DEFAULT_GOAL := help

help:
	@echo "make lab        open your copy of lesson $(LESSON) in JupyterLab (LESSON=00 PORT=8888)"
	@echo "make test       lint, types, import directions, all tests"
	@echo "make lint       style, types, import directions"
	@echo "make notebooks  rebuild notebooks/*.ipynb from notebooks/source/*.md"
	@echo "make pages      write the lessons to build/pages, as pages that need no kernel and no network"
	@echo "make images     retake the pictures in docs/images, and remake docs/scenes.md"
	@echo "make bench      measure the host side on this machine; writes docs/performance-host.md"
	@echo "make performance  remake docs/performance.md from what pagedlab bench kernels wrote on a GPU"
	@echo "make kill-matrix  remake docs/exercise-kill-matrix.md: what the exercises catch"
	@echo "make clean      remove the environment, builds and caches"

# --- the tools ------------------------------------------------------------------------------------------------------

$(TOOLS): pyproject.toml constraints.txt
	$(call install,lab$(comma)test$(comma)docs)
	@touch $(STAMP)

# --- the two commands (lab.mk has the other) ------------------------------------------------------------------

# The player's tests run in JavaScript. Node comes with the tools above; what it needs, exactly, is in package-lock.json.
$(NODE_STAMP): package.json package-lock.json $(TOOLS)
	@PATH="$(abspath $(BIN)):$$PATH" npm ci --silent && touch $@ \
	    || { echo "npm could not install what the player's own tests need: they will be skipped, or fail in CI." >&2; test -z "$$CI"; }

test: $(TOOLS) $(NODE_STAMP)
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# --- one check each --------------------------------------------------------------------------------------------

lint: style types imports

style: $(TOOLS)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check . ; echo "To format: $(BIN)/ruff format ." >&2; exit 1; }
	@echo "style    ok"

# mypy and import-linter see the package as it will be installed (with pagedlab.kernels in its place).
$(LAYOUT): FORCE $(TOOLS)
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

notebooks: $(TOOLS)
	@$(BIN)/python notebooks/source/build.py

pages: $(TOOLS)
	@$(BIN)/pagedlab pages --to build/pages

images: $(TOOLS)
	@$(BIN)/python -m pytest tests/browser --update-images $(PYTEST_ARGS)
	@$(BIN)/python docs/build_scenes.py

bench: $(TOOLS)
	@$(BIN)/pagedlab bench host --page docs/performance-host.md

performance: $(TOOLS)
	@$(BIN)/python docs/build_performance.py

kill-matrix: $(TOOLS)
	@$(BIN)/python docs/build_kill_matrix.py

clean:
	rm -rf $(VENV) node_modules build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache tests/output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
