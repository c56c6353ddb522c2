# Everything a user types. `make` alone prints the list.
.DEFAULT_GOAL := help
.PHONY: help setup lab test matrix lint notebooks figs bench colab clean

PYTHON ?= python3
TORCH_INDEX ?=
LABARGS ?=
PARTS ?=
MATRIX ?= 3.10:oldest 3.11:pinned 3.12:newest 3.13:pinned
NB ?=
BENCHARGS ?=

ENV_PYTHON := .venv/bin/python
# An interpreter that was chosen by hand replaces an environment of another version; the default one never does.
CHOSEN := $(if $(filter file,$(origin PYTHON)),,--python-chosen)

help:
	@echo "make lab        set up, check this machine, open JupyterLab on the course"
	@echo "make test       set up, run every test and compare every notebook's output   (PARTS=\"unit nbval\" for some)"
	@echo "make matrix     the same in environments of other versions  (MATRIX=\"$(MATRIX)\")"
	@echo "make lint       check the code's style, and that imports go one way"
	@echo "make notebooks  run the notebooks in place and save their outputs            (NB=notebooks/01_x.ipynb for one)"
	@echo "make figs       draw the diagrams in figs/ again"
	@echo "make bench      measure distlab beside its peers                             (BENCHARGS=--write: into the README)"
	@echo "make colab      build dist/colab/: every notebook as one file that runs on its own"
	@echo "make clean      remove .venv, .matrix, dist and caches"
	@echo "Options: PYTHON=python3.12   LABARGS=\"--port 9000\"   TORCH_INDEX=https://download.pytorch.org/whl/cpu"

setup:
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "distlab: '$(PYTHON)' was not found; install Python 3.10 or newer, or name one: make lab PYTHON=python3.12" >&2; exit 1; }
	@TORCH_INDEX="$(TORCH_INDEX)" "$(PYTHON)" tools/setup.py $(CHOSEN)

# The server's root is the project, not notebooks/, because the lessons show ../figs.
# Root may run Jupyter only when told so. Without a display there is no browser to open: Jupyter prints the address.
lab: setup
	@$(ENV_PYTHON) -m distlab doctor
	@root=; if [ "$$(id -u)" = 0 ]; then root=--allow-root; fi; \
	 browser=; if [ "$$(uname)" = Linux ] && [ -z "$$DISPLAY$$WAYLAND_DISPLAY" ]; then \
	   browser=--no-browser; echo "No display here: open the address that Jupyter prints below. Ctrl-C stops it."; fi; \
	 exec $(ENV_PYTHON) -m jupyterlab $$root $$browser --ServerApp.root_dir="$(CURDIR)" \
	   --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb --log-level=WARN $(LABARGS)

test: setup
	@$(ENV_PYTHON) tools/run_tests.py $(PARTS)

matrix: setup
	@TORCH_INDEX="$(TORCH_INDEX)" $(ENV_PYTHON) tools/matrix.py --parts "$(or $(PARTS),unit cluster nbval)" $(MATRIX)

lint: setup
	@$(ENV_PYTHON) -m ruff check .
	@.venv/bin/lint-imports --no-logo --no-cache

notebooks: setup
	@$(ENV_PYTHON) tools/notebooks.py $(NB)

figs: setup
	@$(ENV_PYTHON) tools/diagrams.py
	@$(ENV_PYTHON) tools/maps.py

bench: setup
	@$(ENV_PYTHON) -m pip install -q -c constraints.txt -e ".[bench]"
	@$(ENV_PYTHON) -m benchmarks $(BENCHARGS)

colab: setup
	@$(ENV_PYTHON) tools/colab.py

clean:
	rm -rf .venv .venv-colab .matrix dist build distlab.egg-info .pytest_cache .ruff_cache
	find . -path ./.git -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
