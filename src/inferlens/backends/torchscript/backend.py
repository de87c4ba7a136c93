"""TorchScript: the model traced or scripted, optionally frozen and optimised for inference.

A model that already is TorchScript runs as it is under either variant. Tracing and scripting happen on the case's
device and in its precision, because a trace bakes both into its constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta, structs

from inferlens.backends.abilities import Deployer, KernelOrigin, KernelOrigins, Launched, LayerProfiler, Origins, Saver
from inferlens.backends.availability import quiet, refused
from inferlens.backends.base import Backend, Capabilities, Knob, Preparation, Recommendation, Runner
from inferlens.backends.profiling.kernel_matching import MatchedKernels, origins_by_match
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.profiling.operator_layers import layers_of, matched_kernels
from inferlens.backends.pytorch.export import DTYPES, WRAPPED, flat_outputs
from inferlens.backends.pytorch.runner import Feed, TorchOptions, TorchRunner, torch_capabilities
from inferlens.backends.pytorch.script import torch_script
from inferlens.backends.scripts import beside
from inferlens.backends.torchscript.layers import Modules, ScriptNames
from inferlens.errors import Unsupported, reason
from inferlens.models.files import input_note
from inferlens.models.model import Format, Model
from inferlens.models.weights import buffers, restore
from inferlens.record.profile import Layers
from inferlens.spec.case import HALF, Case, Option, TensorSpec
from inferlens.spec.hints import Hint

OPTIMISED = "optimize_for_inference leaves no names of modules, and operators that torch.profiler does not see"


class TorchScriptOptions(TorchOptions, frozen=True, forbid_unknown_fields=True):
    """Options of TorchScript."""

    freeze: Annotated[
        bool,
        Meta(description="inline weights as constants (torch.jit.freeze), which folds batch norm into convolutions"),
    ] = False
    optimize_for_inference: Annotated[
        bool, Meta(description="freeze and fuse for inference (torch.jit.optimize_for_inference)")
    ] = False


class TorchScript(Backend, Saver, Deployer):
    """TorchScript, traced or scripted."""

    name = "torchscript"
    summary = "TorchScript, traced or scripted"
    variants = ("trace", "script")
    options = TorchScriptOptions
    reference_for: ClassVar[dict[Format, tuple[str, dict[str, Option]]]] = {"torchscript": ("script", {})}
    saves: ClassVar[dict[str, str]] = {".pt": "TorchScript"}
    script_packages = ("torch",)
    knobs = (
        # It freezes the module first.
        Knob(name="optimize_for_inference", values=(True,), without=("freeze",), helps=("memory",)),
        Knob(name="freeze", values=(True,), without=("optimize_for_inference",), helps=("memory",)),
        Knob(name="channels_last", values=(True,), helps=("layout",)),
        Knob(name="tf32", values=(True,), devices=("cuda",), precisions=("fp32",)),
    )
    left_out_on = ("cuda",)  # it was never the fastest there, and compiled the kernels of a DenseNet for minutes
    recommended = (
        Recommendation("trace", "cpu", {"optimize_for_inference": True}, ("fp32",)),
        Recommendation("trace", "cpu", {"freeze": True}, HALF),
    )

    def capabilities(self) -> Capabilities:
        return torch_capabilities(self.variants, ("module", "exported", "torchscript"))

    def prepare(self, model: Model, case: Case, preparation: Preparation) -> Runner:
        options: TorchScriptOptions = self.parse_options(case)
        if model.format == "exported" and case.variant == "script":
            raise Unsupported("An exported program has no source to script.", hint="--backend torchscript:trace")
        if case.variant == "script" and hasattr(type(model.module), "takes_names"):
            what = "Inputs by name are passed on by code that TorchScript cannot script."
            raise Unsupported(what, hint="--backend torchscript:trace, or example inputs as a tuple")
        if options.optimize_for_inference and preparation.level == "layer":
            raise Unsupported(f"{OPTIMISED}.", hint="--option torchscript.freeze=true")
        return ScriptRunner(model, case, preparation, options)

    def save(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes the traced or scripted module, on the CPU, with a note of its inputs."""
        runner = self.prepare(model, structs.replace(case, device="cpu"), preparation)
        assert isinstance(runner, ScriptRunner)
        runner.save(path)

    @classmethod
    def hint(cls, case: Case, option: str, value: Option, facts: Mapping[str, Any]) -> Hint:
        """What is optimised for inference is frozen first."""
        if option == "freeze" and cls.parse_options(case).optimize_for_inference:
            return Hint(asked=True)
        return super().hint(case, option, value, facts)

    def deployed_as(self, case: Case) -> str:  # noqa: ARG002
        return ".pt"

    def deploy(self, model: Model, case: Case, preparation: Preparation, path: Path) -> None:
        """Writes the script module, on the device of the case; it is frozen and optimised once it is loaded."""
        plain = structs.replace(self.parse_options(case), freeze=False, optimize_for_inference=False)
        ScriptRunner(model, case, preparation, plain).save(path)

    def script(self, case: Case, file: str, inputs: tuple[TensorSpec, ...]) -> str:
        options: TorchScriptOptions = self.parse_options(case)
        load = [f"model = torch.jit.load({beside(file)}).eval()"]
        if options.optimize_for_inference:
            load.append("model = torch.jit.optimize_for_inference(model)")
        elif options.freeze:
            load.append("model = torch.jit.freeze(model)")
        return torch_script(case, options, inputs, load)


class ScriptRunner(TorchRunner, LayerProfiler, KernelOrigins):
    """Calls the script module."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: TorchScriptOptions) -> None:
        super().__init__(model, case, preparation, options)
        self._options = options
        self._wrapped = ""  # the path of the model in what was traced or scripted
        self._matched: MatchedKernels | None = None

    def save(self, path: Path) -> None:
        """Writes the script module, with a note of its inputs; the runner is not entered yet."""
        import torch

        with self, quiet():
            notes = input_note(self.model.inputs, DTYPES[self.case.precision])
            torch.jit.save(self._call, str(path), _extra_files=notes)

    def build(self, module: Any) -> Callable[..., Any]:
        """Traces or scripts, then freezes and optimises as asked, or refuses for the reason that TorchScript gives."""
        import torch

        variant, other = self.case.variant, "script" if self.case.variant == "trace" else "trace"
        hint = f"--backend torchscript:{other}"
        with quiet(), refused(f"TorchScript cannot {variant} '{self.model.name}'", hint=hint):
            script = self._script(module)
            if self._options.optimize_for_inference:
                script = torch.jit.optimize_for_inference(script)
            elif self._options.freeze and hasattr(script, "training"):  # frozen before it was saved, it has lost that
                script = torch.jit.freeze(script.eval())
        return script  # type: ignore[no-any-return]

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        check_level(self.preparation)
        return layers_of(self, self._names(feed), feed, runs, on_gpu=self.case.device == "cuda")

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The operators and modules of the same kernels in one call that is looked at."""
        if self._options.optimize_for_inference:
            return Origins((KernelOrigin(),) * len(launched), {"modules": f"{OPTIMISED}."})
        if self._matched is None:
            feed = self.seeded_feed()
            self._matched = matched_kernels(self, self._names(feed), feed)
        return origins_by_match(launched, self._matched)

    def _names(self, feed: Feed) -> ScriptNames:
        modules, on_gpu = Modules(self.model.module, self._wrapped), self.case.device == "cuda"
        return ScriptNames(self, modules, feed, on_gpu=on_gpu, frozen=not hasattr(self._call, "training"))

    def _script(self, module: Any) -> Any:
        import torch

        if isinstance(module, torch.jit.ScriptModule):
            self.preparation.facts["torchscript"] = "loaded as TorchScript, neither traced nor scripted here"
            # What was frozen has its weights as constants, which stay where and what they were.
            if not hasattr(module, "training") and (self.case.device != "cpu" or self.case.precision != "fp32"):
                what = "This TorchScript archive was frozen: its weights are fp32 constants on the CPU."
                raise Unsupported(what, hint="an archive saved without torch.jit.freeze, or fp32 on the CPU")
            return module
        self.preparation.facts["torchscript"] = {"trace": "traced", "script": "scripted"}[self.case.variant]
        if self.case.variant == "script":
            return torch.jit.script(module)
        return self._traced(module)

    def _traced(self, module: Any) -> Any:
        import torch

        feed, state = self.seeded_feed(), buffers(module)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", torch.jit.TracerWarning)
            try:
                traced = torch.jit.trace(module, feed, check_trace=False, strict=False)
            except RuntimeError:
                # A trace returns tensors, tuples, lists and dictionaries of one type; any other output is flattened.
                self._wrapped = WRAPPED
                traced = torch.jit.trace(flat_outputs(module), feed, check_trace=False, strict=False)
        restore(module, state)  # which tracing has changed, and a file would keep
        # Values that became constants. Mostly they are shapes and harmless; where not, the outputs disagree.
        self.preparation.facts["trace_warnings"] = [reason(str(warning.message)) for warning in heard]
        return traced
