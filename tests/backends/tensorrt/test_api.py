"""What our code uses of TensorRT, held against the table of what each release has: TensorRT itself is not run here."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import inferlens
from inferlens.backends.onnxruntime.backend import OnnxRuntimeOptions
from inferlens.backends.onnxruntime.runner import PROVIDERS, provider_list
from inferlens.backends.tensorrt.engine import DTYPES, PRECISION_FLAGS, Network, builder_config
from inferlens.backends.tensorrt.library import Flavour, TensorRTOptions
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
# Objects of TensorRT's by the last name of what they are called, and whose names they have.
OBJECTS = {
    "trt": "module", "module": "module", "tensorrt": "module", "builder": "Builder", "config": "IBuilderConfig",
    "definition": "INetworkDefinition", "network": "INetworkDefinition", "parser": "OnnxParser",
    "cuda_engine": "ICudaEngine", "context": "IExecutionContext",
    "_context": "IExecutionContext", "_runtime": "Runtime", "Runtime": "Runtime",
    "inspector": "EngineInspector", "cache": "ITimingCache", "tensor": "ITensor", "IBuilderConfig": "IBuilderConfig",
    **{name: name for name in ("BuilderFlag", "TensorIOMode", "LayerInformationFormat", "ProfilingVerbosity")},
    **{name: name for name in ("MemoryPoolType", "NetworkDefinitionCreationFlag", "TacticSource")},
}  # fmt: skip
OURS = {  # attributes of others' objects that are called the same
    "network": {"builder", "definition", "flavour", "layers", "log", "tensors", "weakly_typed", "inputs", "outputs"},
    "module": {"__version__", "named_modules", "partition"}, "cache": {"parent", "is_file"},
    "context": set(), "tensor": {"data_ptr", "view", "numel", "format"},
}  # fmt: skip


def used():
    """Names of the table's classes that the code uses, with the files."""
    found = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                last = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                if last in OBJECTS and node.attr not in OURS.get(last, ()):
                    found.setdefault((OBJECTS[last], node.attr), set()).add(file.name)
    return found


def test_the_code_uses_nothing_that_the_table_does_not_have():
    unknown = {f"{kind}.{name} in {files}" for (kind, name), files in used().items() if name not in TABLE.get(kind, {})}
    assert not unknown
    assert len(used()) > 60


def test_calls_have_the_arguments_of_the_table():
    called = {}
    for node in (node for file in FILES for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called.setdefault(node.func.attr, []).append(node)
    elsewhere = {name for names in TABLE.values() for name, releases in names.items() if releases == "rtx"} | {"dtype"}
    assert {name for _, name in used()} & called.keys() - elsewhere <= CALLS.keys() <= called.keys()
    for name, arguments in CALLS.items():
        for call in called[name]:
            if not any(isinstance(expr, ast.Starred) for expr in call.args):
                assert (len(call.args), call.keywords) == (len(arguments.split()), []), ast.unparse(call)


@pytest.mark.parametrize("kind", TABLE)
def test_what_a_release_lacks_is_asked_for_by_name_before_it_is_used(kind):
    asked = {
        argument.value.upper()
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, (ast.Call, ast.Dict))
        for argument in ast.walk(node)
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    follows = {  # those that are there with another one, which is asked for
        "num_compute_capabilities", "create_runtime_config", "set_runtime_cache",
    }  # fmt: skip
    by_value = {"CUBLAS", "CUBLAS_LT", "CUDNN", "E8M0", "FP4", "SAME_COMPUTE_CAPABILITY"}  # looked up among the members
    for name, releases in TABLE[kind].items():
        assert set(releases.split()) <= {*RELEASES, "rtx"}
        if releases.split() != RELEASES and name not in follows | by_value:
            assert name.upper() in asked, f"{name} is only in {releases}"


def test_types_and_lowered_precisions_are_those_of_the_table():
    assert set(DTYPES) == set(TABLE["DataType"])
    assert set(PRECISION_FLAGS.values()) <= set(TABLE["BuilderFlag"])


def test_onnx_runtimes_provider_is_given_options_that_it_has():
    given = {}
    for precision in ("fp32", "fp16", "bf16"):
        case = small.case("onnxruntime:tensorrt", device="cuda", precision=precision)
        ((_, options), *_) = provider_list(PROVIDERS["tensorrt"], case, OnnxRuntimeOptions(), 0, Path())
        given[precision] = {name for name in options if name.startswith("trt_")}
    newer = {name for name, versions in PROVIDER.items() if "1.18" not in versions}
    assert given["bf16"] == PROVIDER.keys()
    assert given["fp32"] == given["fp16"] == PROVIDER.keys() - newer


def test_what_this_release_lacks_is_refused_in_one_sentence():
    """TensorRT 10.3 has no ``max_num_tactics``, which Python would say in the middle of a build."""
    old = Flavour("trt", "tensorrt", "TensorRT", "10.3.0", SimpleNamespace(IBuilderConfig=object, BuilderFlag=object))
    network = Network(old, None, None, None, None)
    with pytest.raises(Unsupported, match=r"TensorRT 10\.3\.0 has no max_num_tactics"):
        builder_config(network, TensorRTOptions(max_num_tactics=5), ())
    assert old.strongly_typed_only  # as TensorRT 11, whose flags of precisions are gone
