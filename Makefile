# Everything a user types. `make` alone prints the list.
.DEFAULT_GOAL := help
.PHONY: help setup lab quick check-parts test matrix fuzz lint coverage notebooks figs bench colab class site clean
SHELL := /bin/bash

PYTHON ?= python3
TORCH_INDEX ?=
LABARGS ?=
PARTS ?= lint unit cluster nbval notebooks browser network
MATRIX ?= 3.10:2.13.0 3.11:2.13.0 3.12:2.15.0 3.13:2.14.1
NBVAL ?= $(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb)
LOAD ?=
NB ?=
COVER ?= tests/unit
BENCHARGS ?=

# `make matrix` makes other environments, each with its own torch
VENV ?= .venv
TORCH ?=
ENV_PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/distlab-setup.stamp
PINS := $(if $(TORCH),$(VENV).txt,constraints.txt)
# or each of the hundreds of Pythons that tests start would compile distlab again
unexport PYTHONDONTWRITEBYTECODE
# PIP_USER or a target directory in the user's configuration cannot work inside an environment
PIP := PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 $(ENV_PYTHON) -m pip install -c $(PINS)

help:
	@echo "make lab        set up, check this machine, open JupyterLab on the course"
	@echo "make quick      set up, then lint, types and unit tests in a minute: before each commit"
	@echo "make test       set up, run every test and compare every notebook's output   (PARTS=\"unit nbval\" for some)"
	@echo "make matrix     the same in environments of other versions  (MATRIX=\"$(MATRIX)\")"
	@echo "make fuzz       random small programs: do proof and simulator agree?            (SECONDS=60; without, until Ctrl-C)"
	@echo "make lint       check the code's style and types, and that imports go one way"
	@echo "make coverage   which lines tests run, on ranks too                          (COVER=tests/cluster/notebook)"
	@echo "make notebooks  run the notebooks in place and save their outputs            (NB=notebooks/01_x.ipynb for one)"
	@echo "make figs       draw the diagrams in figs/ again"
	@echo "make bench      measure distlab beside its peers                             (BENCHARGS=--write: into the README)"
	@echo "make colab      build dist/colab/: every notebook as one file that runs on its own"
	@echo "make class      build dist/class/: assignments for nbgrader, and a bundle for students without answers"
	@echo "make site       build dist/site/: README, lessons and API as web pages, without running anything"
	@echo "make clean      remove .venv, .matrix, dist and caches"
	@echo "Options: PYTHON=python3.12   LABARGS=\"--port 9000\"   TORCH_INDEX=https://download.pytorch.org/whl/cpu   LOAD=15"

# An interpreter that was chosen by hand replaces an environment of another version; the default one never does.
# An environment cannot be moved: the stamp holds the folder.
setup:
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "distlab: '$(PYTHON)' was not found; install Python 3.10 or newer, or name one: make lab PYTHON=python3.12" >&2; exit 1; }
	@version() { "$$1" -c 'import sys; print(sys.version_info[:2])' 2>&1; }; \
	 if [ "$(origin PYTHON)" != file ] && [ -d $(VENV) ] && [ "$$(version "$(PYTHON)")" != "$$(version $(ENV_PYTHON))" ]; then \
	   rm -rf $(VENV); fi; \
	 [ -x $(ENV_PYTHON) ] && grep -qsxF "$(CURDIR)" $(STAMP) || rm -f $(STAMP)
	@$(MAKE) -s $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/quick_torch.py
	@$(ENV_PYTHON) -m pip --version >/dev/null 2>&1 || { \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "distlab: Python must be 3.10 or newer, got $$("$(PYTHON)" -V 2>&1); name one that is here: make lab PYTHON=python3.12" >&2; \
	    exit 1; }; \
	  echo "Making $(VENV) with $$("$(PYTHON)" -V 2>&1); the first time takes one to ten minutes."; \
	  "$(PYTHON)" -m venv --clear $(VENV) || { \
	    echo "distlab: the environment could not be made: read the lines above (Debian, Ubuntu: apt-get install python3-venv)" >&2; \
	    exit 1; }; }
	@[ -z "$(TORCH)" ] || sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(PINS)
	@rm -rf distlab.egg-info  # of a distlab before this one: Python would read it first
	@{ [ -z "$(TORCH_INDEX)" ] || $(PIP) --index-url "$(TORCH_INDEX)" torch; } && $(PIP) -e ".[lab,course,mpi,site,test]" || { \
	  echo "distlab: pip failed: read its last lines above, then run the same command again; torch's CPU build needs 3 GB of" \
	    "disk, its CUDA build 6 (TORCH_INDEX=https://download.pytorch.org/whl/cpu)" >&2; exit 1; }
	@$(PIP) -q --no-deps --upgrade --target $(VENV)/nbgrader nbgrader alembic mako rapidfuzz  # away from JupyterLab's eyes
	@mkdir -p $(VENV)/share/jupyter/lab/settings  # JupyterLab's place for defaults: no news, no look for updates
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}' \
	  > $(VENV)/share/jupyter/lab/settings/overrides.json
	@packages="$$($(ENV_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"; \
	 cp tools/quick_torch.py "$$packages" && echo "import quick_torch" > "$$packages/quick_torch.pth"
	@echo "$(CURDIR)" > $(STAMP)

lab: setup
	@$(ENV_PYTHON) -m distlab doctor
	@exec $(ENV_PYTHON) -m distlab lab "$(CURDIR)" $(LABARGS)

# The parts of the tests. Most of the time a test waits, for a kernel or for a rank that hangs: five parts run side by
# side, and each line begins with the name of its part.
PYTEST := $(ENV_PYTHON) -m pytest --color=no
# Collecting imports every test: a name that moved is missed here in seconds, not in the part that runs last.
part-lint = $(ENV_PYTHON) -m ruff check . && $(ENV_PYTHON) -m ruff format --check -q . && $(VENV)/bin/lint-imports --no-logo --no-cache \
  && $(ENV_PYTHON) -m mypy && $(PYTEST) -q --collect-only tests | tail -n 1
part-unit = $(PYTEST) -W error::ResourceWarning tests/unit --ignore=tests/unit/predict
part-zoo = $(PYTEST) -p tests.warm_process --durations=10 tests/cluster/notebook/test_zoo.py
part-cluster-notebook = $(PYTEST) -p tests.warm_process --durations=10 tests/cluster/notebook \
  --ignore=tests/cluster/notebook/test_zoo.py
part-predict = $(PYTEST) -p tests.warm_process --durations=10 tests/unit/predict tests/cluster/predict
part-comparison = $(PYTEST) -p tests.warm_process --durations=10 tests/cluster/comparison
part-scripts = $(PYTEST) -p tests.warm_process --durations=10 tests/cluster/scripts
part-testing = $(PYTEST) -p tests.warm_process --durations=10 tests/testing
part-cluster-others = $(PYTEST) -p tests.warm_process --durations=10 tests/cluster --ignore=tests/cluster/notebook \
  --ignore=tests/cluster/predict --ignore=tests/cluster/comparison --ignore=tests/cluster/scripts
# Strict: every committed output is compared. A cell's own limit comes before pytest-timeout's, which shows less.
# Disguised, because on the machine that saved it an output may know its machine, and nobody sees it; the labs in two
# parts, each on half of the cores.
nbval = $(ENV_PYTHON) tools/disguise.py $(1) -m pytest --color=no -p tests.warm_process --nbval --nbval-current-env \
  --nbval-sanitize-with=tests/nbval.cfg --nbval-cell-timeout=200 $(2)
ANSWERS := $(filter notebooks/solutions/%,$(NBVAL))
HALF := $(strip $(foreach number,00 02 04 06 11 21 23 30 32 34 41 50 52 53 54 60 62,$(filter notebooks/$(number)%,$(NBVAL))))
OTHER_HALF := $(filter-out $(HALF) $(ANSWERS),$(NBVAL))
part-nbval-first = $(call nbval,first,$(HALF))
part-nbval-second = $(call nbval,second,$(OTHER_HALF))
part-nbval-answers = $(call nbval,all,$(ANSWERS))
part-notebooks = $(PYTEST) --durations=10 tests/notebooks
part-browser = $(PYTEST) tests/browser
# what starts daemons ends them, also after a timeout: the other method would end this process at once
part-network = $(PYTEST) --timeout-method=signal --durations=10 tests/network
# the longest first: what begins last is short, and no core waits for it alone
ORDER := nbval-second nbval-first predict cluster-notebook nbval-answers notebooks cluster-others browser scripts \
  comparison testing network zoo unit lint
SPLIT := $(patsubst cluster,cluster-notebook zoo predict comparison scripts cluster-others testing,$(PARTS:nbval=nbval-first nbval-second nbval-answers))
CHOSEN := $(filter-out $(if $(HALF),,nbval-first) $(if $(OTHER_HALF),,nbval-second) $(if $(ANSWERS),,nbval-answers),$(SPLIT))
RUN := $(filter $(CHOSEN),$(ORDER))
UNKNOWN := $(filter-out $(ORDER),$(CHOSEN))

check-parts:
	@[ -z "$(UNKNOWN)" ] || { \
	  echo 'PARTS must be among lint unit cluster nbval notebooks browser network, got "$(UNKNOWN)". Try: make test PARTS="unit"' >&2; exit 2; }

# What breaks most often, in about a minute on two cores: lint on one of them, the unit tests on the other, which
# pytest-xdist could not make faster. Not those of predictions, which import half of torch: the part predict has them.
quick:
	@$(MAKE) --no-print-directory test PARTS="lint unit"

test: check-parts setup
	@rm -rf .tests && mkdir .tests
	@[ -z "$(LOAD)" ] || { $(ENV_PYTHON) tools/load.py $(LOAD) & trap "kill $$!" EXIT; }; \
	 $(MAKE) --no-print-directory -k -j 5 $(addprefix .tests/,$(RUN)) || true
	@status=0; printf '\n----- summary\n'; for part in $(RUN); do \
	   read -r code seconds < .tests/$$part.result; \
	   if [ "$$code" = 0 ]; then printf '%-17s ok     %5d s   %s\n' $$part $$seconds "$$(tail -n 1 .tests/$$part | tr -d =)"; else \
	     status=1; printf '%-17s FAILED %5d s   %s\n' $$part $$seconds "$$(tail -n 1 .tests/$$part | tr -d =)"; \
	     grep -E '^(FAILED|ERROR|E  ) |: error: ' .tests/$$part | head -n 40 | sed 's/^/    /'; fi; \
	 done; exit $$status

# five parts on few cores: a thread of OpenMP's that has nothing to do computes on until its next piece of work
.tests/%: export OMP_WAIT_POLICY = PASSIVE
.tests/%:
	@set -o pipefail; began=$$SECONDS; \
	 { COLUMNS=160 $(part-$*); } 2>&1 | tee $@ | sed -u "s/^/$* | /"; code=$$?; \
	 echo "$$code $$((SECONDS - began))" > $@.result; exit $$code

# Of a Python that pyenv has, the name on PATH may not start.
matrix:
	@mkdir -p .matrix; status=0; summary=; for pair in $(MATRIX); do \
	   version=$${pair%%:*}; python=; \
	   for candidate in "python$$version" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	     if "$$candidate" -c "" >/dev/null 2>&1; then python=$$candidate; break; fi; done; \
	   if [ -z "$$python" ]; then outcome="skipped, there is no Python $$version here"; \
	   elif $(MAKE) --no-print-directory test VENV=".matrix/$${pair/:/-}" TORCH="$${pair##*:}" PYTHON="$$python" \
	     PARTS="$(if $(filter file,$(origin PARTS)),unit cluster nbval,$(PARTS))"; then outcome=ok; \
	   else outcome=FAILED; status=1; fi; \
	   summary+="$$pair  $$outcome"$$'\n'; \
	 done; printf '\n----- Python:torch\n%s' "$$summary"; exit $$status

# bash has a variable SECONDS of its own, which a make variable from the command line replaces
fuzz: SECONDS ?=
fuzz: SEED ?=
fuzz: setup
	@exec $(ENV_PYTHON) -m tools.fuzz "$(SECONDS)" $(SEED)

lint: setup
	@$(part-lint)

# Without tests.warm_process: of a process that it forks, the lines would count for the one that forks.
coverage: setup
	@rm -rf .coverage && mkdir .coverage
	@$(ENV_PYTHON) -m coverage run -m pytest --color=no -q -p tests.covered_ranks $(COVER)
	@$(ENV_PYTHON) -m coverage combine -q && $(ENV_PYTHON) -m coverage report

notebooks: setup
	@$(ENV_PYTHON) tools/notebooks.py $(NB)

figs: setup
	@$(ENV_PYTHON) -m tools.diagrams

bench: setup
	@$(PIP) -q -e ".[bench]"
	@$(ENV_PYTHON) -m benchmarks $(BENCHARGS)

colab: setup
	@$(ENV_PYTHON) tools/colab.py

class: setup
	@$(ENV_PYTHON) -m distlab class dist/class

# A warning is an error: a link that leads nowhere is one.
site: setup
	@rm -rf dist/site && $(ENV_PYTHON) -m sphinx -W --keep-going -q -c docs . dist/site && echo "dist/site/index.html"

clean:
	rm -rf .venv .matrix .tests dist build distlab.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.git -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
