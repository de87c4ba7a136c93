"""A library of plugins that is compiled here, loaded by path, and registered with TensorRT for RTX."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("plugin.cpp")
# In a process of its own: what is registered stays so until a process ends.
LOADED = """
import sys
from inferlens.backends.tensorrt.flavours import flavour
from inferlens.backends.tensorrt.plugins import load_plugins, registered_plugins

rtx, library = flavour("rtx"), sys.argv[1]
before = registered_plugins(rtx)
for _ in range(2):
    load_plugins(rtx, library)
print(*sorted(set(registered_plugins(rtx)) - set(before)), sep="\\n")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    path = tmp_path_factory.mktemp("plugin") / "libwarp.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return path


def test_a_real_library_of_plugins_is_loaded_and_listed(library: Path, rtx: Any) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, str(library)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["acme::Warp 1"]), done.stderr


def test_a_build_with_a_real_library_of_plugins(library: Path, rtx: Any, graph: Path, tmp_path: Path) -> None:
    engine = tmp_path / "small.engine"
    words = ["build", str(graph), "-o", str(engine), "--compute-capability", "8.9", "--backend", "tensorrt:rtx"]
    command = [sys.executable, "-m", "inferlens", *words, "--option", f"tensorrt.plugins={library}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert engine.read_bytes()[:4] == b"vtrt"
