# Every target sets itself up on a machine with python3.11+, pip, git and make; a second call reuses .venv.
PYTHON ?= python3
BIN := .venv/bin
# First and by its exact version: a bare `torch` drags in gigabytes on a machine without a GPU.
TORCH := torch==2.13.0

.PHONY: demo test test-claims test-avx2 quick lint docs screenshots five-minutes bench mutation external clean
.DELETE_ON_ERROR:

.venv/.base: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.test: .venv/.base
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

.venv/.docs: .venv/.base
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

.venv/.external: .venv/.test tests/external/requirements.txt tests/external/requirements-complete.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/external/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement tests/external/requirements-complete.txt
	@touch $@

demo: .venv/.base  ## compare attention mechanisms on real text; the report lands in demo/report.html
	$(BIN)/regard compare softmax 'local(window=32)' linear 'linear / softmax' --out demo --budget 5m

test: .venv/.test  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m 'not external and not study'

test-claims: .venv/.test  ## claims reach their controls, do not hold of something wrong, and do of something made for them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/claims -m study

test-avx2: .venv/.test  ## the conformance suite and its mutants, with the rounding of a processor without AVX-512
	OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
		$(BIN)/python -m pytest --numprocesses 2 --dist worksteal \
		tests/test_conformance.py tests/test_mutants.py tests/test_conditioning.py

quick: .venv/.test  ## the tests without the conformance suite, mutants and installs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m 'not external and not study and not install' \
		--ignore tests/test_conformance.py --ignore tests/test_mutants.py

external: .venv/.external  ## published packages agree
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 REGARD_REQUIRE_EXTERNAL=1 $(BIN)/python -m pytest tests/external -m external

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/.docs  ## docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/built.py docs/_build/html

screenshots: .venv/.test docs  ## docs/_build/screenshots: main pages and reports, wide and narrow, without a network
	$(BIN)/python -m docs.screenshots docs/_build/html docs/_build/screenshots

five-minutes: .venv/.external  ## what a newcomer does first, from a wheel in an environment of its own; prints the time
	$(BIN)/python -m tests.install.first_five_minutes

bench: .venv/.base  ## recorded, never asserted; see LOG.md
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/regard claims all --out runs/claims

mutation: .venv/.test  ## mechanical mutants of every mechanism; records the survivors
	$(BIN)/python -m tests.mutants.mechanical --tests 'tests/attention/{family}/test_{name}.py' --record

clean:
	rm -rf .venv docs/_build docs/generated build dist
