"""``inferlens.load``: a record's case as a callable in this process."""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferlens.backends.availability import is_installed
from inferlens.backends.base import Preparation, Runner
from inferlens.errors import InferlensError, library, suggestion
from inferlens.execution import child_process
from inferlens.execution.deploy.chosen import Chosen, chosen
from inferlens.execution.expand import Planned
from inferlens.execution.measure_case import Reference, ReferenceJob, fed_sha256, reference
from inferlens.execution.survey import Named
from inferlens.measure.agreement import judge
from inferlens.models import inputs, resolve
from inferlens.models.model import Model
from inferlens.models.weights import buffers, restore
from inferlens.record.display import Displayed
from inferlens.record.record import KEEPS_STATE, RANDOM, Record
from inferlens.spec.case import TensorSpec
from inferlens.units import listing

FLOATS = {"float64", "float32", "float16", "bfloat16"}  # one is cast to the other
NOTHING = nullcontext()
WARMUP = 3  # calls: what is compiled for tensors of such a kind, and captured, is so then


class Deployed(Displayed):
    """A measured case as a callable, with the signature of its model: tensors by position, or by their names.

    It takes PyTorch's tensors and NumPy's arrays, of the shapes and types in ``inputs``, floats in any precision.
    What lies on its device, in its type and memory order, is read where it lies; all else is copied there first. So is
    every input, on the device, of a call that replays a CUDA graph or runs ONNX Runtime on a GPU.

    It gives PyTorch's tensors on its device, in the structure that the model returns, or a list of them where a graph
    does not keep that, or the only one. Where the library is not PyTorch and runs on the CPU, arrays give arrays. On a
    GPU outputs are written in order with PyTorch's current stream, as any operator's are: what is enqueued there next,
    and a copy to the host, sees them whole. Where a library writes to the same memory in every call, they are copies of
    that, unless ``copy`` was turned off: then the next call overwrites them.

    One thread calls it at a time. While it is open, PyTorch has the case's threads, TF32 and cuDNN settings in all of
    this process. ``close``, or leaving it as a context, gives everything back.

    Attributes:
        record: what was measured.
        inputs: name, shape and type of each input.
    """

    def __init__(self, way: Chosen, runner: Runner, stack: ExitStack, *, copy: bool) -> None:
        """Enters ``runner`` and takes over ``stack``; modes and stream of PyTorch are afterwards as they were."""
        self.record = way.record
        self.inputs: tuple[TensorSpec, ...] = way.record.model.inputs
        self._runner, self._on_gpu = runner, way.case.device == "cuda"
        with _thread_kept(self._on_gpu):
            before = _stream(self._on_gpu)
            stack.enter_context(_entered(runner, self._on_gpu))
            own = _stream(self._on_gpu)
            if own == before or runner.follows_stream:
                own = None
            ordered = self._on_gpu and (own or runner.reuses_outputs)
            self._on_stream: AbstractContextManager[None] = _OnStream(own, before) if ordered else NOTHING
            torch = sys.modules.get("torch")
            mode = torch and (torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad)
        self._mode: Callable[[], Any] = mode or nullcontext
        self._copy = copy and runner.reuses_outputs
        self._open = weakref.finalize(self, stack.pop_all().close)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The model's outputs. Raises InferlensError if inputs are missing, unknown, or of other shapes or types."""
        if not self._open.alive:
            raise InferlensError("This callable was closed.", hint="inferlens.load, once more")
        given = named_inputs(self.inputs, args, named)
        with self._on_stream:
            # In the caller's mode: what compiles for tensors tells those of another apart.
            feed = self._runner.take(given)
            with self._mode():
                outputs = self._runner.give(self._runner.infer(feed))
                outputs = _each(_copy, outputs) if self._copy else outputs
        for value in given.values():
            if hasattr(value, "detach"):
                return _each(_tensor, outputs)
        return outputs

    def __repr__(self) -> str:
        case = self.record.case
        return f"<{self.record.model.name} by {case.label}: {listing([*map(str, self.inputs)])}>"

    def on_host(self, arrays: Mapping[str, Any]) -> list[Any]:
        """The outputs as they were compared when it was measured: arrays in order, floats as float32."""
        with self._on_stream, self._mode():
            return self._runner.collect(self._runner.infer(self._runner.place(dict(arrays))))

    def close(self) -> None:
        """Lets go of the device and of the model."""
        self._open()

    def __enter__(self) -> Deployed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OnStream:
    """One call after the other, on a stream of its own between what is enqueued on the current one, or on that one.

    What was enqueued where the call before came from is waited for, too: it may still read what a call writes.
    """

    def __init__(self, own: Any, current: Any) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._own, self._current = own, current
        self._before, self._after = self._cuda.Event(), self._cuda.Event()

    def __enter__(self) -> None:
        current = self._cuda.current_stream()
        if current != self._current:
            (self._own or current).wait_stream(self._current)
            self._current = current
        if self._own:
            self._before.record(current)
            self._before.wait(self._own)
            self._cuda.set_stream(self._own)

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._cuda.set_stream(self._current)
            self._after.record(self._own)
            self._after.wait(self._current)


def load(
    record: Record,
    folder: Path,
    *,
    rebuild: bool = False,
    trust: bool = False,
    copy: bool = True,
    model: Named | None = None,
) -> Deployed:
    """Return the case of a record in ``folder``, prepared in this process and called a few times."""
    way = chosen(record, folder, rebuild=rebuild, model=model)
    if record.model.weights_note:
        warnings.warn(record.model.weights_note, stacklevel=3)
    if refusal := way.backend.capabilities().refusal(way.case, way.info):
        raise refusal
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inferlens-")))
        preparation = Preparation(scratch, way.cache or scratch, trust=trust, export_folder=way.exported)
        preparation.cached_only = not rebuild
        loaded = _model(way, trust=trust, rebuild=rebuild)
        fast = Deployed(way, way.backend.prepare(loaded, way.case, preparation), stack, copy=copy)
    arrays = inputs.make_inputs(loaded, way.case.seed)
    torch = sys.modules.get("torch")
    placed = {name: torch.from_numpy(value).to(way.case.device) for name, value in arrays.items()} if torch else arrays
    taken = way.record.agreement
    state = {} if taken is None or taken.repeatable else buffers(loaded.module)
    try:
        for _ in range(WARMUP):
            fast(**placed)
        restore(loaded.module, state)  # the first call of the user begins with the state of the model
        if rebuild:
            _check_outputs(fast, way, loaded, trust=trust)
    except BaseException:
        fast.close()
        raise
    return fast


def _model(way: Chosen, *, trust: bool, rebuild: bool) -> Model:
    """The model that was measured; its random weights leave PyTorch's generator as it was."""
    if way.known:
        return resolve.exported(way.case, way.known)
    with library("torch", extra="torch").random.fork_rng(devices=[]) if is_installed("torch") else nullcontext():
        model = resolve.load(way.case, trust=trust, live=way.live)
    if not rebuild:
        way.check_weights(model.weights_sha256)
    return dataclasses.replace(model, inputs=way.record.model.inputs)


def _check_outputs(fast: Deployed, way: Chosen, model: Model, *, trust: bool) -> None:
    """Refuses outputs that are not those of the reference, which is computed here; nothing, where it cannot be."""
    info = msgspec.structs.replace(way.info, format=model.format)
    case = Planned(way.case, info, None).reference
    if case is None:
        return
    arrays = inputs.make_inputs(model, way.case.seed)
    with tempfile.TemporaryDirectory(prefix="inferlens-") as folder:
        path = str(Path(folder) / "reference.npz")
        job = ReferenceJob(
            case=case, folder=folder, cache=folder, trust=trust, path=path, inputs_seed=way.case.seed,
            live=str(way.live) if way.live else None,
        )  # fmt: skip
        made = child_process.launch(reference, job, timeout=way.record.budget.timeout).result.found
        if made is None or made.weights_sha256 != model.weights_sha256 or made.inputs_sha256 != fed_sha256(arrays):
            return
        expected = Reference(name=case.label, path=path).expected()
    taken = way.record.agreement
    by_accuracy = taken is not None and taken.agrees and taken.tolerance is None
    comparable = not by_accuracy and not expected.behavior.keys() & {RANDOM, KEEPS_STATE}
    tolerance = way.backend.tolerance(way.case) if comparable else math.inf
    result = judge([fast.on_host(arrays)], expected, tolerance)
    if result.agrees is False:
        raise InferlensError(f"Prepared anew here, its outputs are wrong: {result.reason}.", hint="another case")


def named_inputs(specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs of a call by name. Raises InferlensError for the first that ``specs`` do not describe."""
    given = dict(zip([spec.name for spec in specs], args, strict=False), **named) if args else named
    if len(given) != len(specs) or len(args) + len(named) != len(specs):
        raise _misfit(specs, args, named)
    for spec in specs:
        value = given.get(spec.name)
        if getattr(value, "shape", None) != spec.shape or not _reads(spec.dtype, getattr(value, "dtype", None)):
            raise _misfit(specs, args, named)
    return given


def _misfit(specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]) -> InferlensError:
    """What is said of the first input that is not as it is described; slowly, for a call does without."""
    names, all_inputs = [spec.name for spec in specs], listing([*map(str, specs)])
    if len(args) > len(names):
        return InferlensError(f"{len(args)} inputs were given.", expected=all_inputs)
    for name in named:
        if name not in names:
            what = f"The model has no input '{name}'."
            return InferlensError(what, expected=all_inputs, hint=suggestion(name, names))
        if name in names[: len(args)]:
            return InferlensError(f"The input '{name}' is given twice.", expected=all_inputs)
    given = {**dict(zip(names, args, strict=False)), **named}
    for spec in specs:
        if spec.name not in given:
            return InferlensError(f"The input '{spec.name}' is missing.", expected=str(spec))
        value = given[spec.name]
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            what = f"The input '{spec.name}' is a {type(value).__name__}."
            return InferlensError(what, expected=f"a tensor or an array, {spec}")
        if tuple(value.shape) != spec.shape or not _reads(spec.dtype, value.dtype):
            break
    shape = "x".join(map(str, value.shape)) or "scalar"
    return InferlensError(f"The input '{spec.name}' is {shape}:{_plain(value.dtype)}.", expected=str(spec))


@cache
def _reads(taken: str, dtype: Any) -> bool:
    """Whether an input of the type ``taken`` may be given in another."""
    return _plain(dtype) == taken or {_plain(dtype), taken} <= FLOATS


def _plain(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _each(function: Callable[[Any], Any], outputs: Any) -> Any:
    """The same structure of what ``function`` makes of every tensor or array in it."""
    if isinstance(outputs, np.ndarray) or hasattr(outputs, "detach"):
        return function(outputs)
    if isinstance(outputs, Mapping):
        return {name: _each(function, value) for name, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        made = [_each(function, value) for value in outputs]
        return type(outputs)(*made) if hasattr(outputs, "_fields") else type(outputs)(made)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        own = {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
        return dataclasses.replace(outputs, **{name: _each(function, value) for name, value in own.items()})
    return outputs


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()


def _tensor(value: Any) -> Any:
    return sys.modules["torch"].from_numpy(value) if isinstance(value, np.ndarray) else value


@contextmanager
def _entered(runner: Runner, on_gpu: bool) -> Iterator[None]:
    """The runner entered, and left without a trace in whatever thread that is."""
    runner.__enter__()
    try:
        yield
    finally:
        with _thread_kept(on_gpu):
            runner.__exit__(None, None, None)


@contextmanager
def _thread_kept(on_gpu: bool) -> Iterator[None]:
    """PyTorch's modes and current stream are afterwards as before; inside, modes are the usual ones.

    Its guards put back what they found, whatever was entered and not left inside.
    """
    with ExitStack() as stack:
        if torch := sys.modules.get("torch"):
            stack.enter_context(torch.inference_mode(mode=False))
            if on_gpu:
                stack.enter_context(torch.cuda.stream(torch.cuda.current_stream()))
        yield


def _stream(on_gpu: bool) -> Any:
    return sys.modules["torch"].cuda.current_stream() if on_gpu else None
