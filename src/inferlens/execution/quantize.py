"""``inferlens quantize``: a model quantized to a file, which is run and compared before it is reported.

If the backend cannot run its file here, the file's reference does: ONNX Runtime, one operator after the other. For a
limit, the layers that lose most stay as they are, as few of them as possible. The search tries them, and writes, runs
and measures every attempt like the last one.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from inferlens.analysis.measures import score_accuracy
from inferlens.backends import BACKENDS
from inferlens.backends.base import Capabilities, Outputs, Preparation, Quantizer, Runner
from inferlens.backends.onnx.quantize import LAYER_SAMPLES as FEW
from inferlens.backends.onnx.quantize import rank_layers
from inferlens.errors import InferlensError, check_choice
from inferlens.execution.cases import (
    ModelHandle,
    check_words,
    default_device,
    expand,
    load_model_info,
    model_handle,
    only_case,
    probe,
    refuse_if_none_runs,
)
from inferlens.execution.deploy import CACHE, FileJob, able, write_with
from inferlens.execution.protocol import PlannedCase
from inferlens.execution.tasks import TaskContext
from inferlens.measure.output_check import Evaluation, accuracy_of, evaluate, top1
from inferlens.models import resolve
from inferlens.models.files import OnnxFile, onnx_graph, weight_files
from inferlens.models.model import LoadRequest, Model
from inferlens.models.samples import calibration_feeds
from inferlens.record.builds import LayerError, OutputError, Quantization, QuantizedFile, save_quantization
from inferlens.record.store import safe_name
from inferlens.spec.case import QUANTIZED, Case, TensorSpec, keep_of, kept_layers
from inferlens.spec.commands import own_options
from inferlens.spec.objective import Constraint
from inferlens.spec.plan import Plan
from inferlens.stats.intervals import ends
from inferlens.stats.samples import cosine, flatten, relative_l2

SAMPLES = 64  # on which outputs are compared
LIMITS = {"error": "error", "accuracy-drop": "accuracy_drop"}  # the fields of an attempt, by limit


class QuantizeJob(FileJob, frozen=True, kw_only=True):
    """Write the case's model, quantized, to ``path``, and compare it with ``reference``.

    ``errors``: whether to measure the errors of layers; ``limit``: the limit of the file; ``accuracy``: data to
    evaluate it on.
    """

    reference: Case
    errors: bool = False
    limit: Constraint | None = None
    accuracy: str = ""


def quantize_model(job: QuantizeJob, context: TaskContext) -> Quantization:
    """Write the model, quantized, and return how good it is; write nothing if no attempt keeps the limit."""
    begun, model = time.perf_counter(), context.load()
    search = QuantizationSearch(job, context, model)
    best = search.attempt(job.case.keep)
    layers: tuple[LayerError, ...] = ()
    reached = search.keeps(best)
    if job.errors or not reached:
        layers = tuple(search.layers())
    if not reached:
        kept = kept_layers(job.case)
        best = search.search([layer.name for layer in layers if layer.name not in kept])
        reached = search.keeps(best)
        if reached and best != search.attempts[-1]:
            search.write(best.keep)
    if not reached:
        for file in Path(job.path).parent.iterdir():
            file.unlink()
    return Quantization(
        path=job.path * reached,
        case=job.case,
        best=best,
        samples=search.count,
        size_before=sum(file.stat().st_size for file in files_of(search.plain)),
        size=sum(file.stat().st_size for file in Path(job.path).parent.iterdir() if file.suffix != ".json"),
        run_by=search.run_by.backend_label,
        not_run=search.not_run,
        seconds=time.perf_counter() - begun,
        layers=layers,
        attempts=tuple(search.attempts),
    )


def files_of(path: Path) -> list[Path]:
    """Return an ONNX file, and those with its weights."""
    return [path, *weight_files(path, onnx_graph(path))]


class QuantizationSearch:
    """A search that quantizes a model with different layers kept, and measures the results."""

    def __init__(self, job: QuantizeJob, context: TaskContext, model: Model) -> None:
        self.job, self.context, self.model = job, context, model
        self.attempts: list[QuantizedFile] = []
        size = model.inputs[0].shape[0] if model.inputs[0].shape else 1
        self.feeds = list(itertools.islice(calibration_feeds(model, job.case), math.ceil(SAMPLES / size)))
        self.count = len(self.feeds) * size
        self.plain = Path()
        self.run_by, self.not_run = job.case, ""
        ability = context.backend.capabilities()
        supports = [support for support in (*ability.supports, *ability.writes) if support.variant == job.case.variant]
        self.keeps_in = next((support.keeps[0] for support in supports if support.keeps), "fp32")
        backend, preparation = BACKENDS.get(job.reference.backend)(), self._aside()
        with backend.prepare(model, job.reference, preparation) as runner:
            self.expected = self._outputs(runner)
            self.reference = self._evaluated(model, runner)

    def attempt(self, keep: str) -> QuantizedFile:
        """Write the model with some layers kept, and run the file."""
        case = self.write(keep)
        path = Path(self.job.path)
        info = resolve.find(str(path))
        inputs = self._inputs(path)
        batch = self.model.inputs[0].shape[0] if self.model.inputs[0].shape else None
        case = replace(case, model=info.spec, inputs=inputs, batch=batch, weights=None, calibration="", keep="")
        reference = PlannedCase(case, info, None).reference
        refusal = self.context.backend.capabilities().refusal(case, info)
        if refusal and reference:
            self.run_by, self.not_run, case = reference, refusal.what, reference
        loaded = resolve.load(case, trust=True)  # this process wrote the file
        with BACKENDS.get(case.backend)().prepare(loaded, case, self._aside()) as runner:
            outputs = self._outputs(runner)
            evaluation = self._evaluated(loaded, runner)
        attempt = QuantizedFile(
            keep=keep,
            share=self.context.preparation.facts.get("quantized_share"),
            outputs=tuple(map(_error, zip(*outputs, strict=True), zip(*self.expected, strict=True))),
            top1=_same_top1(outputs, self.expected),
            **self._accuracy_fields(evaluation),
        )
        self.attempts.append(attempt)
        return attempt

    def _inputs(self, path: Path) -> tuple[TensorSpec, ...]:
        """Return the inputs of the file of an ONNX model: the free sizes of the model, and the types of the file."""
        if self.model.format != "onnx":
            return ()
        file_specs = OnnxFile().open(str(path), LoadRequest()).inputs if path.suffix == ".onnx" else ()
        dtypes = {spec.name: spec.dtype for spec in file_specs}
        return tuple(replace(spec, dtype=dtypes.get(spec.name, spec.dtype)) for spec in self.model.inputs)

    def write(self, keep: str) -> Case:
        """Write the model with some layers kept; return its case."""
        case = replace(self.job.case, keep=keep)
        backend = cast("Quantizer", self.context.backend)
        self.plain = backend.write_quantized(self.model, case, self.context.preparation, Path(self.job.path))
        return case

    def keeps(self, attempt: QuantizedFile) -> bool:
        """Return whether an attempt keeps the limit, if there is one."""
        return self.job.limit is None or self._beyond(attempt) <= 1.0

    def layers(self) -> list[LayerError]:
        """Return the errors of layers that are quantized one at a time, as ONNX Runtime quantizes on the CPU."""
        size = max(self.count // len(self.feeds), 1)
        feeds = self.feeds[: math.ceil(FEW / size)]
        with self.context.preparation.phase("quantize"):
            return rank_layers(self.plain, self.model, replace(self.job.case, keep=""), self._aside(), feeds)

    def search(self, names: Sequence[str]) -> QuantizedFile:
        """Return the attempt that keeps the limit with the fewest layers; without one, the attempt nearest to it.

        Layers are kept in the order of ``names``.
        """
        user_words = [f"{precision}:{name}" for name, precision in kept_layers(self.job.case).items()]
        too_few, enough, best = 0, 0, None  # the largest number of layers that failed, and the smallest that did not
        while (enough or len(names)) - too_few > 1:
            number = (too_few + enough) // 2 if enough else min(max(1, 2 * too_few), len(names) - 1)
            attempt = self.attempt(keep_of([*user_words, *(f"{self.keeps_in}:{name}" for name in names[:number])]))
            if self.keeps(attempt):
                best, enough = attempt, number
            else:
                too_few = number
        return best or min(self.attempts, key=self._beyond)

    def _beyond(self, attempt: QuantizedFile) -> float:
        assert self.job.limit
        value = getattr(attempt, LIMITS[self.job.limit.name])
        if value is None:
            raise InferlensError(
                "The accuracy is not known, so no limit on it can be kept.", hint="--within error=1e-2"
            )
        return self.job.limit.factor(max(value, 0.0))

    def _aside(self) -> Preparation:
        """Return a preparation whose phases and warnings are not those of the case."""
        parent = self.context.preparation
        folder, exports = parent.folder / "aside", parent.export_folder
        return Preparation(folder, parent.cache, parent.on_phase, parent.now, trust=True, export_folder=exports)

    def _outputs(self, runner: Runner) -> list[Outputs]:
        return [[np.array(output) for output in runner.answer(feed)] for feed in self.feeds]

    def _evaluated(self, model: Model, runner: Runner) -> Evaluation | None:
        return evaluate(self.job.accuracy, self.job.case, model, runner) if self.job.accuracy else None

    def _accuracy_fields(self, evaluation: Evaluation | None) -> dict[str, Any]:
        """Return the fields of an attempt that an evaluation gives."""
        if evaluation is None:
            return {}
        accuracy = accuracy_of(self.job.accuracy, evaluation, "fp32", self.reference)
        score = score_accuracy(accuracy) if accuracy.values else None
        if score is None:
            raise InferlensError(accuracy.reason or "The accuracy is not known.", hint="--within error=1e-2")
        low, high = ends(score.drop_interval)
        return {
            "metric": accuracy.metric,
            "accuracy": score.value,
            "reference_accuracy": float(np.mean(accuracy.reference_values)) if accuracy.reference_values else 1.0,
            "accuracy_share": score.is_share,
            "accuracy_drop": score.drop,
            "accuracy_drop_low": low,
            "accuracy_drop_high": high,
        }


def _error(ours: Sequence[Any], target: Sequence[Any]) -> OutputError:
    """Return the error of one output against the reference's, over all feeds."""
    pair = flatten(*ours), flatten(*target)
    return OutputError(relative_l2(*pair), cosine(*pair))


def _same_top1(ours: Sequence[Outputs], target: Sequence[Outputs]) -> float | None:
    """Return the share of samples with the same largest element of the first output, if it has scores of classes."""
    shares = [top1(outputs[0], reference[0]) for outputs, reference in zip(ours, target, strict=True)]
    return None if None in shares else float(np.mean(shares))  # type: ignore[arg-type]


# The parent.


def quantize(
    model: Any, example_inputs: Any = None, *, phase: Callable[[str], None] = lambda _: None, **words: Any
) -> Quantization:
    """Quantize a model to a file, and run and compare the file; ``words`` are the options of ``inferlens quantize``.

    Raises InferlensError if the model or the words mean nothing, or the model cannot be quantized.
    """
    options, words = own_options("quantize", words)
    to, within, output = options["to"], options["within"], options["output"]
    accuracy, device, rebuild = words.pop("accuracy", None), words.pop("device", None), words.pop("rebuild", False)
    limit = limit_of(within or None, accuracy)
    with model_handle(model, example_inputs) as handle:
        planned = _planned({**words, "precision": to, "model": handle.spec}, options["backend"], device, to, handle)
        case = planned.case
        suffix = cast("type[Quantizer]", BACKENDS.get(case.backend)).quantized_suffix
        path = Path(output) if output else Path(f"{safe_name(planned.model.name)}.{to}{suffix}")
        if path.suffix != suffix:
            what = f"{case.backend} writes what it quantizes to {suffix} files, not to {path.name}."
            raise InferlensError(what, hint=f"--output {path.with_suffix(suffix)}")
        result = write_with(
            path, "quantize", QuantizeJob, Quantization, Quantizer, case,
            reference=planned.reference, errors=options["errors"], limit=limit, accuracy=str(accuracy or ""),
            trust=words.get("trust", False), rebuild=rebuild, live=handle.live,
            timeout=options["timeout"], phase=phase,
        )  # fmt: skip
    assert result.value
    quantization = replace(result.value, path=str(path) if result.value.path else "", limit=within or "")
    save_quantization(CACHE.parent / safe_name(planned.model.name), quantization)
    return quantization


def limit_of(within: str | None, accuracy: Any) -> Constraint | None:
    """Return the limit of a text. Raises InferlensError for one that quantizing cannot keep."""
    if within is None:
        return None
    check_choice("limit of a quantization", within.partition("=")[0].strip(), LIMITS)
    limit = Constraint.parse(within)
    if limit.name == "accuracy-drop" and not accuracy:
        what = "A limit on the drop in accuracy needs data to tell it by."
        raise InferlensError(what, hint="--accuracy DATA, or --within error=1e-2")
    return limit


def _planned(
    words: dict[str, Any], backend: str | None, device: str | None, to: str, model: ModelHandle
) -> PlannedCase:
    """Return the one case that the words mean, on a backend that writes files, whether it can run them here or not."""
    check_choice("precision to quantize to", to, QUANTIZED)
    names = able(Quantizer)
    if backend and (name := backend.partition(":")[0]) not in names:
        BACKENDS.get(name)  # an unknown name is reported first
        raise InferlensError(
            f"{name} writes no files of what it quantizes.",
            hint=f"--backend {names[0]}, or 'inferlens bench MODEL -b {name} --precision {to}', which quantizes too",
        )
    probed = probe([name] if backend else names)
    capabilities = {name: _with_written(ability, to) for name, ability in probed.items()}
    supports = [(name, support) for name, ability in capabilities.items() for support in ability.supports]
    quantizing = [(name, support) for name, support in supports if to in support.quantizes]
    device = device or (quantizing[0][1].device if quantizing else default_device(capabilities.values()))
    labels = [f"{name}:{support.variant}" for name, support in quantizing if support.device == device]
    if not backend and not labels:
        precisions = {word for _, support in supports if support.device == device for word in support.quantizes}
        hint = f"--to {min(precisions)}" if precisions else "inferlens backends"
        raise InferlensError(f"Nothing here quantizes to {to} on {device}.", hint=hint)
    backend = backend or labels[0]
    plan = Plan.from_words({**words, "backend": backend, "device": device})
    check_words(plan)
    models = load_model_info(plan, model)
    for info in models:
        if info.precision in QUANTIZED:
            raise InferlensError(f"{info.name} is quantized already.", hint=f"inferlens bench {info.argument}")
    cases = expand(plan, models, capabilities)
    refuse_if_none_runs(cases)
    planned = only_case(cases)
    assert planned.reference  # because the model is not quantized
    return planned


def _with_written(ability: Capabilities, to: str) -> Capabilities:
    """Return capabilities that include files that the backend only writes here."""
    runs = tuple(support for support in ability.supports if to in support.quantizes)
    others = tuple(support for support in ability.supports if to not in support.quantizes)
    return replace(ability, supports=(*runs, *ability.writes, *others), absent=() if ability.writes else ability.absent)
