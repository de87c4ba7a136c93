"""The exported server runs without this library, batches requests, and is measured over HTTP."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

from inferlens.execution.load import serve
from inferlens.execution.load.run import load_template, run_http
from inferlens.spec.commands import own_options
from inferlens.spec.plan import Plan

SCRIPT = """
import numpy as np
inputs = [np.zeros(({size}, 2), np.float32)]
def run(x):
    assert x.shape == ({size}, 2), "of another size"
    return 2 * x + offset
offset = 1
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a server with two instances of a script that returns ``2 x + 1``."""
    settings = {
        "model": "twice", "sizes": [1, 2], "instances": 2, "max_batch": 2, "wait": 0.0, "queue": 0, "seed": 0,
        "inputs": {"x": True}, "specs": [{"name": "x", "shape": [1, 2], "dtype": "float32"}],
    }  # fmt: skip
    for size in settings["sizes"]:
        (tmp_path / f"batch-{size}").mkdir()
        (tmp_path / f"batch-{size}" / "run.py").write_text(SCRIPT.format(size=size))
    (tmp_path / "serve.json").write_text(json.dumps(settings))
    command = [sys.executable, shutil.copy(serve.__file__, tmp_path), "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield server.stdout.readline().split()[-1]
        server.send_signal(signal.SIGINT)


def test_a_request_is_answered_by_the_script_or_refused_with_the_reason(url: str) -> None:
    connection, body = HTTPConnection(url.removeprefix("http://")), io.BytesIO()
    np.savez(body, x=np.array([3, 4], np.float32))
    connection.request("POST", "/infer", body.getvalue())
    assert np.load(io.BytesIO(connection.getresponse().read()))["output0"].tolist() == [7, 9]
    connection.request("POST", "/infer", b"no arrays")
    response = connection.getresponse()
    assert (response.status, bool(response.read())) == (400, True)


def test_it_is_measured_over_http(url: str, tmp_path: Path) -> None:
    template = load_template(own_options("load", {"rate": ("50",), "seconds": 1.0})[0])
    (record,) = run_http(Plan(model=(url,), output=str(tmp_path / "results")), template, url)
    assert (record.model.name, record.deployment.instances) == ("twice", 2)
    assert (record.runs[0].rate, record.runs[0].failed) == (50, 0)
    assert record.runs[0].answered
