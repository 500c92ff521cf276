# Every target sets itself up on a machine with python3.11+, pip, git and make; a second call reuses .venv.
PYTHON ?= python3
BIN := .venv/bin
# First and by its exact version: a bare `torch` drags in gigabytes on a machine without a GPU.
TORCH := torch==2.13.0

# What `make test` runs; what it leaves out has targets of its own, which .ci/run calls.
MAIN := not external and not study and not processes and not mutants and not avx2

.PHONY: demo test record full test-cuda test-lowest test-highest sbom licences test-mutants test-claims test-processes test-avx2 quick lint docs screenshots five-minutes \
	bench campaign campaign-short external clean
.DELETE_ON_ERROR:

.venv/.base: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[lab]'
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
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m '$(MAIN)'

# These stages leave out the tests for which nothing changed since `make record` wrote tests/passed.json.
CHANGED := -m pytest -p tests.unchanged --numprocesses 2 --dist worksteal

test-mutants: .venv/.test  ## what is broken on purpose is noticed: mechanisms, parts, lines of code, guests of the campaign
	OMP_NUM_THREADS=1 $(BIN)/python $(CHANGED) -m mutants \
		$$(grep -rl --include='*.py' mark.mutants tests)

test-claims: .venv/.test  ## claims reach their controls and fall with something wrong
	OMP_NUM_THREADS=1 $(BIN)/python $(CHANGED) tests/claims -m study

record: export REGARD_RECORD = 1
record: export PYTEST_TIMEOUT = 1800
record: test-mutants test-claims test-avx2 external  ## run what changed of these, and write tests/passed.json; commit it

full: export REGARD_ALL = 1
full:  ## all that .ci/run runs, with nothing left out
	.ci/run

test-processes: .venv/.test  ## several processes train together: replicas, sequences
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/distributed -m processes

test-cuda:  ## what needs a CUDA device, with the python that has torch for it and the packages of the test extra
	OMP_NUM_THREADS=1 PYTHONPATH=src:$(PYTHONPATH) $(PYTHON) -m pytest --numprocesses 4 --dist worksteal tests/gpu
	OMP_NUM_THREADS=1 PYTHONPATH=src:$(PYTHONPATH) $(PYTHON) -m pytest tests/external/test_triton.py

test-avx2: export ATEN_CPU_CAPABILITY = avx2
test-avx2: export MKL_ENABLE_INSTRUCTIONS = AVX2
test-avx2: export ONEDNN_MAX_CPU_ISA = AVX2
test-avx2: .venv/.test  ## the checks of mechanisms that round, as on a processor without AVX-512
	OMP_NUM_THREADS=1 $(BIN)/python $(CHANGED) tests/test_conformance.py -m avx2
	OMP_NUM_THREADS=1 $(BIN)/python $(CHANGED) tests/test_conditioning.py

# Every dependency but torch at its lowest declared or its highest version. Other builds of torch bring gigabytes of CUDA,
# so it is TORCH here too, unless TORCH_VERSION says another: the lowest declared one is 2.11.0.
# VERSION_TESTS chooses tests, such as tests/training; without it they are those of `make test`.
VERSION_TESTS ?=
.venv-%/.done: pyproject.toml
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet uv $(if $(TORCH_VERSION),torch==$(TORCH_VERSION),$(TORCH))
	echo "torch; sys_platform == 'never'" > .venv-$*/overrides.txt
	.venv-$*/bin/uv pip compile --quiet pyproject.toml --extra test --extra lab --extra pretrained --override .venv-$*/overrides.txt \
		--python .venv-$*/bin/python --resolution $(if $(filter lowest,$*),lowest-direct,highest) --output-file .venv-$*/pins.txt
	.venv-$*/bin/python -m pip install --quiet --requirement .venv-$*/pins.txt
	.venv-$*/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

test-lowest test-highest: test-%: .venv-%/.done  ## the suite (or VERSION_TESTS of it) with the lowest or highest versions
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest --numprocesses 2 --dist worksteal -m '$(MAIN)' $(VERSION_TESTS)

.venv-sbom/.done: pyproject.toml
	$(PYTHON) -m venv .venv-sbom
	.venv-sbom/bin/python -m pip install --quiet $(TORCH)
	.venv-sbom/bin/python -m pip install --quiet '.[lab,log,pretrained,knn,metrics,parquet]' packaging
	@touch $@

sbom: .venv/.base .venv-sbom/.done  ## sbom.json: what an installation with every extra consists of, as CycloneDX
	$(BIN)/python -m pip install --quiet 'cyclonedx-bom>=7,<8'
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-format JSON \
		--output-file sbom.json .venv-sbom/bin/python

licences: .venv-sbom/.done  ## docs/recorded/licences.json, from what is installed; fails if one is not allowed
	.venv-sbom/bin/python docs/licences.py

quick: .venv/.test  ## the tests without the conformance suite, mutants and installs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m '$(MAIN) and not install' \
		--ignore tests/test_conformance.py --ignore tests/test_mutants.py

external: .venv/.external  ## published packages agree
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 REGARD_REQUIRE_EXTERNAL=1 $(BIN)/python $(CHANGED) tests/external -m external

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/.docs  ## docs/_build/html
	$(BIN)/python -m sphinx -E -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/built.py docs/_build/html

screenshots: .venv/.test docs  ## docs/_build/screenshots: main pages and reports, wide and narrow, without a network
	$(BIN)/python -m docs.screenshots docs/_build/html docs/_build/screenshots

five-minutes: .venv/.external  ## what a newcomer does first, from a wheel in an environment of its own; prints the time
	$(BIN)/python -m tests.install.first_five_minutes

bench: .venv/.base  ## measures speed and claims, asserts nothing; LOG.md has the figures
	for script in evidence/benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done
	$(BIN)/python -m evidence.claims all --out runs/claims

campaign: .venv/.test  ## attacks the library; goes on behind docs/recorded/reliability.jsonl, writes docs/reliability.md
	PYTHONPATH=src $(BIN)/python -m evidence.campaign

campaign-short: .venv/.test  ## a little of every part with new seeds, in less than two minutes; writes nothing
	PYTHONPATH=src $(BIN)/python -m evidence.campaign --short

clean:
	rm -rf .venv .venv-lowest .venv-highest .venv-sbom sbom.json docs/_build docs/generated build dist
