# Two commands on a fresh machine with Python 3.10 to 3.13 and make:
#   make bench   sets up what a race needs and measures resnet18 on every backend that works here
#   make test    sets up the rest, checks the code and runs the tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RACE := $(VENV)/.race
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: bench test lint test-gpu benchmark docs schema clean

bench: $(RACE)
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

$(RACE): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): PyTorch, ONNX Runtime, OpenVINO and models, a few minutes the first time. Most of it is CUDA"
	@echo "libraries, which PyTorch's usual package brings; a CPU build of PyTorch that is in $(VENV) already is kept."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[models,onnx,openvino]'
	@touch $(RACE)

$(READY): $(RACE)
	@echo "Setting up what tests and all extras need: Ray, TensorRT for RTX, ModelOpt, a browser's driver and more."
	$(INSTALL) '.[dev]'
	@touch $(READY)

schema: $(READY)
	$(BIN)/python -c "import json; from inferlens.record.record import json_schema; print(json.dumps(json_schema(), indent=2))" > docs/record.schema.json

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
