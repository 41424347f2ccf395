# The README's two commands, and what CI runs. Nothing here needs more than python3 and pip.
.PHONY: grid test ci clean

grid:
	sh .ci/venv && .venv/bin/decodecalc grid --model llama3-8b --tp 8

test:
	sh .ci/venv test,verify && .venv/bin/python -m pytest

ci:
	bash .ci/run

clean:
	rm -rf .venv build dist *.egg-info site
