"""What a trace shows that could be better: a table of rules, each of which says how much of a step it could save.

What is saved is an upper bound in seconds of a step. A kernel that is faster saves time only while the host is not what
the GPU waits for: while the next kernel is launched already, or the host waits for the GPU. Gaps in which the GPU waits
for the host are divided among their causes, so that the rules about them never count a moment twice.

Rules about work hold for the kernels of a GPU, or without one for the operators of the host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from inferlens.analysis.findings import thresholds
from inferlens.analysis.findings.evidence import LOWER, MULTIPLES, HostWait, short
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.profile.families import DENSE, POINTWISE, could_use_tensor_cores, of_kernel
from inferlens.analysis.profile.kernels import short_name
from inferlens.trace.analysis import Analysis
from inferlens.trace.columns import SECOND
from inferlens.trace.precision import kernel_precision
from inferlens.trace.steps import Intervals, communication, host_gaps, synchronising
from inferlens.trace.tensor_cores import uses_tensor_cores
from inferlens.trace.trace import CALLS, Bools, Category, Floats, Ints

# Names of kernels and of operators; what is in none of these is in a family of kernels, or in none.
_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("", r"fbgemm|embedding"),  # of tables, whatever their arguments are called
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
_BETWEEN = (*POINTWISE[1:], *_MOVES, "fill")  # the softmax and the products of attention: scaling, masks, copies
_REACH = 8  # kernels, or operators, between a softmax and a product
_SETS_UP = ("Malloc", "cudaFree", "hipFree", "HostAlloc", "HostRegister", "ModuleLoad", "LibraryLoad")
_VECTOR = re.compile(r"_(?:align[a-z]?|ldg)(\d+)")  # elements that a kernel on tensor cores reads at once
_BUILT_FOR = re.compile(r"(?:cutlass_|sm)(\d\d)_|(volta)_|(turing)_|(ampere)_")
_GENERATIONS = {"volta": 70, "turing": 75, "ampere": 80}
_ACROSS = re.compile(r"HtoD|DtoH")
_BATCHED = ("aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum")
_LOW = re.compile(r"fp4|fp8|int4|e[245]m\d|awq|gptq|marlin", re.IGNORECASE)  # weights, or all, in few bits already


@lru_cache(maxsize=4096)
def family_of(name: str) -> str:
    """What a kernel or an operator of that name does; empty where the name does not say."""
    known = () if name.startswith("triton_") else _FAMILIES  # which is named after all that was fused into it
    return next((family for family, pattern in known if pattern.search(name[:2000])), of_kernel(name))


@lru_cache(maxsize=4096)
def vector_share(name: str) -> float:
    """Of the elements that a kernel on tensor cores could read at once, the share that it does read; 1 if unknown."""
    width = _VECTOR.search(name) if uses_tensor_cores(name) else None
    return min(int(width[1]) / MULTIPLES.get(kernel_precision(name), 4), 1.0) if width else 1.0


class TraceEvidence:
    """What the rules look at: in steps, the events of a GPU or else the operators of the host, in their order.

    Attributes:
        step: seconds of a step.
        rows: the events' places in the trace; ``taken``: their nanoseconds, of an operator without what it called.
        names, family: what each of them is called and does; ``operator``: the place of the one that launched it, or -1.
        waiting: rows of calls in which the host waits for the GPU.
    """

    record = None

    def __init__(self, analysis: Analysis) -> None:
        trace, links, overview = analysis.trace, analysis.launch_links, analysis.overview
        self.analysis, self.step, self.bound, self.parts = analysis, overview.step_time, overview.bound, overview.parts
        self.trace, self.on_gpu, self.count = trace, bool(overview.gpus), len(analysis.counted)
        self.window = Intervals.union(analysis.counted.begin, analysis.counted.end)
        self.waiting = synchronising(trace, links)
        if self.on_gpu:
            rows, operator, thread = trace.gpu.row, links.operator, trace.gpu.stream
            taken, talks = trace.duration[rows], communication(trace, links)
        else:
            operator = np.flatnonzero(analysis.costs.is_operator)
            rows, taken = trace.scopes.row[operator], analysis.costs.host_self[operator]
            thread, talks = trace.thread[rows].astype(np.int64), np.zeros(len(rows), bool)
        order = np.lexsort((trace.begin[rows], thread))
        order = order[self.window.covered(trace.begin[rows[order]], trace.begin[rows[order]] + 1) > 0]
        self.rows, self.operator, self.taken = rows[order], operator[order], taken[order]
        self.names = trace.names_of(self.rows)
        self.family = np.array([family_of(name) for name in self.names], dtype=object)
        self.family[talks[order]] = "communication"

    def seconds(self, when: Intervals) -> float:
        """Seconds of a step."""
        return when.both(self.window).total / self.count / SECOND

    # What the host keeps the GPU from

    @cached_property
    def set_up(self) -> Ints:
        """Calls of the runtime that take memory or load code, or take far too long to launch anything."""
        rows = np.setdiff1d(self.trace.calls.row, self.waiting)
        named = self.trace.named(rows, lambda name: any(word in name for word in _SETS_UP))
        slow = (self.trace.duration[rows] > thresholds.LONG * SECOND) & ~self.trace.named(rows, lambda n: "Memcpy" in n)
        calls: Ints = rows[named | slow]
        return calls

    @cached_property
    def gaps(self) -> dict[str, Intervals]:
        """When the GPU waited for the host, by cause."""
        trace, found = self.trace, {}
        left = host_gaps(trace, self.analysis.launch_links, self.window)
        set_up = Intervals.of(trace, self.set_up)
        for cause, busy in (("data-loader", self.analysis.parts["data loader"]), ("set-up", set_up)):
            found[cause] = left.both(busy)
            left = left.without(busy)
        # The GPU ran out of work while the host waited for it, and was given more.
        drained = Intervals.of(trace, self.waiting).covered(left.begin - 1, left.begin + 1) > 0
        drained &= left.end < self.window.end[-1]
        works = Intervals.of(trace, trace.rows(Category.OPERATOR, *CALLS)).covered(left.begin, left.end)
        length = left.end - left.begin
        outside = ~drained & (length > thresholds.LONG * SECOND) & (works < length / 2)
        causes = {"synchronising": drained, "outside-operators": outside, "host-bound": ~drained & ~outside}
        return {**found, **{cause: Intervals(left.begin[which], left.end[which]) for cause, which in causes.items()}}

    @property
    def host_wait(self) -> HostWait | None:
        """How long the GPU waits to be given work, other causes aside."""
        kernels = self.trace.category[self.rows] == Category.KERNEL
        if not self.on_gpu or not kernels.any():
            return None
        idle = self.seconds(self.gaps["host-bound"])
        mean, calls = float(self.taken[kernels].mean()) / SECOND, round(int(kernels.sum()) / self.count)
        return HostWait(idle, self.step, calls, mean, {"time": idle, "share": idle / self.step}, traced=True)

    # What work takes

    @cached_property
    def _exposed(self) -> Intervals:
        """Moments of which the GPU sets the pace: more work is there already, or the host waits for the GPU."""
        trace, launch = self.trace, self.analysis.launch_links.launch
        calls = trace.calls.row[np.maximum(launch, 0)] if len(trace.calls) else trace.gpu.row
        given = np.where(launch >= 0, trace.ends(calls), self.window.begin[0])
        begins = given, trace.begin[self.waiting], [given.max()]
        ends = trace.begin[trace.gpu.row], trace.ends(self.waiting), [self.window.end[-1]]
        return Intervals.union(np.concatenate(begins), np.concatenate(ends))

    def saves(self, chosen: Bools, part: Floats | float = 1.0) -> float:
        """Seconds of a step that would be saved without ``part`` of each of some events."""
        weights = (self.taken * part)[chosen]
        if not self.on_gpu:
            return float(weights.sum()) / self.count / SECOND
        exposed = self.seconds(Intervals.of(self.trace, self.rows[chosen]).both(self._exposed))
        return exposed * float(weights.sum()) / max(float(self.taken[chosen].sum()), 1.0)

    def where(self, holds: Callable[[str], object]) -> Bools:
        """Return a mask of the events whose name satisfies the predicate."""
        return self.trace.named(self.rows, lambda name: bool(holds(name)))

    def of_family(self, *families: str) -> Bools:
        """Return a mask of the events that do one of these."""
        mask: Bools = np.isin(self.family, families)
        return mask

    def words(self, chosen: Bools) -> dict[str, Any]:
        """What sentences say of some events: calls a step, their share of all time, and the name with most time."""
        sums: Counter[str] = Counter()
        for place in np.flatnonzero(chosen).tolist():
            sums[self.names[place]] += int(self.taken[place])
        longest = next((name for name, _ in sums.most_common(1)), "")
        base, what = ("the GPU's time", "kernel") if self.on_gpu else ("the operators' time", "operator")
        return {
            "calls": max(round(int(chosen.sum()) / self.count), 1), "longest": longest, "base": base, "what": what,
            "part": sum(sums.values()) / max(float(self.taken.sum()), 1.0), "most": short(short_name(longest)),
        }  # fmt: skip

    def longest_of_runs(self, chosen: Bools) -> Bools:
        """Return a mask of the longest of each run of these events, which only what moves data interrupts."""
        kept = np.flatnonzero(chosen | ~self.of_family(*_MOVES))
        on = chosen[kept]
        mine, run = kept[on], np.cumsum(on & ~np.append(False, on[:-1]))[on]
        order = np.lexsort((-self.taken[mine], run))
        longest = np.zeros(len(chosen), bool)
        longest[mine[order[np.diff(run[order], prepend=0) > 0]]] = True
        return longest

    @cached_property
    def vectors(self) -> Floats:
        """Of the elements that each event could read at once, the share that it does read."""
        return np.array([vector_share(name) for name in self.names], dtype=np.float64)

    @cached_property
    def attention(self) -> tuple[Bools, Bools]:
        """Return masks of softmaxes between two batched products: with the products and all between, and without."""
        whole, inner = np.zeros(len(self.rows), bool), np.zeros(len(self.rows), bool)
        passed = {*_BETWEEN, "softmax", *([] if self.on_gpu else [""])}
        for place in np.flatnonzero(self.family == "softmax").tolist():
            before, after = range(place - 1, -1, -1)[:_REACH], range(place + 1, len(self.rows))[:_REACH]
            ends = [next((at for at in reach if self.family[at] not in passed), -1) for reach in (before, after)]
            if all(end >= 0 and self._is_batched(end) for end in ends):
                whole[ends[0] : ends[1] + 1] = inner[ends[0] + 1 : ends[1]] = True
        return whole, inner

    def _is_batched(self, place: int) -> bool:
        """Whether an event is a product of batches of matrices, as far as its operator is known."""
        launcher = int(self.operator[place])
        known = launcher >= 0 and self.trace.name_of(int(self.trace.scopes.row[launcher]))
        return self.family[place] == "matrix product" and (not known or known in _BATCHED)


Part = tuple[float, Mapping[str, Any]]  # seconds of a step that would be saved at most, and words of sentence and hint


class TraceRule(NamedTuple):
    """A row of the table: what could be saved by whom, the sentence that says so, and what to do."""

    code: str
    part: Callable[[TraceEvidence], Part]
    sentence: str
    hint: str


def _data_loader(trace_evidence: TraceEvidence) -> Part:
    name = next((n for n in trace_evidence.trace.strings if "MultiProcessingDataLoader" in n), "")
    how = "more num_workers, or a larger prefetch_factor" if name else "num_workers of DataLoader"
    return trace_evidence.seconds(
        trace_evidence.gaps["data-loader"]
    ) if trace_evidence.on_gpu else trace_evidence.parts["data loader"], {"how": how}


def _set_up(trace_evidence: TraceEvidence) -> Part:
    trace, sums = trace_evidence.trace, Counter[str]()
    for name, time in zip(
        trace.names_of(trace_evidence.set_up), trace.duration[trace_evidence.set_up].tolist(), strict=True
    ):
        sums[name] += time
    most = next((name for name, _ in sums.most_common(1)), "")
    return trace_evidence.seconds(trace_evidence.gaps["set-up"]), {"calls": len(trace_evidence.set_up), "most": most}


def _synchronising(trace_evidence: TraceEvidence) -> Part:
    trace, rows = trace_evidence.trace, trace_evidence.waiting
    place = trace_evidence.analysis.launch_links.innermost(trace.thread[rows], trace.begin[rows], Category.OPERATOR)
    most = Counter(trace.names_of(trace.scopes.row[place[place >= 0]])).most_common(1)
    gaps = trace_evidence.gaps["synchronising"]
    by = f", most by {most[0][0]}" if most else ""
    return trace_evidence.seconds(gaps), {"calls": max(round(len(gaps) / trace_evidence.count), 1), "by": by}


def _copies(trace_evidence: TraceEvidence) -> Part:
    across = trace_evidence.where(_ACROSS.search)
    words = trace_evidence.words(across)
    intervals = Intervals.of(trace_evidence.trace, trace_evidence.rows[across]).without(
        trace_evidence.analysis.parts["kernel"]
    )
    pinned = "Pinned" in words["longest"]
    how = "on a stream beside the kernels" if pinned else "from and to pinned memory (pin_memory, non_blocking=True)"
    return trace_evidence.seconds(intervals), {**words, "how": how}


def _attention(trace_evidence: TraceEvidence) -> Part:
    whole, inner = trace_evidence.attention
    softmaxes = inner & trace_evidence.of_family("softmax")
    part = np.where(inner, 1.0, 1 - trace_evidence.vectors)
    return trace_evidence.saves(whole, part), {
        **trace_evidence.words(whole),
        "calls": trace_evidence.words(softmaxes)["calls"],
    }


def _misaligned(trace_evidence: TraceEvidence) -> Part:
    narrow = (trace_evidence.vectors < 1) & ~trace_evidence.attention[0]
    words = trace_evidence.words(narrow)
    multiple = MULTIPLES.get(kernel_precision(words["longest"]), 4)
    built, older = _BUILT_FOR.search(words["longest"]), ""
    devices = trace_evidence.trace.about.devices
    if built and devices:
        number = next(int(_GENERATIONS.get(group, group)) for group in built.groups() if group)
        own = 10 * devices[0].major + devices[0].minor
        older = f", built for sm_{number} and not for this GPU's sm_{own}" if number < own else ""
    return trace_evidence.saves(narrow, 1 - trace_evidence.vectors), {**words, "multiple": multiple, "older": older}


def _tensor_cores_unused(trace_evidence: TraceEvidence) -> Part:
    devices = trace_evidence.trace.about.devices
    unused = trace_evidence.of_family(*DENSE) & trace_evidence.where(
        lambda n: uses_tensor_cores(n) is False and could_use_tensor_cores(n)
    )
    major = devices[0].major if devices else 0
    how = "fp16, bf16 (autocast) or TF32 (torch.set_float32_matmul_precision('high'))"
    words = {**trace_evidence.words(unused), "how": how if major >= 8 else "fp16 (autocast)"}
    return trace_evidence.saves(unused) if major >= 7 else 0.0, words


def _elementwise(trace_evidence: TraceEvidence) -> Part:
    own = trace_evidence.of_family(*POINTWISE) & trace_evidence.where(lambda name: not name.startswith("triton_"))
    return trace_evidence.saves(own, (~trace_evidence.longest_of_runs(own)).astype(float)), trace_evidence.words(own)


def _moves(trace_evidence: TraceEvidence) -> Part:
    moves = trace_evidence.of_family(*_MOVES)
    words = trace_evidence.words(moves)
    layout = family_of(words["longest"]) == "layout"
    fused = "Copy, convert and join tensors less, or fuse that: torch.compile"
    how = "Keep one memory order: channels_last in model and inputs" if layout else fused
    return trace_evidence.saves(moves), {**words, "how": how}


def _small(trace_evidence: TraceEvidence) -> Part:
    kernels = (trace_evidence.trace.category[trace_evidence.rows] == Category.KERNEL) & trace_evidence.on_gpu
    small = kernels & (trace_evidence.taken < thresholds.TINY * SECOND)
    words = {**trace_evidence.words(small), "all": trace_evidence.words(kernels)["calls"]}
    return trace_evidence.saves(small) if words["calls"] >= thresholds.FEW_LAUNCHES else 0.0, words


def _not_filled(trace_evidence: TraceEvidence) -> Part:
    uses = [
        gpu
        for gpu in trace_evidence.analysis.gpu_use
        if gpu.sm_efficiency is not None and trace_evidence.bound == "GPU"
    ]
    gpu = min(uses, key=lambda us: us.sm_efficiency or 0.0, default=None)
    if gpu is None or (gpu.sm_efficiency or 0.0) >= thresholds.FILLED * gpu.utilization:
        return 0.0, {}
    filled = gpu.sm_efficiency or 0.0
    words = {"device": gpu.device, "busy": gpu.utilization, "filled": filled}
    return (gpu.utilization - filled) * trace_evidence.step, words


def _products(trace_evidence: TraceEvidence) -> Part:
    """At most half of what takes most, where other rules about work save less."""
    dense = trace_evidence.of_family(*DENSE, "attention")
    words = trace_evidence.words(dense)
    name = words["longest"]
    lower = LOWER.get(kernel_precision(name), "") if trace_evidence.on_gpu else "bf16"
    speaks = lower and words["part"] >= thresholds.MOSTLY and not _LOW.search(name)
    half = trace_evidence.saves(dense, 0.5) if speaks and uses_tensor_cores(name) is not False else 0.0
    others = (_attention, _misaligned, _tensor_cores_unused, _elementwise, _moves)
    last = half > sum(part(trace_evidence)[0] for part in others)
    device = "cuda" if trace_evidence.on_gpu else "cpu"
    return half if last else 0.0, {**words, "lower": lower, "device": device}


def _outside(trace_evidence: TraceEvidence) -> Part:
    if trace_evidence.on_gpu:
        how = "Prepare inputs and read outputs in other threads or processes"
        return trace_evidence.seconds(trace_evidence.gaps["outside-operators"]), {"who": "The GPU waits", "how": how}
    how = "Compile the model (torch.compile), or raise the batch"
    return trace_evidence.parts["other"], {"who": "Time passes", "how": how}


# What is saved at most stands behind each sentence.
RULES = (
    TraceRule("data-loader", _data_loader, "The data loader works while nothing else does",
              "Load data in other processes: {how}."),
    TraceRule("set-up", _set_up, "The GPU waits for {calls:#call} that set up or take memory, most in {most}",
              "Warm up before the trace, and keep memory between steps."),
    TraceRule("synchronising", _synchronising, "The GPU runs out of work in {calls:#wait} of the host a step{by}",
              "Wait for the GPU less often: no .item(), .cpu() or print of a tensor."),
    TraceRule("communication", lambda trace_evidence: (trace_evidence.parts["communication"], {}),
              "Devices exchange data while no other kernel runs",
              "Communicate while kernels run: larger buckets, gradients sent as they come."),
    TraceRule("copies", _copies, "No kernel runs during copies between host and GPU, most in {most}",
              "Copy less, or {how}."),
    TraceRule("attention-not-fused", _attention,
              "Attention is not fused, {calls:#softmax} a step: {part:percent} of {base} with its products",
              "Fuse attention: torch.nn.functional.scaled_dot_product_attention."),
    TraceRule("misaligned", _misaligned,
              "{part:percent} of {base} is in products that read few elements at once{older}",
              "Make the sizes of products multiples of {multiple}, by padding."),
    TraceRule("tensor-cores-unused", _tensor_cores_unused,
              "Convolutions and products without tensor cores, by their names, are {part:percent} of {base}",
              "Use tensor cores: {how}."),
    TraceRule("elementwise", _elementwise,
              "{calls:#{what}} a step that compute element by element are {part:percent} of {base}",
              "Fuse them: torch.compile."),
    TraceRule("moves", _moves,
              "{calls:#{what}} a step only move or convert data, {part:percent} of {base}, most in {most}",
              "{how}."),
    TraceRule("small-kernels", _small,
              "{calls:,} of {all:#kernel} a step take less than 5 µs, {part:percent} of {base}",
              "Launch fewer, larger kernels: torch.compile, or a larger batch."),
    TraceRule("gpu-not-filled", _not_filled,
              "GPU {device} runs kernels {busy:percent} of the time, with blocks for {filled:percent} of its units",
              "Give the GPU more at a time: a larger batch."),
    TraceRule("products", _products, "Convolutions, products and attention are {part:percent} of {base}",
              "Race other backends, and a lower precision: "
              "inferlens bench MODEL --device {device} --precision fp32,{lower}"),
    TraceRule("outside-operators", _outside, "{who} while the host runs no operator", "{how}."),
)  # fmt: skip


@rule("", of="trace")
def traces(trace_evidence: TraceEvidence) -> Iterator[Finding]:
    """Every row of the table whose part is worth a line."""
    for item in RULES:
        seconds, words = item.part(trace_evidence)
        share = seconds / trace_evidence.step
        if share > thresholds.WORTH:
            yield found(
                item.sentence.replace("{what}", words.get("what", "")) + ": at most {share:percent} of a step "
                "({time:duration}) to save.",
                {"time": seconds, "share": share}, code=item.code, subject=item.code, seconds=seconds,
                whole=trace_evidence.step,
                share=share, hint=found(item.hint, **words).sentence, **words,
            )  # fmt: skip
