# make run | edit | test | test-all | check | class | precompute | site | bench | install | torch | cupy | cluster | lock | bare | clean        (PORT=2718, HEADLESS=1; NOTEBOOK=notebooks/claims.py first; site SITE=FOLDER; class PASSWORD_FILE=FILE, OPTIONS="--class-link"; test QUICK=1)
PORT ?= 2718
HEADLESS ?= 0
NOTEBOOK ?= mnist_training.py
SITE ?= site
VENV := .venv
BIN := $(VENV)/bin
# Servers, workers and tests start hundreds of processes. If the environment disabled bytecode files, each would compile this project.
export PYTHONDONTWRITEBYTECODE :=
# The first Python found from 3.11 to 3.13, which have TensorFlow, else a newer python3.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && exit; done; \
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo python3)
# With an NVIDIA driver, install the CUDA builds: those for CUDA 13 in .venv, and TensorFlow for CUDA 12 in a separate
# environment, because their files would overwrite each other.
CARD := $(shell nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)
REQUIREMENTS := $(if $(CARD),requirements-gpu.txt,requirements.txt)
INSTALLED_HERE := $(VENV)/.installed-$(REQUIREMENTS)
VENV_CUDA12 := .venv-cuda12
INSTALLED_CUDA12 := $(VENV_CUDA12)/.installed
INSTALLED := $(INSTALLED_HERE) $(if $(CARD),$(INSTALLED_CUDA12))
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: run edit class precompute site install torch cupy cluster test test-all check bench lock bare clean
.DEFAULT_GOAL := run

run: $(INSTALLED)
	@$(BIN)/python -m lib.cli.launch app --port $(PORT) --headless $(HEADLESS) --notebook $(NOTEBOOK)

edit: $(INSTALLED)
	@$(BIN)/python -m lib.cli.launch edit --port $(PORT) --headless $(HEADLESS) --notebook $(NOTEBOOK)

class: export PASSWORD_FILE := $(PASSWORD_FILE)
class: $(INSTALLED)
	@$(BIN)/python -m lib.cli.launch run --port $(PORT) --headless $(HEADLESS) --notebook $(NOTEBOOK) $(OPTIONS)

# MINUTES=60 limits the time. Trained results are stored, and the same command continues.
precompute: $(INSTALLED)
	@$(BIN)/python -m lib.cli.precompute $(if $(MINUTES),--minutes $(MINUTES))

# Writes all notebooks with their outputs as files, for a static host.
site: $(INSTALLED)
	@$(BIN)/python -m lib.cli.site $(SITE)

install: $(INSTALLED)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Expected Python 3.11 or newer, found none; install one, or call: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) could not make a virtual environment; on Debian or Ubuntu: apt install python3-venv"; exit 1; }

$(INSTALLED_HERE): $(REQUIREMENTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)
	@rm -f $(VENV)/.installed-requirements*; touch $@

$(INSTALLED_CUDA12): requirements-cuda12.txt $(INSTALLED_HERE)
	$(BIN)/python -m venv $(VENV_CUDA12)
	$(VENV_CUDA12)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-cuda12.txt
	@touch $@

# PyTorch is optional: on Linux it includes its own CUDA, 2 GB. With a card, PyTorch and CuPy are already installed.
torch: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(REQUIREMENTS) -r requirements-torch.txt

# CuPy is optional and needs an NVIDIA card.
cupy: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(REQUIREMENTS) -r requirements-cupy.txt

# Dask is optional, for sweeps on other machines.
cluster: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(REQUIREMENTS) -r requirements-cluster.txt

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# For contributors. QUICK=1 omits slow and browser tests; ONLY=images runs the tests that need images.
PYTEST := $(BIN)/python -m pytest -n 2 --no-loadscope-reorder
test: $(INSTALLED_DEV)
	$(PYTEST) -m "not release$(if $(QUICK), and not slow and not browser)$(if $(ONLY), and ($(ONLY)))"

# For releases. EIGHTH=3 runs the tests that `make test` omits, in every eighth file.
test-all: $(INSTALLED_DEV)
	@$(if $(EIGHTH),,echo "All tests take about 40 minutes on two cores.")
	$(PYTEST) --dist loadfile -m "" --hypothesis-profile release $(if $(EIGHTH),--eighth $(EIGHTH))

check: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/marimo check --strict --ignore-scripts mnist_training.py notebooks
	$(BIN)/python -m docs.house

# Installed for the benchmark `peers` or for all benchmarks. Each is installed separately, so that an unavailable one does not
# stop the others; the benchmark reports missing ones.
INSTALLED_PEERS := $(VENV)/.installed-peers
$(INSTALLED_PEERS): requirements-peers.txt $(INSTALLED)
	@xargs -n 1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(REQUIREMENTS) < requirements-peers.txt \
		&& touch $@ || echo "Some peers could not be installed; the benchmark runs without them."

bench: $(INSTALLED_DEV) $(if $(BENCH),$(if $(filter peers,$(BENCH)),$(INSTALLED_PEERS)),$(INSTALLED_PEERS))
	$(BIN)/python -m benchmarks $(BENCH)

# Each file serves Python 3.11 to 3.13, and omits index URLs.
LOCK := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 \
	--no-emit-index-url --no-annotate --no-header
lock: $(INSTALLED_DEV)
	$(LOCK) pyproject.toml --extra cpu -o requirements.txt
	$(LOCK) pyproject.toml requirements-torch.txt requirements-cupy.txt --extra cpu --extra gpu -c requirements.txt -o requirements-gpu.txt
	$(LOCK) --group cuda12 -c requirements.txt -o requirements-cuda12.txt
	$(LOCK) --group dev -c requirements.txt -o requirements-dev.txt

# Collects the wheels that a bare machine with a card lacks, and the images: see deploy/README.md.
BARE := .bare
BARE_PYTHON ?= 3.12
BARE_NAMES := absl-py cffi cloudpickle filelock h5py keras markdown-it-py mdurl msgspec namex numpy nvidia-ml-py \
	optree packaging platformdirs psutil pycparser pygments rich threadpoolctl wgpu
bare: $(INSTALLED)
	rm -rf $(BARE)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d $(BARE) \
		--python-version $(BARE_PYTHON) $(foreach tag,2_28 2_17 2_12 2_5,--platform manylinux_$(tag)_x86_64) \
		-c requirements-gpu.txt $(BARE_NAMES)
	cp "$${MNIST_NPZ:-$$($(BIN)/python -c 'from lib.cache_folder import cache_folder; print(cache_folder())')/mnist.npz}" $(BARE)/mnist.npz
	@test "$$(du -sm $(BARE) | cut -f1)" -le 64 || { echo "Expected at most 64 MiB in $(BARE), got $$(du -sm $(BARE) | cut -f1); bring less (BARE_NAMES)"; exit 1; }

clean:
	rm -rf $(VENV) $(VENV_CUDA12) $(BARE) benchmarks/out __marimo__ .pytest_cache .ruff_cache .hypothesis
