# Both README commands, `make demo` and `make test`, set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo check test test-long durations docs dist lint format bench bench-gpu clean

demo: $(READY)
	$(BIN)/ucfl compare rotated-mnist --algorithms fedavg,local,oracle,user-centric:streams=auto \
		--rounds 15 --out runs/demo --fresh
	$(BIN)/ucfl report runs/demo

# In as many processes as there are cores, each with one thread of PyTorch's: more would wait for
# each other. Tests of threads ask for them, and those that wait sleep: they would take the cores
# from the threads that they wait for.
THREADS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

test: lint
	$(THREADS) $(BIN)/pytest -m "not long" -n auto

# The fast tier, for while one works: see tests/tiers.py.
check: lint
	$(THREADS) $(BIN)/pytest -m "not long" --fast -n auto

test-long: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -m long

# Measures every test, so that `make check` knows which are fast.
durations: $(READY)
	$(THREADS) $(BIN)/pytest -m "not long" --measure -n auto

# The site, in build/site; a warning is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in build/site; with search: $(BIN)/python -m http.server -d build/site"

# A wheel and a source distribution, in dist.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/engine.py cpu
	$(BIN)/python benchmarks/scale.py cpu
	$(BIN)/python benchmarks/chunks.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/page.py

# On a machine with a GPU, with EMNIST in UCFL_DATA; `PYTHON` has PyTorch for it.
bench-gpu:
	$(PYTHON) benchmarks/engine.py gpu 3
	$(PYTHON) benchmarks/scale.py gpu
	$(PYTHON) benchmarks/whole_run.py cuda 300
	$(PYTHON) benchmarks/precision.py cuda emnist-label-shift 100 3

# constraints.txt pins torch: left free, it pulls several gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs/demo
