"""Which flavours there are, whether they are what they are called, and the plugins that they load."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from inferlens.backends.base import Absence
from inferlens.backends.tensorrt import library as libraries
from tests.backends.small import unsupported
from tests.refusals import refusal

SOURCE = Path(__file__).with_name("plugin.cpp")
# In a process of its own: what is registered stays so until a process ends.
LOADED = """
import sys
from inferlens.backends.base import Absence
from inferlens.backends.tensorrt.library import load_flavour, load_plugins, registered_plugins

rtx, library = load_flavour("rtx"), sys.argv[1]
before = registered_plugins(rtx)
for _ in range(2):
    load_plugins(rtx, library)
print(*sorted(set(registered_plugins(rtx)) - set(before)), sep="\\n")
"""


def test_a_flavour_that_is_not_here_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    assert "tensorrt-rtx" in unsupported(".", libraries.load_flavour, "rtx").hint


def test_rtx_under_the_name_of_tensorrt_is_not_tensorrt(rtx, monkeypatch):
    """Torch-TensorRT for RTX puts it there."""
    alias = ModuleType("tensorrt")
    alias.__file__ = rtx.module.__file__
    alias.__version__ = rtx.version
    monkeypatch.setitem(sys.modules, "tensorrt", alias)
    flavour = libraries.find_flavour("trt")
    assert isinstance(flavour, Absence) or flavour.module is not alias
    assert sys.modules["tensorrt"] is alias


def test_targets_are_named_where_there_is_no_gpu_and_sorted(rtx):
    assert libraries.resolve_targets(("8.9", "8.0"), rtx, None) == ("8.0", "8.9")
    for named, hint in (((), "compute_capability=7.5+8.0"), (("8.9", "9.0"), "machine with such a GPU")):
        assert hint in unsupported(".", libraries.resolve_targets, named, rtx, None).hint


def test_plugins_are_loaded_by_path(rtx, tmp_path):
    assert all(name[-1].isdigit() for name in libraries.registered_plugins(rtx))  # each with its version
    (tmp_path / "text.so").write_text("no library")
    for name in ("none.so", ".", "text.so"):
        raised = refusal(".", libraries.load_plugins, rtx, str(tmp_path / name))
        assert str(tmp_path) in raised.what
    assert raised.hint.startswith(f"ldd {tmp_path}/text.so")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    path = tmp_path_factory.mktemp("plugin") / "libwarp.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return path


def test_a_real_library_of_plugins_is_loaded_and_listed(library, rtx):
    done = subprocess.run([sys.executable, "-c", LOADED, str(library)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["acme::Warp 1"]), done.stderr


def test_errors_are_condensed_to_what_they_say():
    errors = [
        "IBuilder::buildSerializedNetwork: Error Code 6: API Usage Error (Unable to load library: libx.so.1 In Impl at "
        "/_src/runtime/dispatch/libLoader.cpp:305)",
        "[checkMacros.cpp::catchCudaError::247] Error Code 1: Cuda Runtime (In x at /y.cpp:1 (cudaError 35: old))",
        "ITensor::getDimensions: Error Code 4: Shape Error (dimensions differ In op at /_src/x.cpp:2700)",
    ]
    summary = libraries.error_summary(errors)
    assert "API Usage Error (Unable to load library: libx.so.1)" in summary
    assert "Shape Error (dimensions differ)" in summary
    assert "_src" not in summary
    assert "Cuda Runtime" not in summary
    assert libraries.error_summary([])
