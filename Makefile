# Sets everything up in .venv, builds, and runs. Needs python3 (3.10 or newer, with venv), a C++17
# compiler and make; the rest comes from pip. `make help` lists the targets.

# The interpreter that .venv is made of.
PYTHON ?= python3
# More settings for CMake, such as CMAKE_ARGS=-DDSV4_CUDA=OFF.
CMAKE_ARGS ?=
PYTEST_ARGS ?=
# GPU engines to test in the simulator: names, separated by commas, or "all". Empty: every case once
# for each engine of the library.
SIM_ENGINES ?=

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CUDA_REQUIREMENT := cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.2
# All that builds into python/dsv4 shares its settings, so that no target undoes another's build.
NATIVE_ARGS := -DDSV4_TESTS=ON $(CMAKE_ARGS)

.PHONY: help demo test simtest ptxas bench wheel lint format sanitize clean build native
.DEFAULT_GOAL := help

help:  ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# --- What people run --------------------------------------------------------------------------------

demo: build  ## Set up, build, and decode on what this machine has
	@$(BIN)/python -m dsv4 demo

test: build  ## Set up, build, and run all tests; PYTEST_ARGS=... goes to pytest
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
	@$(SIMULATED_TESTS)

simtest: build  ## Run the tests of engines on simulated GPUs; SIM_ENGINES=sim-sm120 chooses
	@$(SIMULATED_TESTS)

# Where there is no CUDA compiler, nothing can be simulated.
define SIMULATED_TESTS
if grep -qs dsv4_simulated build/native/build.ninja; then \
  DSV4_LIBRARY_DIR=build/native/simulated \
    $(BIN)/python -m pytest --engines='$(SIM_ENGINES)' $(PYTEST_ARGS); \
else \
  echo "no tests on simulated GPUs: this build has no GPU engines"; \
fi
endef

ptxas: build  ## Registers of each kernel; fails if one spills them
	@$(BIN)/python csrc/cmake/ptxas_table.py build/native

bench: build  ## Set up, build, and run the benchmarks
	@$(BIN)/python benchmarks/bench_import.py
	@$(BIN)/python benchmarks/bench_overhead.py
	@$(BIN)/python benchmarks/bench_cpu.py

# auditwheel finds the oldest systems that the wheel runs on and names the wheel after them. libtorch.so
# is torch's own, which the process has loaded by then.
wheel: $(VENV)/.tools  ## Build dist/*.whl, for all systems that it can run on
	@rm -rf build/wheelhouse dist
	@CMAKE_ARGS='-DDSV4_MANYLINUX=ON $(CMAKE_ARGS)' \
	  $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheelhouse .
	@PATH=$(BIN):$$PATH $(BIN)/auditwheel repair --exclude libtorch.so -w dist build/wheelhouse/*.whl
	@ls -l dist/*.whl

# Leaks are not looked for: CPython and torch keep memory until the process ends, by the thousand.
# libstdc++ is preloaded with the sanitizer, which otherwise finds no __cxa_throw to intercept in an
# interpreter written in C.
sanitize: build  ## Run all but the slow tests on the CPU with ASan and UBSan
	@$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DDSV4_SANITIZE=ON -DDSV4_TESTS=ON -DDSV4_CUDA=OFF --log-level=NOTICE
	@$(BIN)/cmake --build build/sanitize
	@LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 DSV4_LIBRARY_DIR=build/sanitize/lib \
	  $(BIN)/python -m pytest -o pythonpath=build/sanitize/tests -m "not slow" $(PYTEST_ARGS)

CPP_FILES := $(shell find csrc include tests examples benchmarks -name '*.cpp' -o -name '*.h' \
  -o -name '*.cu' -o -name '*.cuh')

lint: $(VENV)/.requirements  ## Check style: ruff, clang-format, no assembly outside the ptx folders
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@! grep -nE '\basm\b *(volatile)? *\(' $(CPP_FILES) | grep -vE '^(csrc/(.*/)?ptx|tests/simulator/kernels)/' || \
	  { echo "assembly belongs in a ptx folder, one function an instruction"; exit 1; }

format: $(VENV)/.requirements  ## Apply what lint can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP_FILES)

clean:  ## Remove everything that was built or installed here
	@rm -rf build dist python/dsv4/lib python/dsv4/include python/*.egg-info $(VENV)

# --- Set-up -----------------------------------------------------------------------------------------

$(VENV)/.requirements: requirements.txt requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is missing or older than 3.10; name another with PYTHON=..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) makes no virtual environment; on Debian: apt install python3-venv"; exit 1; }
	@echo "Installing the requirements into $(VENV)"
	@$(PIP_INSTALL) -r requirements.txt -r requirements-dev.txt
	@touch $@

# Where pip has no CUDA compiler for this platform, the build goes on without GPU engines and says so.
$(VENV)/.tools: $(VENV)/.requirements csrc/cmake/find_nvcc.py
	@$(BIN)/python csrc/cmake/find_nvcc.py > /dev/null 2>&1 || \
	  { echo "Installing a CUDA compiler into $(VENV)"; $(PIP_INSTALL) '$(CUDA_REQUIREMENT)' || true; }
	@touch $@

# Configures, which takes a second, and leaves to ninja what to build.
native: $(VENV)/.tools
	@CMAKE_ARGS='$(NATIVE_ARGS)' $(BIN)/python setup.py --quiet build_ext --inplace

# Makes `import dsv4` work in .venv.
$(VENV)/.editable: setup.py pyproject.toml | native
	@CMAKE_ARGS='$(NATIVE_ARGS)' $(PIP_INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

build: native $(VENV)/.editable
