"""The script by which a deployed ONNX graph runs with ONNX Runtime alone, as a case has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inferlens.backends.onnxruntime.runner import session_options
from inferlens.backends.scripts import beside, numpy_inputs, program
from inferlens.spec.case import Case, TensorSpec

ON_CPU = """
def run(*inputs):
    given = dict(zip(NAMES, inputs))
    return session.run(None, {name: given[name] for name in taken})"""
# Bound once: a CUDA graph reads and writes the same memory in every call.
ON_GPU = """
host = {name: array.copy() for name, array in zip(NAMES, inputs) if name in taken}
bound = {name: ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in host.items()}
binding = session.io_binding()
for name, value in bound.items():
    binding.bind_ortvalue_input(name, value)
for node in session.get_outputs():
    binding.bind_output(node.name, "cuda")


def run(*inputs):  # with copies to the GPU and back
    given = dict(zip(NAMES, inputs))
    for name, value in bound.items():
        np.copyto(host[name], given[name])  # update_inplace copies bytes: it neither converts nor checks types
        value.update_inplace(host[name])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()"""


def onnxruntime_script(
    case: Case, file: str, inputs: tuple[TensorSpec, ...], floats: str, options: Any, offered: list[Any]
) -> str:
    """The script, with the session options of a case's ``options`` and the providers that are ``offered``."""
    on_gpu = case.device == "cuda"
    providers = [_own_stream(each) for each in offered]
    imports = ["import numpy as np", "import onnxruntime as ort", *["import torch  # brings CUDA and cuDNN"] * on_gpu]
    lines = [
        "options = ort.SessionOptions()",
        *statements(*session_options(case, options)),
        f"session = ort.InferenceSession({beside(file)}, options, providers={providers!r})",
        f"NAMES = {[spec.name for spec in inputs]!r}",
        "taken = [node.name for node in session.get_inputs()]  # the graph lacks those that the model never uses",
        *numpy_inputs(inputs, floats),
        "",
        ON_GPU if on_gpu else ON_CPU,
    ]
    return program(case, imports, lines)


def statements(attributes: Mapping[str, Any], entries: Mapping[str, str]) -> Iterator[str]:
    """Statements that give ``options`` what a session is given, but for the library's defaults."""
    import onnxruntime as ort

    defaults = ort.SessionOptions()
    for name, value in attributes.items():
        if value == getattr(defaults, name):
            continue
        word = f"ort.{type(value).__name__}.{value.name}" if hasattr(value, "name") else repr(value)
        yield f"options.{name} = {word}"
    for key, text in entries.items():
        if text != "1":  # threads spin by default
            yield f"options.add_session_config_entry({key!r}, {text!r})"


def _own_stream(provider: Any) -> Any:
    """A provider without what names a stream of this process."""
    if isinstance(provider, str):
        return provider
    name, options = provider
    return name, {key: value for key, value in options.items() if key != "user_compute_stream"}
