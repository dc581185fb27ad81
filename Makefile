# Every target sets up what it needs. Plain Python 3.11 or newer is enough to begin with.
#
#   make demo               a coordinator and four hospitals on this machine
#   make demo-support       a study of eight hospitals, from files to manuscript; one is killed
#   make test               all tests          (make test ARGS="tests/e2e -k https")
#   make test-flower        the tests that need Flower, in an environment of their own
#   make bench              all benchmarks     (make bench crash footprint)

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
# Test processes: more than cores, since many tests wait for servers and sites of their own.
JOBS ?= 5
ARGS ?=

RUN_STAMP := $(VENV)/.installed-run
EXAMPLES_STAMP := $(VENV)/.installed-examples
DOCS_STAMP := $(VENV)/.installed-docs
DEV_STAMP := $(VENV)/.installed-dev
FLOWER := .venv-flower
FLOWER_STAMP := $(FLOWER)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo demo-support serve test test-flower lint format bench openapi docs \
	docs-site docs-pdf screenshots dist clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo 'other targets: install serve lint format openapi docs docs-site docs-pdf screenshots' \
		'dist clean'

install: $(DEV_STAMP)

demo: $(RUN_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python examples/demo.py $(ARGS)

demo-support: $(EXAMPLES_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python examples/support.py $(ARGS)

serve: $(RUN_STAMP)
	$(BIN)/fedclust-service serve $(ARGS)

# Two OpenMP threads make small k-means calls many times slower; the numbers rest on one anyway.
# Bytecode is kept whatever the environment says: some hundred processes read the same modules.
test: $(DEV_STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest \
		-n $(JOBS) --dist worksteal $(ARGS)

# Flower holds libraries of the service back, so it is not in the environment of development.
test-flower: $(FLOWER_STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest \
		-n 2 tests_flower $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/openapi/description.py --check
	$(BIN)/python tests/support/code_lines.py

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

openapi: $(DEV_STAMP)
	$(BIN)/python docs/openapi/make_examples.py
	$(BIN)/python docs/openapi/description.py

docs: $(DEV_STAMP)
	$(BIN)/python docs/render.py
	$(BIN)/python docs/states.py
	$(BIN)/python docs/map.py
	$(BIN)/python docs/protection_figures.py
	$(BIN)/python docs/method_figures.py
	$(BIN)/python docs/result_figures.py

# The site that a coordinator serves at /help, where wheels and images find it too. Any warning of
# Sphinx or dead link is an error.
# All pages are written anew: each has the menu, and Sphinx would leave pages that were removed.
HELP := service/fedclust_service/http/help
SPHINX := $(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet
docs-site: $(DOCS_STAMP)
	rm -rf $(HELP)
	$(SPHINX) --doctree-dir build/doctrees --builder html docs $(HELP)
	$(BIN)/python docs/check_site.py $(HELP)

docs-pdf: $(DEV_STAMP)
	$(SPHINX) --doctree-dir build/doctrees-pdf --builder singlehtml --tag print \
		docs build/one-page
	$(BIN)/python docs/pdf.py build/one-page build/fedclust.pdf

screenshots: $(DEV_STAMP)
	$(BIN)/python docs/screenshots.py

# The words after `bench` name parts: benchmarks/<part>.py. Without any, all of them run.
ifeq (bench,$(firstword $(MAKECMDGOALS)))
PARTS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
ifneq (,$(PARTS))
.PHONY: $(PARTS)
$(PARTS):
	@:
endif
endif
# `report` rewrites pages of the documentation: only when it is named.
ifeq (,$(PARTS))
PARTS := $(filter-out report,$(patsubst benchmarks/%.py,%,$(sort $(wildcard benchmarks/[a-z]*.py))))
endif

bench: $(DEV_STAMP)
	@set -e; for part in $(PARTS); do \
		echo "== $$part"; began=$$(date +%s); \
		OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/$$part.py $(ARGS); \
		echo "$$part took $$(($$(date +%s) - began)) s"; \
	done

dist: $(DEV_STAMP)
	rm -rf dist build/doctrees
	$(MAKE) docs-site
	$(BIN)/python deploy/bundle.py $(ARGS)

clean:
	rm -rf $(VENV) .venv-* $(HELP) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache

# --- the virtual environment ----------------------------------------------------------------------

$(VENV)/.created:
	@set -e; \
	good='import sys; sys.exit(sys.version_info < (3, 11))'; \
	python=''; bare=''; \
	for name in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 python; do \
		"$$name" -c "$$good" >/dev/null 2>&1 || continue; \
		if "$$name" -c 'import venv, ensurepip' >/dev/null 2>&1; then python="$$name"; break; fi; \
		bare="$${bare:-$$name}"; \
	done; \
	if [ -z "$$python" ]; then \
		if [ -n "$$bare" ]; then \
			version=$$("$$bare" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
			echo "fedclust: Python $$version is here, but cannot make virtual environments." >&2; \
			echo "Debian, Ubuntu: sudo apt install python$$version-venv" >&2; \
		else \
			echo "fedclust: Python 3.11 or newer is needed and was not found." >&2; \
			echo "Debian, Ubuntu: sudo apt install python3 python3-venv" >&2; \
			echo "Fedora, RHEL 9: sudo dnf install python3.11 python3.11-pip" >&2; \
			echo "macOS:          brew install python@3.13" >&2; \
			echo "Or name one:    make install PYTHON=/path/to/python" >&2; \
		fi; \
		exit 1; \
	fi; \
	echo "fedclust: $(VENV) from $$("$$python" --version)"; \
	"$$python" -m venv $(VENV); \
	touch $@

# The method dual is a distribution of its own.
DUAL := client_sdk/fedclust_dual
$(RUN_STAMP): pyproject.toml $(DUAL)/pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[service]' --editable $(DUAL)
	@touch $@

$(DOCS_STAMP): pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[service]' --group docs
	@touch $@

$(EXAMPLES_STAMP): pyproject.toml $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[service,examples]'
	@touch $@

$(FLOWER_STAMP): pyproject.toml $(DUAL)/pyproject.toml $(VENV)/.created
	$(BIN)/python -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(FLOWER)/bin/python -m pip install --quiet --editable '.[flower]' --editable $(DUAL) \
		--group test-flower
	@touch $@

$(DEV_STAMP): pyproject.toml $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[service,postgres,data,sql,dask,plot]' \
		--group dev
	@touch $@
