"""A trace in Python, and findings about it: a table of rules, each with the time of a step that it could save.

A saving is an upper bound in seconds of a step. A faster kernel saves time only while the GPU does not wait for the
host: while the next kernel is launched already, or while the host waits for the GPU. Gaps in which the GPU waits for
the host are divided among their causes, so that no moment counts twice.

Rules about work hold for the kernels of a GPU, or without one for the operators of the host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferlens.analysis.evidence import LOWER, MULTIPLES, NEGLIGIBLE, Finding, Findings, Rule, make_finding, shorten
from inferlens.analysis.findings import FEW_LAUNCHES, TINY
from inferlens.analysis.profile_table import DENSE, POINTWISE, could_use_tensor_cores, kernel_family, short_kernel_name
from inferlens.record.display import Displayed
from inferlens.stats.samples import gpu_waits_for_host
from inferlens.trace.analysis import Analysis, Intervals, Overview, communication, host_gaps, synchronising
from inferlens.trace.kernels import kernel_precision, uses_tensor_cores
from inferlens.trace.model import CALLS, SECOND, Bools, Category, Columns, Floats, Ints
from inferlens.trace.read import read_trace
from inferlens.trace.tables import kernels, memory_holders, module_tree, operators, stepping, timeline
from inferlens.units import plural

if TYPE_CHECKING:
    from polars import DataFrame


LONG = 1e-3  # seconds of a call; a launch takes microseconds
MOSTLY = 0.5  # of the time, in convolutions, products and attention
FILLED = 0.5  # of the time in which a GPU works, weighted by its busy multiprocessors
# Patterns of names of kernels and operators. Other names belong to a family of kernels, or to none.
_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("", r"fbgemm|embedding"),  # of tables, whatever the names of their arguments
        ("attention", r"attention|attn_fwd|fmha|flash_[fb]wd"),
        ("softmax", r"softmax"),
        ("fill", r"^Memset"),
        ("layout", r"nchwTo|nhwcTo|batched_transpose|aten::mkldnn_reorder"),
        ("move", r"copy|clone|CatArray|aten::cat$|Memcpy DtoD"),
        ("matrix product", r"^cijk_|aten::(\w*mm_?|mkldnn_linear)$"),
        ("matrix product", r"gemm|nvjet"),
    )
)
_MOVES = ("layout", "move")
# Between the softmax and the products of attention: scaling, masks, copies.
_BETWEEN = (*POINTWISE[1:], *_MOVES, "fill", "softmax")
_REACH = 8  # kernels, or operators, between a softmax and a product
_SET_UP = ("Malloc", "cudaFree", "hipFree", "HostAlloc", "HostRegister", "ModuleLoad", "LibraryLoad")
_VECTOR = re.compile(r"_(?:align[a-z]?|ldg)(\d+)")  # elements that a kernel on tensor cores reads at once
_BUILT_FOR = re.compile(r"(?:cutlass_|sm)(\d\d)_|(volta)_|(turing)_|(ampere)_")
_GENERATIONS = {"volta": 70, "turing": 75, "ampere": 80}
_HOST_COPY = re.compile(r"HtoD|DtoH")
_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum")
_LOW_PRECISION = re.compile(r"fp4|fp8|int4|e[245]m\d|awq|gptq|marlin", re.IGNORECASE)


@lru_cache(maxsize=4096)
def family_of(name: str) -> str:
    """Return the family of a kernel or an operator; empty if the name does not tell."""
    patterns = () if name.startswith("triton_") else _FAMILIES  # Triton's kernels have the names of all fused operators
    return next((family for family, pattern in patterns if pattern.search(name[:2000])), kernel_family(name))


@lru_cache(maxsize=4096)
def vector_share(name: str) -> float:
    """Return how many elements a kernel on tensor cores reads at once, as a share of the most it could, or 1."""
    width = _VECTOR.search(name) if uses_tensor_cores(name) else None
    return min(int(width[1]) / MULTIPLES.get(kernel_precision(name), 4), 1.0) if width else 1.0


def _longest_name(names: Iterable[str], times: Ints) -> str:
    """Return the name of the events that take most time together; empty without events."""
    sums: Counter[str] = Counter()
    for name, time in zip(names, times.tolist(), strict=True):
        sums[name] += time
    return next((name for name, _ in sums.most_common(1)), "")


class TraceEvidence:
    """Evidence of the rules: the events of a GPU in steps, or else the operators of the host, in their order.

    Attributes:
        step: seconds of a step.
        rows: rows of the events in the trace; ``times``: their nanoseconds, of an operator without its callees.
        names, family: of each event; ``operator``: the index of the scope that launched it, or -1.
        kernels: a mask of the events that are kernels of a GPU.
        waiting: rows of calls in which the host waits for the GPU.
    """

    def __init__(self, analysis: Analysis) -> None:
        trace, links, overview = analysis.trace, analysis.launch_links, analysis.overview
        self.analysis, self.trace = analysis, trace
        self.step, self.bound, self.parts = overview.step_time, overview.bound, overview.parts
        self.on_gpu, self.count = bool(overview.gpus), len(analysis.counted)
        self.window = Intervals.union(analysis.counted.begin, analysis.counted.end)
        self.waiting = synchronising(trace, links)
        if self.on_gpu:
            rows, operator, thread = trace.gpu.row, links.operator, trace.gpu.stream
            times, communicates = trace.duration[rows], communication(trace, links)
        else:
            operator = np.flatnonzero(analysis.costs.is_operator)
            rows, times = trace.scopes.row[operator], analysis.costs.host_self[operator]
            thread, communicates = trace.thread[rows].astype(np.int64), np.zeros(len(rows), bool)
        order = np.lexsort((trace.begin[rows], thread))
        order = order[self.window.covered(trace.begin[rows[order]], trace.begin[rows[order]] + 1) > 0]
        self.rows, self.operator, self.times = rows[order], operator[order], times[order]
        self.names = trace.names_of(self.rows)
        self.family = np.array([family_of(name) for name in self.names], dtype=object)
        self.family[communicates[order]] = "communication"
        self.kernels: Bools = (trace.category[self.rows] == Category.KERNEL) & self.on_gpu
        device = trace.about.devices[0] if trace.about.devices else None
        self.capability = (device.major, device.minor) if device else (0, 0)

    def seconds(self, intervals: Intervals) -> float:
        return intervals.intersection(self.window).total / self.count / SECOND

    # Gaps in which the GPU waits for the host

    @cached_property
    def set_up(self) -> Ints:
        """Calls of the runtime that allocate memory or load code, or take far too long to launch anything."""
        rows = np.setdiff1d(self.trace.calls.row, self.waiting)
        sets_up = self.trace.named(rows, lambda name: any(word in name for word in _SET_UP))
        copies = self.trace.named(rows, lambda name: "Memcpy" in name)
        too_long = self.trace.duration[rows] > LONG * SECOND
        return rows[sets_up | (too_long & ~copies)]

    @cached_property
    def gaps(self) -> dict[str, Intervals]:
        trace = self.trace
        unexplained = host_gaps(trace, self.analysis.launch_links, self.window)
        gaps = {}
        set_up = Intervals.of_events(trace, self.set_up)
        for cause, busy in (("data-loader", self.analysis.parts["data loader"]), ("set-up", set_up)):
            gaps[cause] = unexplained.intersection(busy)
            unexplained = unexplained.difference(busy)
        # The GPU ran out of work while the host waited for it, and got more work afterwards.
        drained = Intervals.of_events(trace, self.waiting).covered(unexplained.begin - 1, unexplained.begin + 1) > 0
        drained &= unexplained.end < self.window.end[-1]
        host_work = Intervals.of_events(trace, trace.rows(Category.OPERATOR, *CALLS))
        length = unexplained.end - unexplained.begin
        idle_host = host_work.covered(unexplained.begin, unexplained.end) < length / 2
        outside = ~drained & (length > LONG * SECOND) & idle_host
        causes = {"synchronising": drained, "outside-operators": outside, "host-bound": ~drained & ~outside}
        for cause, mask in causes.items():
            gaps[cause] = Intervals(unexplained.begin[mask], unexplained.end[mask])
        return gaps

    # Time of the work

    @cached_property
    def _gpu_paced(self) -> Intervals:
        """Intervals in which the GPU sets the pace: more work is queued, or the host waits for the GPU."""
        trace, launch = self.trace, self.analysis.launch_links.launch
        calls = trace.calls.row[np.maximum(launch, 0)] if len(trace.calls) else trace.gpu.row
        queued = np.where(launch >= 0, trace.ends(calls), self.window.begin[0])
        begins = queued, trace.begin[self.waiting], [queued.max()]
        ends = trace.begin[trace.gpu.row], trace.ends(self.waiting), [self.window.end[-1]]
        return Intervals.union(np.concatenate(begins), np.concatenate(ends))

    def saving(self, mask: Bools, part: Floats | float = 1.0) -> float:
        """Return the seconds of a step that are saved without ``part`` of each event of a mask."""
        weights = (self.times * part)[mask]
        if not self.on_gpu:
            return float(weights.sum()) / self.count / SECOND
        exposed = self.seconds(Intervals.of_events(self.trace, self.rows[mask]).intersection(self._gpu_paced))
        return exposed * float(weights.sum()) / max(float(self.times[mask].sum()), 1.0)

    def where(self, predicate: Callable[[str], object]) -> Bools:
        return self.trace.named(self.rows, lambda name: bool(predicate(name)))

    def in_family(self, *families: str) -> Bools:
        return np.isin(self.family, families)

    def words(self, mask: Bools) -> dict[str, Any]:
        """Return words for sentences: calls in a step, the share of all time, and the name with most time."""
        longest = _longest_name((self.names[index] for index in np.flatnonzero(mask).tolist()), self.times[mask])
        base, noun = ("the GPU's time", "kernel") if self.on_gpu else ("the operators' time", "operator")
        part = float(self.times[mask].sum()) / max(float(self.times.sum()), 1.0)
        return {
            "calls": max(round(int(mask.sum()) / self.count), 1), "longest": longest, "base": base, "noun": noun,
            "part": part, "most": shorten(short_kernel_name(longest)),
        }  # fmt: skip

    def longest_of_runs(self, mask: Bools) -> Bools:
        """Return a mask of the longest of each run of these events, which only moves of data interrupt."""
        indices = np.flatnonzero(mask | ~self.in_family(*_MOVES))
        in_run = mask[indices]
        members, run = indices[in_run], np.cumsum(in_run & ~np.append(False, in_run[:-1]))[in_run]
        order = np.lexsort((-self.times[members], run))
        longest = np.zeros(len(mask), bool)
        longest[members[order[np.diff(run[order], prepend=0) > 0]]] = True
        return longest

    @cached_property
    def vectors(self) -> Floats:
        return np.array([vector_share(name) for name in self.names], dtype=np.float64)

    @cached_property
    def attention(self) -> tuple[Bools, Bools]:
        """Masks of attention around softmaxes: of the two batched products and all between, and of what is between."""
        count = len(self.rows)
        with_products, between_products = np.zeros(count, bool), np.zeros(count, bool)
        families_between = {*_BETWEEN, *([] if self.on_gpu else [""])}

        def find_product(indices: range) -> int | None:
            index = next((index for index in indices[:_REACH] if self.family[index] not in families_between), None)
            return index if index is not None and self._is_batched(index) else None

        for softmax in np.flatnonzero(self.family == "softmax").tolist():
            first, last = find_product(range(softmax - 1, -1, -1)), find_product(range(softmax + 1, count))
            if first is not None and last is not None:
                with_products[first : last + 1] = True
                between_products[first + 1 : last] = True
        return with_products, between_products

    def _is_batched(self, index: int) -> bool:
        """Return whether an event is a product of batches of matrices, unless its operator contradicts."""
        launcher = int(self.operator[index])
        operator = launcher >= 0 and self.trace.name_of(int(self.trace.scopes.row[launcher]))
        return self.family[index] == "matrix product" and (not operator or operator in _BATCHED)


Saving = tuple[float, Mapping[str, Any]]  # seconds of a step that could be saved at most, and words for the sentences


def _rule(code: str, saving: Callable[[TraceEvidence], Saving], sentence: str, hint: str) -> Rule:
    """Return a rule about a saving that matters. The saving follows the sentence."""

    def check(evidence: TraceEvidence) -> Iterator[Finding]:
        seconds, words = saving(evidence)
        words = {"subject": code, **words}
        share = seconds / evidence.step
        if share > NEGLIGIBLE:
            start = sentence.replace("{noun}", words.get("noun", ""))
            yield make_finding(
                start + ": at most {share:percent} of a step ({time:duration}) to save.",
                {"time": seconds, "share": share}, seconds=seconds, whole=evidence.step, share=share,
                hint=make_finding(hint, **words).sentence, **words,
            )  # fmt: skip

    return Rule(code, "", "time", check)


def _data_loader(evidence: TraceEvidence) -> Saving:
    on_host = evidence.parts["data loader"]
    return evidence.seconds(evidence.gaps["data-loader"]) if evidence.on_gpu else on_host, {}


def _set_up(evidence: TraceEvidence) -> Saving:
    trace, rows = evidence.trace, evidence.set_up
    longest = _longest_name(trace.names_of(rows), trace.duration[rows])
    return evidence.seconds(evidence.gaps["set-up"]), {"calls": len(rows), "most": longest}


def _synchronising(evidence: TraceEvidence) -> Saving:
    trace, rows = evidence.trace, evidence.waiting
    scopes = evidence.analysis.launch_links.innermost(trace.thread[rows], trace.begin[rows], Category.OPERATOR)
    operators = Counter(trace.names_of(trace.scopes.row[scopes[scopes >= 0]])).most_common(1)
    gaps = evidence.gaps["synchronising"]
    by = f", most by {operators[0][0]}" if operators else ""
    return evidence.seconds(gaps), {"calls": max(round(len(gaps) / evidence.count), 1), "by": by}


def _copies(evidence: TraceEvidence) -> Saving:
    copies = evidence.where(_HOST_COPY.search)
    intervals = Intervals.of_events(evidence.trace, evidence.rows[copies]).difference(evidence.analysis.parts["kernel"])
    return evidence.seconds(intervals), evidence.words(copies)


def _attention(evidence: TraceEvidence) -> Saving:
    with_products, between_products = evidence.attention
    softmaxes = evidence.words(between_products & evidence.in_family("softmax"))["calls"]
    part = np.where(between_products, 1.0, 1 - evidence.vectors)
    return evidence.saving(with_products, part), {**evidence.words(with_products), "calls": softmaxes}


def _misaligned(evidence: TraceEvidence) -> Saving:
    narrow = (evidence.vectors < 1) & ~evidence.attention[0]
    words = evidence.words(narrow)
    multiple = MULTIPLES.get(kernel_precision(words["longest"]), 4)
    built, older = _BUILT_FOR.search(words["longest"]), ""
    major, minor = evidence.capability
    if built and major:
        number = next(int(_GENERATIONS.get(group, group)) for group in built.groups() if group)
        own = 10 * major + minor
        older = f", built for sm_{number} and not for this GPU's sm_{own}" if number < own else ""
    return evidence.saving(narrow, 1 - evidence.vectors), {**words, "multiple": multiple, "older": older}


def _tensor_cores_unused(evidence: TraceEvidence) -> Saving:
    unused = evidence.in_family(*DENSE) & evidence.where(
        lambda name: uses_tensor_cores(name) is False and could_use_tensor_cores(name)
    )
    major, _ = evidence.capability
    action = "fp16, bf16 (autocast) or TF32 (torch.set_float32_matmul_precision('high'))"
    words = {**evidence.words(unused), "action": action if major >= 8 else "fp16 (autocast)"}
    return evidence.saving(unused) if major >= 7 else 0.0, words


def _elementwise(evidence: TraceEvidence) -> Saving:
    mask = evidence.in_family(*POINTWISE) & evidence.where(lambda name: not name.startswith("triton_"))
    return evidence.saving(mask, (~evidence.longest_of_runs(mask)).astype(float)), evidence.words(mask)


def _moves(evidence: TraceEvidence) -> Saving:
    moves = evidence.in_family(*_MOVES)
    words = evidence.words(moves)
    layout = family_of(words["longest"]) == "layout"
    fused = "Copy, convert and join tensors less, or fuse that: torch.compile"
    action = "Keep one memory order: channels_last in model and inputs" if layout else fused
    return evidence.saving(moves), {**words, "action": action}


def _small(evidence: TraceEvidence) -> Saving:
    small = evidence.kernels & (evidence.times < TINY * SECOND)
    words = {**evidence.words(small), "all": evidence.words(evidence.kernels)["calls"]}
    return evidence.saving(small) if words["calls"] >= FEW_LAUNCHES else 0.0, words


def _not_filled(evidence: TraceEvidence) -> Saving:
    uses = [(gpu.sm_efficiency, gpu) for gpu in evidence.analysis.gpu_use if gpu.sm_efficiency is not None]
    filled, gpu = min(uses, key=lambda use: use[0], default=(0.0, None))
    if gpu is None or evidence.bound != "GPU" or filled >= FILLED * gpu.utilization:
        return 0.0, {}
    words = {"device": gpu.device, "busy": gpu.utilization, "filled": filled}
    return (gpu.utilization - filled) * evidence.step, words


def _products(evidence: TraceEvidence) -> Saving:
    """Return at most half of the largest part, if other rules about work save less."""
    dense = evidence.in_family(*DENSE, "attention")
    words = evidence.words(dense)
    name = words["longest"]
    lower = LOWER.get(kernel_precision(name), "") if evidence.on_gpu else "bf16"
    applies = lower and words["part"] >= MOSTLY and not _LOW_PRECISION.search(name)
    half = evidence.saving(dense, 0.5) if applies and uses_tensor_cores(name) is not False else 0.0
    rules = (_attention, _misaligned, _tensor_cores_unused, _elementwise, _moves)
    saving = half if half > sum(rule(evidence)[0] for rule in rules) else 0.0
    return saving, {**words, "lower": lower, "device": "cuda" if evidence.on_gpu else "cpu"}


def _host_bound(evidence: TraceEvidence) -> Saving:
    times = evidence.times[evidence.kernels]
    idle = evidence.seconds(evidence.gaps["host-bound"]) if len(times) else 0.0
    if not gpu_waits_for_host(idle, evidence.step):
        return 0.0, {}
    calls = round(len(times) / evidence.count)
    return idle, {"subject": "the run", "calls": calls, "mean": float(times.mean()) / SECOND}


def _outside(evidence: TraceEvidence) -> Saving:
    if evidence.on_gpu:
        action = "Prepare inputs and read outputs in other threads or processes"
        return evidence.seconds(evidence.gaps["outside-operators"]), {"start": "The GPU waits", "action": action}
    action = "Compile the model (torch.compile), or raise the batch"
    return evidence.parts["other"], {"start": "Time passes", "action": action}


TRACE_RULES = (
    _rule("data-loader", _data_loader, "The data loader works while nothing else does",
          "Load data in other processes: num_workers of DataLoader."),
    _rule("set-up", _set_up, "The GPU waits for {calls:#call} that set up or take memory, most in {most}",
          "Warm up before the trace, and keep memory between steps."),
    _rule("synchronising", _synchronising, "The GPU runs out of work in {calls:#wait} of the host a step{by}",
          "Wait for the GPU less often: no .item(), .cpu() or print of a tensor."),
    _rule("communication", lambda evidence: (evidence.parts["communication"], {}),
          "Devices exchange data while no other kernel runs",
          "Communicate while kernels run: larger buckets, gradients sent as they come."),
    _rule("copies", _copies, "No kernel runs during copies between host and GPU, most in {most}",
          "Copy less, or from and to pinned memory while kernels run (pin_memory, non_blocking=True)."),
    _rule("attention-not-fused", _attention,
          "Attention is not fused, {calls:#softmax} a step: {part:percent} of {base} with its products",
          "Fuse attention: torch.nn.functional.scaled_dot_product_attention."),
    _rule("misaligned", _misaligned,
          "{part:percent} of {base} is in products that read few elements at once{older}",
          "Make the sizes of products multiples of {multiple}, by padding."),
    _rule("tensor-cores-unused", _tensor_cores_unused,
          "Convolutions and products without tensor cores, by their names, are {part:percent} of {base}",
          "Use tensor cores: {action}."),
    _rule("elementwise", _elementwise,
          "{calls:#{noun}} a step that compute element by element are {part:percent} of {base}",
          "Fuse them: torch.compile."),
    _rule("moves", _moves,
          "{calls:#{noun}} a step only move or convert data, {part:percent} of {base}, most in {most}",
          "{action}."),
    _rule("small-kernels", _small,
          "{calls:,} of {all:#kernel} a step take less than 5 µs, {part:percent} of {base}",
          "Launch fewer, larger kernels: torch.compile, or a larger batch."),
    _rule("gpu-not-filled", _not_filled,
          "GPU {device} runs kernels {busy:percent} of the time, with blocks for {filled:percent} of its units",
          "Give the GPU more at a time: a larger batch."),
    _rule("products", _products, "Convolutions, products and attention are {part:percent} of {base}",
          "Race other backends, and a lower precision: "
          "inferlens bench MODEL --device {device} --precision fp32,{lower}"),
    _rule("outside-operators", _outside, "{start} while the host runs no operator", "{action}."),
    # Tracing slows the host: a trace alone does not show how long the GPU waits otherwise.
    _rule("host-bound", _host_bound, "The host is slow to launch {calls:#kernel} of {mean:duration} a step",
          "If bench says host-bound too: torch.compile(mode='reduce-overhead'), a CUDA graph, or a larger batch."),
)  # fmt: skip


def trace_findings(analysis: Analysis) -> Findings:
    """Return the findings about a trace, the largest saving of a step first."""
    if not analysis.overview.step_time:
        return Findings()
    evidence = TraceEvidence(analysis)
    findings = [finding for rule in TRACE_RULES for finding in rule(evidence)]
    return Findings(sorted(findings, key=lambda finding: -(finding.seconds or 0.0)))


class LoadedTrace(Displayed):
    """A trace whose views are computed on demand. ``notes`` tell the skipped and repaired parts of its file."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.notes = analysis, analysis.trace.notes

    def __repr__(self) -> str:
        return f"<LoadedTrace of {plural(len(self.analysis.steps), 'step')}, {len(self.analysis.trace):,} events>"

    def overview(self) -> Overview:
        return self.analysis.overview

    def advice(self) -> Findings:
        """Return findings, the largest possible saving of a step first."""
        return trace_findings(self.analysis)

    def operators(self, *by: str) -> DataFrame:
        """Return operators by name, and by ``"shapes"`` or ``"stack"`` as well if given."""
        return operators(self.analysis, *by).frame()

    def kernels(self, *, by_operator: bool = False) -> DataFrame:
        """Return kernels, copies and fills by name, or by launching operator, grid and block as well."""
        return kernels(self.analysis, by_operator=by_operator).frame()

    def modules(self) -> DataFrame:
        """Return modules in pre-order."""
        return module_tree(self.analysis).frame()

    def memory(self) -> DataFrame:
        """Return the holders of memory at each device's peak."""
        return memory_holders(self.analysis).frame()

    def steps(self) -> DataFrame:
        """Return the parts of every step's time."""
        return stepping(self.analysis).frame()

    def timeline(self) -> DataFrame:
        """Return the utilization of GPU and host in slices of time."""
        return timeline(self.analysis).frame()

    def events(self) -> DataFrame:
        """Return all complete events in the order of the file; begin and duration in nanoseconds."""
        trace = self.analysis.trace
        categories = [category.name.lower() for category in Category]
        threads = [trace.threads[code] for code in trace.thread.tolist()]
        columns: dict[str, Any] = {
            "name": [trace.strings[code] for code in trace.name.tolist()],
            "category": [categories[code] for code in trace.category.tolist()],
            "process": [process for process, _ in threads],
            "thread": [thread for _, thread in threads],
            "begin": trace.begin,
            "duration": trace.duration,
        }
        return Columns(columns).frame()


def load_trace(path: Path | str, step: int | str | None = None) -> LoadedTrace:
    """Load a trace of torch.profiler, or another in Chrome's trace event format.

    Args:
        path: a file, plain or compressed with gzip or zstd, or a pipe.

    Raises InferlensError if there is no trace, or no such step. Its frames need polars.
    """
    return LoadedTrace(Analysis(read_trace(Path(path)), step))
