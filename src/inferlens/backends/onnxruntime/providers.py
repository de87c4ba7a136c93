"""ONNX Runtime's providers: which variant means which, whether it loads here, and its options.

ONNX Runtime lists a provider as available without loading its library, and when it cannot be loaded runs on the CPU
after a line in the log; so it is loaded here first, and the loader's own words are the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferlens.backends.base import Absence
from inferlens.spec.case import Case


@dataclass(frozen=True)
class Provider:
    """A variant's provider; one that ``lowers`` takes an fp32 graph and lowers the precision itself."""

    name: str
    device: str
    library: str = ""  # empty if it is built in
    lowers: bool = False


PROVIDERS = {
    "cpu": Provider("CPUExecutionProvider", "cpu"),
    "cuda": Provider("CUDAExecutionProvider", "cuda", "libonnxruntime_providers_cuda.so"),
    "tensorrt": Provider("TensorrtExecutionProvider", "cuda", "libonnxruntime_providers_tensorrt.so", lowers=True),
}
NEEDS = {"cuda": "CUDA and cuDNN of its version", "tensorrt": "TensorRT of its version (pip install tensorrt)"}
# Options that act on the nodes of one provider alone.
ACT_ON = {
    "CUDAExecutionProvider": ("tf32", "cudnn_conv_algo_search", "fuse_conv_bias", "prefer_nhwc"),
    "CPUExecutionProvider": ("enable_cpu_mem_arena", "allow_spinning"),
}


def provider_absence(ort: Any, variant: str) -> Absence | None:
    """Why a variant's provider cannot be had; ``None`` if it can."""
    provider = PROVIDERS[variant]
    if provider.name not in ort.get_available_providers():
        reason = f"this ONNX Runtime was built without the {provider.name}"
        return Absence(variant, reason, "pip uninstall onnxruntime; pip install onnxruntime-gpu")
    reason = load_error(ort, provider)
    return Absence(variant, reason, f"onnxruntime-gpu needs {NEEDS[variant]}") if reason else None


def load_error(ort: Any, provider: Provider) -> str:
    """Loads a provider's library and what it needs; the loader's words if that fails, else an empty string."""
    if not provider.library:
        return ""
    preload(ort, provider)
    library = Path(ort.__file__).parent / "capi" / provider.library
    try:
        ctypes.CDLL(str(library.with_name("libonnxruntime_providers_shared.so")), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"the {provider.name} does not load: {error}"
    return ""


def preload(ort: Any, provider: Provider) -> None:
    """Loads CUDA and cuDNN from Python packages: PyTorch's come with PyTorch, what else there is ONNX Runtime finds."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    if hasattr(ort, "preload_dlls"):
        # It prints what it does not find; what matters of that is said by the loader below.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError):
            ort.preload_dlls()
    if provider.lowers:
        with contextlib.suppress(ImportError):
            importlib.import_module("tensorrt")  # brings libnvinfer into the process


def provider_list(provider: Provider, case: Case, options: Any, stream: int, cache: Path) -> list[Any]:
    """What ONNX Runtime is asked for: the provider with its options, then those it may hand nodes to.

    Everything on the GPU runs on ``stream``, so that events recorded there time it.
    """
    if provider.device == "cpu":
        return [provider.name]
    common = {"device_id": "0", "user_compute_stream": str(stream)}
    # ONNX Runtime's own default is on. Off, it keeps convolutions of every type from tensor cores, those in fp16 too.
    tf32 = options.tf32 or case.precision != "fp32"
    cuda = {
        **common,
        "use_tf32": str(int(tf32)),
        "cudnn_conv_algo_search": options.cudnn_conv_algo_search,
        "enable_cuda_graph": str(int(options.cuda_graph and not provider.lowers)),
    }
    # Not named where they are off, which is ONNX Runtime's default: a version that lacks one would refuse its name.
    cuda |= {name: "1" for name in ("fuse_conv_bias", "prefer_nhwc") if getattr(options, name)}
    offered: list[Any] = [("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
    if not provider.lowers:
        return offered
    tensorrt = {
        **common,
        "trt_fp16_enable": str(int(case.precision == "fp16")),
        "trt_cuda_graph_enable": str(int(options.cuda_graph)),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(cache),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache),
    }
    if case.precision == "bf16":  # not named otherwise: an ONNX Runtime that is older than this option would refuse it
        tensorrt["trt_bf16_enable"] = "1"
    return [(provider.name, tensorrt), *offered]
