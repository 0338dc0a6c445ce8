# make demo   a real campaign on what hardware there is, then its report
# make test   the whole test suite
# make lint   ruff and pyright
#
# PYTHON=…      the interpreter (3.11 to 3.13)
# VENV=…        where the environment goes
# VENV_ARGS=--system-site-packages   on a ROCm or CUDA machine: use the torch and triton that are installed there
PYTHON ?= python3
VENV ?= .venv
VENV_ARGS ?=
JOBS ?= auto
DEMO_OP ?= gemm
# The CPU set-up is pinned; an existing GPU torch is left as it is.
CONSTRAINTS := $(if $(findstring system-site-packages,$(VENV_ARGS)),,-c constraints/cpu.txt)
BIN := $(VENV)/bin

.PHONY: demo test lint venv clean
.DEFAULT_GOAL := venv

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints/cpu.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_ARGS) $(VENV)
	@echo "installing into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[dev]"
	@touch $@

demo: venv
	@$(BIN)/turbo-opt start --op $(DEMO_OP) --backend TRITON --max-rounds 5 --max-duration 20m --yes

test: venv
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: venv
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
