"""TensorRT from ONNX as a backend: modules are exported, ONNX files and engines are taken as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from inferlens.analysis.findings.hints import Hint
from inferlens.backends.abilities import Builder, Saver
from inferlens.backends.availability import cuda_absence, imported, torch_versions, warn_no_effect
from inferlens.backends.base import TOLERANCES, Absence, Backend, Capabilities, Preparation, Runner, Support
from inferlens.backends.onnx.export import onnx_file
from inferlens.backends.onnx.graph import check_precision
from inferlens.backends.onnxruntime.backend import onnx_formats, onnx_versions
from inferlens.backends.pytorch.runner import torch_tolerance
from inferlens.backends.tensorrt import quantized
from inferlens.backends.tensorrt.builds import write_engine
from inferlens.backends.tensorrt.engine import KIND, Job, built
from inferlens.backends.tensorrt.examine import examiner
from inferlens.backends.tensorrt.flavours import find, flavour
from inferlens.backends.tensorrt.from_file import engine_file
from inferlens.backends.tensorrt.gpu import current_gpu
from inferlens.backends.tensorrt.ignored_options import OF_TACTICS, heeded
from inferlens.backends.tensorrt.network import warn_of_float64
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.plugins import plugin_files, registered_plugins
from inferlens.backends.tensorrt.profiles import profiles, spread
from inferlens.backends.tensorrt.runner import EngineRunner
from inferlens.backends.tensorrt.timing_cache import check_timing_cache
from inferlens.errors import Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.record.build_report import BuildReport
from inferlens.spec.case import PRECISIONS, QUANTIZED, Case, Option


class TensorRT(Backend, Saver, Builder):
    """TensorRT and TensorRT for RTX, each a variant."""

    name = "tensorrt"
    summary = "TensorRT from ONNX: TensorRT (trt), TensorRT for RTX (rtx)"
    variants = ("trt", "rtx")
    options = Options
    distributions = ("tensorrt", "tensorrt-rtx")
    saves: ClassVar[dict[str, str]] = {".engine": KIND, ".plan": KIND}

    def capabilities(self) -> Capabilities:
        """Those flavours that are installed, on CUDA; modules too if there is an exporter."""
        formats = (*onnx_formats(), "engine")
        flavours = {variant: find(variant) for variant in self.variants}
        torch, no_torch = imported("torch", "PyTorch", "torch")  # its tensors, streams and events are used
        no_gpu = no_torch or cuda_absence(torch)
        here = [found for found, _ in flavours.values() if found]
        absent = [absence for _, absence in flavours.values() if absence]
        if no_gpu and here:
            absent += [Absence(each.variant, no_gpu.reason, no_gpu.hint, device="cuda") for each in here]
        return Capabilities(
            formats=formats,
            supports=tuple(Support(each.variant, "cuda", (*PRECISIONS, *QUANTIZED)) for each in here if not no_gpu),
            absent=tuple(absent),
            limits={key: text for each in here for key, text in quantized.limits(each).items()},
            libraries={
                **{each.key: each.version for each in here},
                **onnx_versions(),
                **(torch_versions(torch) if torch else {}),
            },
            dynamic_shapes=True,
            contents={f"plugins of {each.title}": tuple(registered_plugins(each)) for each in here},
        )

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        """Exports if the model is neither an ONNX file nor an engine; a runner that builds when it is entered."""
        options: Options = self.parse_options(case)
        found = flavour(case.variant)
        if options.streams > 1 and case.io == "host":
            warn_no_effect(preparation, "streams", "calls with --io host")
        check_timing_cache(options.timing_cache)
        plugin_files(options.plugins)
        if model.format == "engine":
            file = engine_file(model, case, options, found, preparation)
            return EngineRunner(
                file.plan, model, case, preparation, found, file.options,
                host_code=preparation.trust, hint=file.hint(preparation.trust),
            )  # fmt: skip
        path = self._onnx(model, case, preparation, options)

        def plan() -> bytes:
            job = Job(path, model, case, found, options, current_gpu())
            made = built(job, preparation)
            preparation.facts |= {
                "engine": {
                    "bytes": len(made.plan),
                    "sha256": made.provenance.file_sha256,
                    "build_seconds": made.provenance.build_seconds,
                    "cached": made.cached,
                }
            }
            return made.plan

        return EngineRunner(plan, model, case, preparation, found, options, path, host_code=options.version_compatible)

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes an engine, and its provenance beside it."""
        self.build(model, case, preparation, path)

    def build(self, model: Model, case: Case, preparation: Preparation, path: Path, builds: int = 1) -> BuildReport:
        """Writes an engine, its provenance beside it; several ``builds`` tell how far builds differ.

        Raises:
            Unsupported: if it cannot be built, with the reason.
        """
        if model.format == "engine":
            raise Unsupported(f"'{model.name}' is an engine already.", expected="a model or an ONNX file")
        options: Options = self.parse_options(case)
        found = flavour(case.variant)
        check_timing_cache(options.timing_cache)
        plugin_files(options.plugins)
        gpu = current_gpu()
        onnx = self._onnx(model, case, preparation, options)
        examine = examiner(model, case, found, options) if gpu and not options.compute_capability else None
        job = Job(onnx, model, case, found, options, gpu)
        return write_engine(job, preparation, Path(path), builds=builds, examine=examine)

    def tolerance(self, case: Case) -> float:
        """TF32's where it is on; TensorRT for RTX computes fp32 in TF32 whatever the option says."""
        if case.precision in QUANTIZED:
            return TOLERANCES[case.precision]
        is_built = case.model.startswith("engine:")
        tf32 = bool(provenance.option_of(case.model, "tf32")) if is_built else self.parse_options(case).tf32
        return torch_tolerance(case, tf32=tf32 or case.variant == "rtx")

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """An engine from a file is built already; TensorRT for RTX times no tactics, and uses TF32 unasked."""
        is_built = case.model.startswith("engine:") and option not in heeded(case.variant == "rtx")
        if is_built or (case.variant == "rtx" and option in OF_TACTICS):
            return Hint()
        if case.variant == "rtx" and option == "tf32":
            return Hint(asked=True)
        return super().hint(case, option, value, facts)

    @staticmethod
    def _onnx(model: Model, case: Case, preparation: Preparation, options: Options) -> Path:
        """The graph, in the case's precision and for all shapes of the profiles; weakly typed: in fp32.

        Raises:
            Unsupported: if it cannot be exported, or the file is in another precision.
        """
        precision = "fp32" if options.weakly_typed else case.precision
        if model.format == "onnx" and model.path is not None:
            check_precision(model.path, precision)
            warn_of_float64(model.path, flavour(case.variant), preparation)
            return model.path
        wide = replace(model, inputs=spread(model.inputs, profiles(options.profiles, model.inputs)))
        return onnx_file(wide, case, preparation, precision)
