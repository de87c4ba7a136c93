# Two commands on a fresh machine with Python 3.10 to 3.13 and make:
#   make bench   sets everything up and measures resnet18 on every backend that works here
#   make test    sets everything up, checks the code and runs the tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: bench test lint test-gpu benchmark docs schema clean

bench: $(READY)
	$(BIN)/inferlens bench resnet18

# Each file of tests stays in one of two processes.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# On a machine with a GPU, in whatever environment `python3` is.
test-gpu:
	$(PYTHON) -m pytest tests/gpu -m "not alone" -n 8
	$(PYTHON) -m pytest tests/gpu -m alone

benchmark: $(READY)
	$(BIN)/python -m benchmarks

docs: $(READY)
	$(BIN)/python docs/reference.py
	$(BIN)/inferlens report examples/h200 --output docs/measured-on-an-h200.html
	$(BIN)/zensical build --strict --config-file mkdocs.yml

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): PyTorch, ONNX Runtime, OpenVINO and what they need, some 4 GB to fetch and 8 GB on disk, a few minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

schema: $(READY)
	$(BIN)/python -c "import json; from inferlens.record.record import json_schema; print(json.dumps(json_schema(), indent=2))" > docs/record.schema.json

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
