# The README's two commands, and what CI runs. Nothing here needs more than python3 and pip.
.PHONY: grid test ci docs gallery outputs mutants engine-bars clean

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
	sh .ci/venv test,verify && .venv/bin/python benchmarks/mutants.py

# Holds the predictions for engines' own kernels against times of random steps: SEED must be one that no fit has seen.
# Needs a GPU and the engines, or their kernels in .peers (benchmarks/kernels_peers.py). PYTHON runs where torch is.
PYTHON ?= .venv/bin/python
engine-bars:
	$(PYTHON) -m benchmarks.engine_bars --seed $(SEED)

clean:
	rm -rf .venv build dist *.egg-info site
