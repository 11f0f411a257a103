# The environment and `make lab`: the Makefile includes this, and a student's copy (pagedlab release) is this.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; print("$(p)" if (3, 11) <= sys.version_info < (3, 14) else "")' 2>/dev/null)))
VENV ?= .venv
LESSON ?= 00
PORT ?= 8888

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: lab
.DEFAULT_GOAL := lab

# --- the environment ----------------------------------------------------------------------------------------

# Install these extras, into an environment that is made if there is none.
define install
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
    || { echo "pagedlab needs Python 3.11, 3.12 or 3.13. Say where it is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
@test -x $(BIN)/python || { echo "Making the environment $(VENV) with $$($(PYTHON) --version) ..."; \
    $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed: on Debian and Ubuntu, apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }; }
@echo "Installing pagedlab and its tools (once; it downloads torch) ..."
@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    $(BIN)/python -m pip install --quiet --no-compile --editable ".[$(1)]"
@touch $@
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,lab)

lab: $(STAMP)
	@$(BIN)/pagedlab lab $(LESSON) --port $(PORT) $(LAB_ARGS)
