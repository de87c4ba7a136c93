"""``inferlens quantize``: a model quantized to a file, which is run and compared before anything is said of it.

Where the backend cannot run here what it writes, the file's reference does: ONNX Runtime, one operator after the other.

Where a limit is given, the layers that lose most stay as they are: as few of them as keep it. Which these are is tried,
with every attempt written, run and measured as the last one is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from inferlens.analysis.measures import score_accuracy
from inferlens.backends import BACKENDS
from inferlens.backends.base import Capabilities, Inputs, Outputs, Preparation, Quantizer, Runner
from inferlens.backends.onnx.quantize import SAMPLES as FEW
from inferlens.backends.onnx.quantize import ranked
from inferlens.errors import InferlensError, check_choice
from inferlens.execution.deploy.build import CACHE, FileJob, able, written
from inferlens.execution.expand import Planned, check_words, default_device, expand, refuse_if_none_runs
from inferlens.execution.protocol import TaskResult
from inferlens.execution.survey import Named, found, named, probe
from inferlens.execution.worker import Child
from inferlens.measure.accuracy import Evaluation, beside, evaluated
from inferlens.measure.agreement import top1
from inferlens.models import resolve
from inferlens.models.model import Model, ModelInfo
from inferlens.models.samples import calibration_feeds
from inferlens.models.sources.onnx import onnx_graph, onnx_types, weight_files
from inferlens.record.quantization import LayerError, OutputError, Quantization, Written, save
from inferlens.record.store import safe_name
from inferlens.spec.case import QUANTIZED, Case, TensorSpec
from inferlens.spec.keep import keep_of, kept
from inferlens.spec.objective import MEASURES, Constraint
from inferlens.spec.plan import Duration, Plan, Texts
from inferlens.stats.samples import cosine, flatten, relative_l2
from inferlens.units import parse_duration

SAMPLES = 64  # that outputs are compared on
LIMITS = {"error": "error", "accuracy-drop": "accuracy_drop"}  # what an attempt has of each


class QuantizeJob(FileJob, frozen=True, kw_only=True):
    """Write the case's model, quantized, to ``path``, and compare it with ``reference``.

    ``errors``: whether to say what each layer loses; ``limit``: what the file has to keep; ``accuracy``: data that it
    is evaluated on.
    """

    reference: Case
    errors: bool = False
    limit: Constraint | None = None
    accuracy: str = ""


def quantize_model(job: QuantizeJob, child: Child) -> Quantization:
    """Writes the model, quantized, and says what it is worth; writes nothing where no attempt keeps the limit."""
    begun, model = time.perf_counter(), child.load()
    trying = Trying(job, child, model)
    best = trying.attempt(job.case.keep)
    layers: tuple[LayerError, ...] = ()
    reached = trying.keeps(best)
    if job.errors or not reached:
        layers = tuple(trying.layers())
    if not reached:
        own = {layer.name for layer in layers} - kept(job.case).keys()
        best = trying.search([layer.name for layer in layers if layer.name in own])
        reached = trying.keeps(best)
        if reached and best != trying.attempts[-1]:
            trying.write(best.keep)
    if not reached:
        for each in Path(job.path).parent.iterdir():
            each.unlink()
    return Quantization(
        path=job.path * reached,
        case=job.case,
        best=best,
        samples=trying.count,
        size_before=sum(file.stat().st_size for file in files_of(trying.plain)),
        size=sum(file.stat().st_size for file in Path(job.path).parent.iterdir() if file.suffix != ".json"),
        run_by=trying.run_by.backend_label,
        not_run=trying.not_run,
        seconds=time.perf_counter() - begun,
        layers=layers,
        attempts=tuple(trying.attempts),
    )


def files_of(path: Path) -> list[Path]:
    """An ONNX file, and those with its weights."""
    return [path, *weight_files(path, onnx_graph(path))]


class Trying:
    """Quantizes a model with these or those layers kept, and measures what comes of it."""

    def __init__(self, job: QuantizeJob, child: Child, model: Model) -> None:
        self.job, self.child, self.model = job, child, model
        self.attempts: list[Written] = []
        size = model.inputs[0].shape[0] if model.inputs[0].shape else 1
        self.feeds = list(itertools.islice(calibration_feeds(model, job.case), math.ceil(SAMPLES / size)))
        self.count = len(self.feeds) * size
        self.plain = Path()
        self.run_by, self.not_run = job.case, ""
        can = child.backend.capabilities()
        own = [each for each in (*can.supports, *can.writes) if each.variant == job.case.variant]
        self.keeps_in = next((each.keeps[0] for each in own if each.keeps), "fp32")
        backend, preparation = BACKENDS.get(job.reference.backend)(), self._aside()
        with backend.prepare(model, job.reference, preparation) as runner:
            self.expected = self._outputs(runner)
            self.reference = self._evaluated(model, runner)

    def attempt(self, keep: str) -> Written:
        """Writes the model with these layers kept, and runs what was written."""
        case = self.write(keep)
        path = Path(self.job.path)
        found = resolve.find(str(path))
        inputs = self._inputs(path)
        batch = self.model.inputs[0].shape[0] if self.model.inputs[0].shape else None
        case = replace(case, model=found.spec, inputs=inputs, batch=batch, weights=None, calibration="", keep="")
        case = self._runnable(case, found)
        loaded = resolve.load(case, trust=True)  # it was written here
        with BACKENDS.get(case.backend)().prepare(loaded, case, self._aside()) as runner:
            outputs = self._outputs(runner)
            own = self._evaluated(loaded, runner)
        made = Written(
            keep=keep,
            share=self.child.preparation.facts.get("quantized_share"),
            outputs=tuple(map(_error, zip(*outputs, strict=True), zip(*self.expected, strict=True))),
            top1=_kept(outputs, self.expected),
            **self._accuracy(own),
        )
        self.attempts.append(made)
        return made

    def _inputs(self, path: Path) -> tuple[TensorSpec, ...]:
        """What a file that was made from a file is given: sizes as free as before, and its own types."""
        if self.model.format != "onnx":
            return ()
        own = onnx_types(path) if path.suffix == ".onnx" else {}
        return tuple(replace(each, dtype=own.get(each.name, each.dtype)) for each in self.model.inputs)

    def write(self, keep: str) -> Case:
        """Writes the model with these layers kept; the case that it is."""
        case = replace(self.job.case, keep=keep)
        backend = cast("Quantizer", self.child.backend)
        self.plain = backend.write_quantized(self.model, case, self.child.preparation, Path(self.job.path))
        return case

    def _runnable(self, case: Case, found: ModelInfo) -> Case:
        """The case, or the one of its reference where its backend cannot run it here."""
        refusal = self.child.backend.capabilities().refusal(case, found)
        reference = Planned(case, found, None).reference
        if refusal and reference:
            self.run_by, self.not_run, case = reference, refusal.what, reference
        return case

    def keeps(self, attempt: Written) -> bool:
        """Whether it keeps the limit; it does where there is none."""
        return self.job.limit is None or self._beyond(attempt) <= 1.0

    def layers(self) -> list[LayerError]:
        """What each layer loses, quantized alone, as ONNX Runtime quantizes on the CPU."""
        size = max(self.count // len(self.feeds), 1)
        feeds = self.feeds[: math.ceil(FEW / size)]
        with self.child.preparation.phase("quantize"):
            return ranked(self.plain, self.model, replace(self.job.case, keep=""), self._aside(), feeds)

    def search(self, names: Sequence[str]) -> Written:
        """The attempt that keeps the fewest of these layers, the first ones, and the limit; else the nearest to it."""

        def first(number: int) -> Written:
            own = [f"{precision}:{name}" for name, precision in kept(self.job.case).items()]
            return self.attempt(keep_of([*own, *(f"{self.keeps_in}:{name}" for name in names[:number])]))

        failed, number, held = 0, 1, None
        while held is None and failed < len(names) - 1:
            number = min(number, len(names) - 1)
            made = first(number)
            held, failed, number = (made, failed, number) if self.keeps(made) else (None, number, number * 2)
        while held is not None and number - failed > 1:
            middle = (failed + number) // 2
            made = first(middle)
            held, failed, number = (made, failed, middle) if self.keeps(made) else (held, middle, number)
        return held or min(self.attempts, key=self._beyond)

    def _beyond(self, attempt: Written) -> float:
        assert self.job.limit
        value = getattr(attempt, LIMITS[self.job.limit.name])
        if value is None:
            raise InferlensError(
                "The accuracy is not known, so no limit on it can be kept.", hint="--within error=1e-2"
            )
        return self.job.limit.factor(max(value, 0.0))

    def _aside(self) -> Preparation:
        """For what is no part of the case, and says nothing of it."""
        own = self.child.preparation
        return Preparation(own.folder / "aside", own.cache, own.began, own.now, trust=True, exported=own.exported)

    def _outputs(self, runner: Runner) -> list[Outputs]:
        def answer(feed: Inputs) -> Outputs:
            return [np.array(each) for each in runner.collect(runner.infer(runner.place(feed)))]

        return [answer(feed) for feed in self.feeds]

    def _evaluated(self, model: Model, runner: Runner) -> Evaluation | None:
        return evaluated(self.job.accuracy, self.job.case, model, runner) if self.job.accuracy else None

    def _accuracy(self, own: Evaluation | None) -> dict[str, Any]:
        if own is None:
            return {}
        found = beside(self.job.accuracy, own, "fp32", self.reference)
        if not found.values:
            raise InferlensError(found.reason or "The accuracy is not known.", hint="--within error=1e-2")
        known = score_accuracy(found)
        assert known
        return {
            "metric": found.metric,
            "accuracy": known.value,
            "reference_accuracy": float(np.mean(found.reference_values)) if found.reference_values else 1.0,
            "accuracy_share": known.is_share,
            "accuracy_drop": known.drop,
            "accuracy_drop_low": known.drop_interval.low if known.drop_interval else None,
            "accuracy_drop_high": known.drop_interval.high if known.drop_interval else None,
        }


def _error(ours: Sequence[Any], theirs: Sequence[Any]) -> OutputError:
    """How far one output is from the reference's, over all feeds."""
    pair = flatten(*ours), flatten(*theirs)
    return OutputError(relative_l2(*pair), cosine(*pair))


def _kept(ours: Sequence[Outputs], theirs: Sequence[Outputs]) -> float | None:
    """The share of samples with the same largest element of the first output, if that is scores of classes."""
    shares = [top1(own[0], reference[0]) for own, reference in zip(ours, theirs, strict=True)]
    return None if None in shares else float(np.mean(shares))  # type: ignore[arg-type]


# The parent.


def quantize(
    model: Any,
    example_inputs: Any = None,
    *,
    to: str = "int8",
    calibration: str | PathLike[str],
    backend: str | None = None,
    device: str | None = None,
    output: str | PathLike[str] | None = None,
    keep: Texts | None = None,
    errors: bool = False,
    within: str | None = None,
    accuracy: str | PathLike[str] | None = None,
    batch: int | str | None = None,
    option: Texts | Mapping[str, Any] | None = None,
    input: Texts | None = None,
    dim: Texts | Mapping[str, int | str] | None = None,
    weights: str | PathLike[str] | None = None,
    trust: bool = False,
    rebuild: bool = False,
    seed: int = 0,
    timeout: Duration = "1h",
    phase: Callable[[str], None] = lambda _: None,
) -> Quantization:
    """Quantizes a model to a file, and runs and compares that; other keywords are those of :func:`inferlens.bench`.

    Args:
        model: a name, a file, a factory, or a live ``nn.Module``.
        to: ``int8`` or ``fp8``.
        backend: what the file is for, and runs it if it can here; by default the first that can on the device.
        output: the file; by default the model's name, with the precision, in the working directory.
        errors: whether to say what each layer loses.
        within: a limit that the file keeps, ``error=1e-2`` or ``accuracy-drop=0.5%``; layers stay as they are for it.
        accuracy: data with labels, or a function, that answers are evaluated on.
        timeout: seconds that it may take in all, or a text such as ``"1h"``.
        phase: told the name of each phase as it begins.

    Raises:
        InferlensError: if the model or the keywords mean nothing, or it cannot be quantized.
    """
    limit = limit_of(within, accuracy)
    words = {
        "precision": to, "calibration": calibration, "keep": keep, "batch": batch, "option": option, "input": input,
        "dim": dim, "weights": weights, "trust": trust, "seed": seed,
    }  # fmt: skip
    with named(model, example_inputs) as model:
        planned = _planned({**words, "model": model.spec}, backend, device, to, model)
        case = planned.case
        suffix = cast("type[Quantizer]", BACKENDS.get(case.backend)).quantized_as
        path = Path(output) if output else Path(f"{safe_name(planned.found.name)}.{to}{suffix}")
        if path.suffix != suffix:
            what = f"{case.backend} writes what it quantizes to {suffix} files, not to {path.name}."
            raise InferlensError(what, hint=f"--output {path.with_suffix(suffix)}")
        done: TaskResult[Quantization] = written(
            path, quantize_model, Quantizer, case, QuantizeJob,
            reference=planned.reference, errors=errors, limit=limit, accuracy=str(accuracy or ""),
            trust=trust, rebuild=rebuild, live=model.live, timeout=parse_duration(str(timeout)), phase=phase,
        )  # fmt: skip
    assert done.found
    made = replace(done.found, path=str(path) if done.found.path else "", limit=within or "")
    save(CACHE.parent / safe_name(planned.found.name), made)
    return made


def limit_of(within: str | None, accuracy: Any) -> Constraint | None:
    """The limit that a text says. Raises InferlensError for one that quantizing cannot keep."""
    if within is None:
        return None
    name, equals, limit = (part.strip() for part in within.partition("="))
    check_choice("limit of a quantization", name, LIMITS)
    if not equals:
        raise InferlensError(f"The limit '{name}' has no value.", expected=f"such as {MEASURES[name].form}")
    if name == "accuracy-drop" and not accuracy:
        what = "A limit on the drop in accuracy needs data to tell it by."
        raise InferlensError(what, hint="--accuracy DATA, or --within error=1e-2")
    return Constraint(name, MEASURES[name].read(limit))


def _planned(words: dict[str, Any], backend: str | None, device: str | None, to: str, model: Named) -> Planned:
    """The one case that the words mean, on a backend that writes files, whether it can run them here or not."""
    check_choice("precision to quantize to", to, QUANTIZED)
    names = able(Quantizer)
    if backend and (name := backend.partition(":")[0]) not in names:
        BACKENDS.get(name)  # a name that means nothing is told first
        raise InferlensError(
            f"{name} writes no files of what it quantizes.",
            hint=f"--backend {names[0]}, or 'inferlens bench MODEL -b {name} --precision {to}', which quantizes too",
        )
    can = {name: _writing(each, to) for name, each in probe([name] if backend else names).items()}
    able_here = [(name, one) for name, each in can.items() for one in each.supports if to in one.quantizes]
    device = device or (able_here[0][1].device if able_here else default_device(can.values()))
    backend = backend or next((f"{name}:{one.variant}" for name, one in able_here if one.device == device), None)
    if backend is None:
        supports = [one for each in can.values() for one in each.supports if one.device == device]
        here = sorted({word for one in supports for word in one.quantizes})
        raise InferlensError(
            f"Nothing here quantizes to {to} on {device}.", hint=f"--to {here[0]}" if here else "inferlens doctor"
        )
    plan = Plan.from_words({**words, "backend": backend, "device": device})
    check_words(plan)
    models = found(plan, model)
    for each in models:
        if each.precision in QUANTIZED:
            raise InferlensError(f"{each.name} is quantized already.", hint=f"inferlens bench {each.asked}")
    cases = expand(plan, models, can)
    refuse_if_none_runs(cases)
    if len(cases) != 1:
        raise InferlensError(f"This command takes one case, not {len(cases)}.", expected="single values, no commas")
    (planned,) = cases
    if planned.reference is None:
        raise InferlensError(f"There is nothing to compare {planned.found.name} with.", expected="a model in fp32")
    return planned


def _writing(can: Capabilities, to: str) -> Capabilities:
    """What a backend can do, with files that it only writes here beside what it can run."""
    runs = tuple(each for each in can.supports if to in each.quantizes)
    left = tuple(each for each in can.supports if to not in each.quantizes)
    return replace(can, supports=(*runs, *can.writes, *left), absent=() if can.writes else can.absent)
