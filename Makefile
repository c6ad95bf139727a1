# Everything runs from a fresh clone: `make demo`, `make test`. uv is fetched if it is missing.

UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := .venv/bin
READY := .venv/.ready
READY_SLOW := .venv/.ready-slow

.PHONY: help demo test test-slow check lint types docs reference dist format bench bench-gpu listing fuzz hold clean

help:                ## what each command does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(READY)       ## killick compare: do masked references help? Three arms, five seeds, a report (under four minutes on two cores)
	@$(RUN)/killick compare

test: $(READY)       ## tests and doctests, warnings as errors (eight minutes on two cores)
	$(RUN)/python -m pytest -n auto --dist worksteal

test-slow: $(READY_SLOW) ## before a release: also the tests marked slow
	$(RUN)/python -m pytest -n auto --dist worksteal -m "not gpu"

check: lint types test ## what CI runs: format, lint, strict types, tests

lint: $(READY)       ## ruff: format and lint, nothing is changed
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .

types: $(READY)      ## mypy, strict
	$(RUN)/mypy

docs: $(READY)       ## the documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --quiet

dist: | $(UV)        ## wheel and source archive, in dist
	@$(UV) build --quiet --out-dir dist

format: $(READY)     ## ruff: format, and fix what can be fixed
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

bench: $(READY)      ## CPU benchmarks; results go to benchmarks/results
	$(RUN)/python benchmarks/step.py
	$(RUN)/python benchmarks/folding.py
	$(RUN)/python benchmarks/export_latency.py
	$(RUN)/python benchmarks/transduction.py
	$(RUN)/python benchmarks/training.py
	OMP_NUM_THREADS=1 $(RUN)/python benchmarks/corruptions.py
	$(RUN)/python benchmarks/metrics.py --write

bench-gpu: $(READY)  ## the GPU benchmarks, DATA=pack:cifar10.npz; results go to benchmarks/results
	$(RUN)/python benchmarks/gpu.py --data $(DATA) $(if $(IMAGENETTE),--imagenette $(IMAGENETTE))

reference: $(READY)  ## the parts of the pages that are made from the code and from results
	COLUMNS=80 $(RUN)/python docs/reference_parts.py

listing: $(READY)    ## src/killick/cli/listing.json, after something was registered or described anew
	$(RUN)/python -c "from killick.cli.listing import write; write()"

fuzz: $(READY)       ## damaged images, configurations and checkpoints, five minutes each
	for target in images configs checkpoints; do $(RUN)/python tests/fuzz.py $$target --minutes 5 || exit 1; done

hold: $(READY)       ## faults on purpose: kills, two commands on one folder, full disks, hostile files
	$(RUN)/python tests/hold.py

clean:               ## forget the environment
	rm -rf .venv .tools

$(READY): pyproject.toml constraints.txt | $(UV)
	@echo "Installing into .venv, once (a few GB; half a minute to some minutes) ..."
	@$(UV) venv --quiet --allow-existing --python '>=3.11' .venv
	@$(UV) pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable . --group dev
	@touch $@

$(READY_SLOW): $(READY)
	@echo "Installing the libraries that only slow tests need ..."
	@$(UV) pip install --quiet --python .venv/bin/python --constraint constraints.txt --editable . --group slow
	@touch $@

# Only when uv is not on the PATH: into a folder of the repository, by the Python that is there.
.tools/bin/uv:
	@echo "uv is not on the PATH: installing it into .tools ..."
	@python3 -m venv .tools
	@.tools/bin/pip install --quiet uv
