# Everything a fresh machine needs is Python 3.11+ and make:
#   make demo    set up and run the demonstration   (make demo ARGS=--no-dashboard)
#   make test    set up and run every test          (make test ARGS="-k settle")
#   make check   lint, format, types, portable SQL
#   make pins    resolve the newest allowed versions into requirements/

VENV := .venv
BIN := $(VENV)/bin
# pip and Python read their own settings from the environment; nothing is named here.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The first interpreter that is new enough. Override with: make demo PYTHON=/path/to/python
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$p; break; fi; done)

.PHONY: demo test check format pins clean

demo: $(VENV)/.runtime
	@$(BIN)/tracekit demo $(ARGS)

test: $(VENV)/.dev
	@# what measures many processes at once, or drives a browser, runs alone; exit 5 = none selected
	$(BIN)/python -m pytest -q -n auto -m "not stress and not browser" $(ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -q -m "stress or browser" $(ARGS) || [ $$? -eq 5 ]

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/lint_sql.py sql/core sql/attribution sql/compare

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "tracekit needs Python 3.11 or newer, and none was found:" \
			"$$(python3 --version 2>&1 | head -n 1)." \
			"Install one, or name it: make demo PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tracekit needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments; install its venv module" \
			"(Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)

# Reinstalled only when the pins or the project's metadata change. The project itself is
# installed in place, with the build backend from the pins, so nothing unpinned is fetched.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo "installing what tracekit needs into $(VENV) (once; about two minutes)" >&2
	@$(PIP) install --no-compile -r requirements/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@# Bytecode of all that the commands import, while it may be written: containers often forbid it
	@# (PYTHONDONTWRITEBYTECODE), and then every start would compile half a second's worth anew.
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q -j 0 \
		tracekit collectors dashboards $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	@echo "installing the development tools into $(VENV)" >&2
	@$(PIP) install --no-compile -r requirements/dev.txt
	@touch $@

# A throw-away environment decides the versions; no address and no hash is written down.
pins: | $(BIN)/python
	rm -rf build/pins
	$(BIN)/python -m venv build/pins
	build/pins/bin/python -m pip install --quiet --upgrade pip
	build/pins/bin/python -m pip install --quiet '.[all]' hatchling editables
	build/pins/bin/python -m pip freeze --exclude tracekit-llm > requirements/runtime.txt
	build/pins/bin/python -m pip install --quiet --group dev
	{ echo "-r runtime.txt"; build/pins/bin/python -m pip freeze --exclude tracekit-llm \
		| grep -vxFf requirements/runtime.txt; } > requirements/dev.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
