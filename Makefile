# Everything lives in .venv, dist, .environments, .demo and .pictures next to this file; nothing global is installed,
# needed or changed, except the Debian packages of real services that the integration tests need (as root or with sudo).

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.10 python3,$(shell command -v $(name))))
BIN := .venv/bin
# Of each target, because several are made at a time.
LOG = .venv/make-$(subst /,-,$@).log

# The list has folders in addition to their files: a folder's time changes when one of its files is removed.
PACKAGES := example_dags executors hooks operators plugin scheduling
SOURCES := pyproject.toml setup.py README.md LICENSE $(shell find $(PACKAGES) -name '__pycache__' -prune -o -print)
SNAKEMAKE_SOURCES := $(addprefix snakemake_plugin/,pyproject.toml setup.py README.md) \
    $(shell find snakemake_plugin/snakemake_executor_plugin_lading -name '__pycache__' -prune -o -print)

# Processes that run tests. Many tests wait for a service, so two cores have work for more than two.
WORKERS ?= 6

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python must not compile Airflow and the tests anew in each process.
unexport PYTHONDONTWRITEBYTECODE

# $(call quietly,what is done,command,how far it is): the step, every ten seconds how far it is, by default the last useful line
# of its output, and how long it took; if it fails, all its output.
# The loop checks its parent process, because Ctrl-C does not reach background processes.
BEAT := 10
# No warnings, index servers or origins of packages; at most 100 columns, in whole words.
LAST = grep -ivE '^ *$$|^ *(npm )?(warn|deprecation|\[notice)|: warning: |^looking in ' $(LOG) | tail -n 1 | \
    sed -E 's/^ +//; s/ \(from .*//; s,https?://[^ ]*/,,; /.{101}/{ s/^(.{1,96}) .*/\1 .../; s/^(.{97}).{4}.*/\1.../; }'
quietly = @mkdir -p .venv && : >$(LOG) && begin=$$(date +%s) && printf '%s\n' '$(1)' && { \
    while sleep $(BEAT) >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
        printf '  %4d s  %s\n' $$(( $$(date +%s) - begin )) "$$($(or $(3),$(LAST)))"; done & beat=$$!; \
    { $(2); } >$(LOG) 2>&1; status=$$?; kill $$beat; \
    [ $$status -eq 0 ] || { cat $(LOG); exit 1; }; printf '  done in %d s\n' $$(( $$(date +%s) - begin )); }

.DELETE_ON_ERROR:
.PHONY: help demo dev ui docs coverage test test-snakemake test-snakemake-upstream test-snakemake-workflows test-unit test-versions lint types format lock wheel package clean

help:  ## say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 15

demo: .venv/installed  ## run a Dag on a real Airflow with Lading and show what ran where; KEEP=1 leaves the UI up, SITE=slurm or SITE=ec2 runs it there
	@$(BIN)/python -m tests.demo

# The rooms of the checkout as one tree, which Python, mypy and editors follow; the wheel would hide it.
dev: .venv/locked  ## make the checkout importable as lading, and open a shell in which it is
	@rm -rf .venv/installed .venv/dev && mkdir -p .venv/dev/lading
	$(call quietly,linking the checkout, \
	    $(BIN)/pip install --quiet --no-deps --no-index --no-build-isolation --editable . && \
	    for room in $(PACKAGES); do ln -s "$(CURDIR)/$$room" .venv/dev/lading/$$room; done && \
	    echo "$(CURDIR)/.venv/dev" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lading-dev.pth")
	@echo 'lading is this checkout until the shell ends and another target installs the wheel: exit leaves it'
	@VIRTUAL_ENV="$(CURDIR)/.venv" PATH="$(CURDIR)/$(BIN):$$PATH" $${SHELL:-sh} || true

docs: .venv/installed .environments/docs/installed  ## build the site of the documentation in docs/_build, where warnings are errors, and list phrases to avoid
	$(call quietly,docs,.environments/docs/bin/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet docs docs/_build)
	@.environments/docs/bin/python docs/phrases.py

test: .environments/snakemake/installed  ## check formatting, lint, types and the documentation, then run all tests
	@$(MAKE) --no-print-directory --jobs=2 lint types docs
	@LADING_PICTURES="$${LADING_PICTURES:-$(CURDIR)/.pictures}" $(BIN)/python -m pytest -n $(WORKERS)
	@cd snakemake_plugin && ../.environments/snakemake/bin/python -m pytest -n $(WORKERS)

test-snakemake: .venv/installed .environments/snakemake/installed  ## run the tests of the executor for Snakemake, where Airflow is not installed
	@cd snakemake_plugin && ../.environments/snakemake/bin/python -m pytest -n $(WORKERS)

test-snakemake-upstream: .venv/installed .environments/snakemake/installed  ## run Snakemake's own tests with the executor, which are cloned from GitHub
	@.environments/snakemake/bin/python snakemake_plugin/upstream

test-snakemake-workflows: .venv/installed .environments/snakemake/installed  ## run public workflows without their tools, with Snakemake's own executor and with this one
	@.environments/snakemake/bin/python snakemake_plugin/upstream/workflows.py

test-unit: .venv/installed  ## run the tests that need no services
	@$(BIN)/python -m pytest -n $(WORKERS) tests/unit

# What it builds is in git: only who changes web/, or a route of the page, needs Node.js.
ui: .venv/installed  ## build the page (plugin/ui/static) from web/; needs Node.js 20 and npm
	@command -v npm >/dev/null || { echo 'npm is missing: install Node.js 20 or newer'; exit 1; }
	$(call quietly,installing what web/package-lock.json names,npm --prefix web ci)
	$(call quietly,types of the API,$(BIN)/python web/generate.py openapi && npm --prefix web run types)
	$(call quietly,checking types and running the tests of the page,npm --prefix web run check && npm --prefix web test)
	$(call quietly,building the page,npm --prefix web run build && $(BIN)/python web/generate.py digest)

coverage: .venv/installed  ## run the tests that need no Airflow, and say which lines they run
	@$(BIN)/python -m pytest -n $(WORKERS) --cov="$$($(BIN)/python -c 'import lading; print(*lading.__path__)')" --cov-report=term:skip-covered --cov-report=html:.coverage.html tests/unit tests/processes

test-versions: .venv/installed .environments/tools/installed  ## run the tests that touch Airflow on each of its versions; VERSIONS=3.3.0 names some
	@$(BIN)/python -m tests.versions $(VERSIONS)

lint: .venv/locked  ## check formatting, lint and spelling
	@echo 'ruff'
	@$(BIN)/ruff format --quiet --diff .
	@$(BIN)/ruff check --quiet .
	@echo 'codespell'
	@$(BIN)/codespell

types: .venv/installed .environments/snakemake/installed  ## check types, strictly
	@echo 'mypy'
	@$(BIN)/mypy --no-error-summary
	@cd snakemake_plugin && ../$(BIN)/mypy --no-error-summary

format: .venv/locked  ## format the code and fix what lint can fix
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

lock:  ## resolve the dependencies anew into both requirements.lock, and those of the site into docs/requirements.txt
	@echo 'resolving the dependencies'
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	    $(PYTHON) -m venv "$$folder" && "$$folder/bin/pip" install --quiet uv && \
	    "$$folder/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.10 --extra test --no-header \
	    --no-annotate --generate-hashes --no-emit-index-url --output-file requirements.lock pyproject.toml && \
	    "$$folder/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.10 --group docs --no-header \
	    --no-annotate --generate-hashes --no-emit-index-url --output-file docs/requirements.txt && \
	    cd snakemake_plugin && "$$folder/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --extra ec2 \
	    --group test --no-header --no-annotate --generate-hashes --no-emit-index-url --output-file requirements.lock pyproject.toml
	@git --no-pager diff --stat -- requirements.lock docs/requirements.txt snakemake_plugin/requirements.lock

wheel: .venv/installed  ## build dist/*.whl
	@ls dist/*.whl

package: .venv/installed .environments/tools/installed  ## build the sdists and wheels of a release, check them, install them with each Python here
	@$(BIN)/python -m tests.package

clean:  ## remove all that make has made
	rm -rf web/node_modules .venv .environments .demo .pictures docs/_build .coverage .coverage.html build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock names every package there is to be, so pip has nothing to resolve; `pip check` proves it. A changed lock
# starts from nothing, which leaves no package behind that it no longer names.
.venv/locked: requirements.lock
	@command -v git >/dev/null || { echo 'git is missing: apt-get install git'; exit 1; }
	@test -n '$(PYTHON)' || { echo 'Python 3.10 or newer is missing: apt-get install python3 python3-venv'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	    || { echo "$(PYTHON) is older than Python 3.10: name another by make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv"; exit 1; }
	@rm -rf .venv
	$(call quietly,making .venv with $(PYTHON),$(PYTHON) -m venv .venv)
	$(call quietly,installing what requirements.lock names (a few minutes when nothing is cached), \
	    $(BIN)/pip install --progress-bar off --no-deps --require-hashes -r requirements.lock && $(BIN)/pip check, \
	    if grep -q '^Installing' $(LOG); then echo "$$(ls -d .venv/lib/python*/site-packages/*.dist-info | wc -l) of $$(grep -c == requirements.lock) packages are installed"; else $(LAST); fi)
	@touch $@

# Tests, type checks and the demo use the package as a user gets it: the wheel, never the checkout.
.venv/installed: .venv/locked $(SOURCES)
	@rm -rf build dist .venv/dev .venv/lib/python*/site-packages/lading-dev.pth
	$(call quietly,installing the wheel, \
	    $(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . && rm -rf build && \
	    $(BIN)/pip install --quiet --no-deps --no-index --force-reinstall dist/*.whl && \
	    { $(BIN)/pip check || { echo 'requirements.lock does not fit pyproject.toml: make lock'; false; }; })
	@touch $@

# Not in requirements.lock: they create the environments and never run inside one.
.environments/tools/installed: .venv/locked
	@rm -rf .environments/tools && mkdir -p .environments
	$(call quietly,installing uv and twine, \
	    $(PYTHON) -m venv .environments/tools && .environments/tools/bin/pip install --quiet uv twine)
	@touch $@

# The site's tools see Airflow and Lading, whose docstrings they read, in .venv below them; .venv stays as the lock says.
.environments/docs/installed: .venv/locked docs/requirements.txt
	@rm -rf .environments/docs && mkdir -p .environments
	$(call quietly,installing what docs/requirements.txt names, \
	    $(BIN)/python -m venv .environments/docs && \
	    $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	        > "$$(.environments/docs/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth" && \
	    .environments/docs/bin/pip install --quiet --no-deps --require-hashes -r docs/requirements.txt)
	@touch $@

# Snakemake and Airflow ask for other versions of the same packages.
.environments/snakemake/locked: .venv/locked snakemake_plugin/requirements.lock
	@rm -rf .environments/snakemake && mkdir -p .environments
	$(call quietly,installing what snakemake_plugin/requirements.lock names, \
	    $(PYTHON) -m venv .environments/snakemake && \
	    .environments/snakemake/bin/pip install --quiet --no-deps --require-hashes -r snakemake_plugin/requirements.lock)
	@touch $@

# The wheel brings the engine. Of airflow-lading, which an older environment has, it would have the same files.
.environments/snakemake/installed: .environments/snakemake/locked $(SOURCES) $(SNAKEMAKE_SOURCES)
	$(call quietly,installing the executor for Snakemake, \
	    .environments/snakemake/bin/pip uninstall --quiet --yes airflow-lading && cd snakemake_plugin && rm -rf build && \
	    ../.environments/snakemake/bin/pip install --quiet --no-deps --no-index --no-build-isolation --force-reinstall . && \
	    rm -rf build *.egg-info && \
	    { ../.environments/snakemake/bin/pip check || { echo 'requirements.lock does not fit pyproject.toml: make lock'; false; }; })
	@touch $@
