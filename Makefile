# The README's two commands, and what CI runs. Nothing here needs more than python3 and pip.
.PHONY: grid test ci docs gallery outputs mutants fuzz package engine-bars clean

grid:
	sh .ci/venv && .venv/bin/decodecalc grid --model llama3-8b --tp 8

test:
	sh .ci/venv test,verify && .venv/bin/python -m pytest -n auto

ci:
	bash .ci/run

# Needs no network. `make docs` leaves the pages in site/.
docs:
	sh .ci/venv docs && NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

gallery:
	sh .ci/venv docs && .venv/bin/python docs/gallery.py gallery

# Writes what README and docs say a command prints anew, from what it prints now.
outputs:
	sh .ci/venv docs && .venv/bin/python docs/blocks.py

# Plants faults in a copy of the sources, one at a time, and says which the tests notice. Takes minutes; not part of CI.
mutants:
	sh .ci/venv test,verify && .venv/bin/python -m benchmarks.mutants

# The long run of the fuzz tool: hours on one core, and it goes on where it stopped. Its journals lie in .scratch/fuzz.
fuzz:
	sh .ci/venv test,verify && mkdir -p .scratch/fuzz
	.venv/bin/python -m benchmarks.fuzz --only commands --cases 100000 --journal .scratch/fuzz/commands.json
	for kind in traces reports calibrations configs; do \
	  .venv/bin/python -m benchmarks.fuzz --only $$kind --cases 20000 --journal .scratch/fuzz/$$kind.json || exit 1; done
	.venv/bin/python -m benchmarks.fuzz --only loaders --cases 2000000 --journal .scratch/fuzz/loaders.json
	.venv/bin/python -m benchmarks.fuzz --only plans --cases 600000 --journal .scratch/fuzz/plans.json

# Builds the sdist and the wheel in dist/, and installs the wheel and the git URL as users do. docs/releasing.md needs it.
package:
	bash .ci/package

# Holds the predictions for engines' own kernels against times of random steps: SEED must be one that no fit has seen.
# Needs a GPU and the engines, or their kernels in .peers (benchmarks/kernels_peers.py). PYTHON runs where torch is.
PYTHON ?= .venv/bin/python
engine-bars:
	$(PYTHON) -m benchmarks.engine_bars --seed $(SEED)

clean:
	rm -rf .venv build dist *.egg-info site
