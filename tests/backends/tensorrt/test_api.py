"""The names of TensorRT that our code uses are in the table of its releases. TensorRT is not run here."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import inferlens
from inferlens.backends.onnxruntime.backend import OnnxRuntimeOptions
from inferlens.backends.onnxruntime.runner import PROVIDERS, provider_list
from inferlens.backends.tensorrt.library import Flavour
from inferlens.backends.tensorrt.options import DTYPES, PRECISION_FLAGS, Network, TensorRTOptions, builder_config
from inferlens.errors import Unsupported
from tests.backends import small

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BACKENDS = Path(inferlens.__file__).parent / "backends"
FILES = [*(BACKENDS / "tensorrt").glob("*.py"), BACKENDS / "torch_tensorrt" / "runner.py"]
TABLE = tomllib.loads(Path(__file__).with_name("api.toml").read_text())
RELEASES, CALLS, PROVIDER = TABLE.pop("releases"), TABLE.pop("calls"), TABLE.pop("provider")
# Classes of TensorRT by the names of variables and attributes.
OBJECTS = {
    "trt": "module", "module": "module", "tensorrt": "module", "builder": "Builder", "config": "IBuilderConfig",
    "definition": "INetworkDefinition", "network": "INetworkDefinition", "parser": "OnnxParser",
    "cuda_engine": "ICudaEngine", "context": "IExecutionContext",
    "_context": "IExecutionContext", "_runtime": "Runtime", "Runtime": "Runtime",
    "inspector": "EngineInspector", "cache": "ITimingCache", "tensor": "ITensor", "IBuilderConfig": "IBuilderConfig",
    **{name: name for name in ("BuilderFlag", "TensorIOMode", "LayerInformationFormat", "ProfilingVerbosity")},
    **{name: name for name in ("MemoryPoolType", "NetworkDefinitionCreationFlag", "TacticSource")},
}  # fmt: skip
OURS = {  # attributes of other objects with these names
    "network": {"builder", "definition", "flavour", "layers", "log", "tensors", "weakly_typed", "inputs", "outputs"},
    "module": {"__version__", "named_modules", "partition"}, "cache": {"parent", "is_file"},
    "context": set(), "tensor": {"data_ptr", "view", "numel", "format"},
}  # fmt: skip


NODES = [node for file in FILES for node in ast.walk(ast.parse(file.read_text()))]


def used():
    """Return the names of the table's classes that the code uses."""
    names = set()
    for node in NODES:
        if isinstance(node, ast.Attribute):
            last = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if last in OBJECTS and node.attr not in OURS.get(last, ()):
                names.add((OBJECTS[last], node.attr))
    return names


def test_the_table_has_all_names_that_the_code_uses():
    assert not {f"{kind}.{name}" for kind, name in used() if name not in TABLE.get(kind, {})}
    assert len(used()) > 60
    assert all({*releases.split()} <= {*RELEASES, "rtx"} for names in TABLE.values() for releases in names.values())
    assert set(DTYPES) == set(TABLE["DataType"])
    assert set(PRECISION_FLAGS.values()) <= set(TABLE["BuilderFlag"])


def test_calls_have_the_arguments_of_the_table():
    called = {}
    for node in NODES:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called.setdefault(node.func.attr, []).append(node)
    elsewhere = {name for names in TABLE.values() for name, releases in names.items() if releases == "rtx"} | {"dtype"}
    assert {name for _, name in used()} & called.keys() - elsewhere <= CALLS.keys() <= called.keys()
    for name, arguments in CALLS.items():
        for call in called[name]:
            if not any(isinstance(expr, ast.Starred) for expr in call.args):
                assert (len(call.args), call.keywords) == (len(arguments.split()), []), ast.unparse(call)


def test_onnx_runtimes_provider_is_given_options_that_it_has():
    given = {}
    for precision in ("fp32", "fp16", "bf16"):
        case = small.case("onnxruntime:tensorrt", device="cuda", precision=precision)
        ((_, options), *_) = provider_list(PROVIDERS["tensorrt"], case, OnnxRuntimeOptions(), 0, Path())
        given[precision] = {name for name in options if name.startswith("trt_")}
    newer = {name for name, versions in PROVIDER.items() if "1.18" not in versions}
    assert given["bf16"] == PROVIDER.keys()
    assert given["fp32"] == given["fp16"] == PROVIDER.keys() - newer


def test_an_option_that_the_release_lacks_is_refused():
    old = Flavour("trt", "tensorrt", "TensorRT", "10.3.0", SimpleNamespace(IBuilderConfig=object, BuilderFlag=object))
    network = Network(old, None, None, None, None)
    with pytest.raises(Unsupported, match=r"TensorRT 10\.3\.0 has no max_num_tactics"):
        builder_config(network, TensorRTOptions(max_num_tactics=5), ())
    assert old.strongly_typed_only  # as TensorRT 11, whose flags of precisions are gone
