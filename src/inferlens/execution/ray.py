"""Workers on a Ray cluster: a part is a task that requests an accelerator, and Ray decides where it runs.

The same code runs there as here, into a scratch folder. Records are sent back at once, with the files of their folders
that are not too large. Ray does not try again: a task that is lost with its node is begun anew by
``remote``, with the records that have come back.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import inferlens
from inferlens.backends.clocks import NVTX_VARIABLE
from inferlens.errors import InferlensError, library, one_of, reason
from inferlens.execution import remote, worker
from inferlens.execution.child import Outcome
from inferlens.execution.protocol import (
    Event,
    Observer,
    Order,
    RemoteEvent,
    TaskAnswer,
    Value,
    from_json,
    result_from_json,
)
from inferlens.execution.remote import Launcher, RemoteJob, Worker, WorkerLost, core_shares, gpu_cards
from inferlens.measure.environment import code
from inferlens.measure.monitor import usable_cpus
from inferlens.record.files import write_whole
from inferlens.record.store import RECORD, Store
from inferlens.spec.plan import Plan, toml_words

LOCAL = "local"
LARGEST = 8 << 20  # bytes of a file that comes back with a record
ACCELERATOR = "accelerator_type:"  # as Ray names the resource of a node that has one
VARIABLES_PASSED = ("OMP_NUM_THREADS", NVTX_VARIABLE)  # they act on a node as they do here
HERE = "127.0.0.1"
PATIENCE = 5.0  # seconds for an address to answer
TRIES = "RAY_gcs_server_port_wait_time_s"  # Ray's word for how often it tries to connect, 40 s each; 20 times without


class Needs(Struct, frozen=True):
    """The resources of a kind of worker, and how many there may be at a time; 0: as many as Ray has room for."""

    kind: str
    accelerator: str = ""
    gpus: int = 0
    cpus: int = 1
    most: int = 0


class RayLauncher(Launcher):
    """A launcher of tasks on a cluster: an existing one, or one on this machine for as long as the plan runs."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        file = self.where.runtime_env
        self.environment = toml_words(Path(file), "runtime environment") if file else {}
        self._ours = False
        self._streams: list[Any] = []
        self._lock = threading.Lock()

    def __enter__(self) -> RayLauncher:
        self.ray: Any = library("ray", extra="ray")
        if not self.ray.is_initialized():
            self._connect()
        try:
            self.needs = needs_of(self.where.on, [node for node in self.ray.nodes() if node["Alive"]], self.plan.device)
        except BaseException:
            self.__exit__()
            raise
        self.task = self.ray.remote(num_returns="streaming", max_retries=0)(serve)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self.ray.shutdown()

    def _connect(self) -> None:
        address = self.where.address
        words: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            words |= {"include_dashboard": False, "_node_ip_address": HERE}
        else:
            words["address"] = address
            if address != "auto":
                _check_answers(address)
        if self.environment:
            words["runtime_env"] = self.environment
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without a GPU keeps the variable
        if once := address != LOCAL and TRIES not in os.environ:
            os.environ[TRIES] = "1"
        try:
            self.ray.init(**words)
        except Exception as error:  # Ray raises nearly every type there is
            what = f"Ray cannot be reached at '{address}': {reason(error)}."
            hint = "ray status; RAY_AUTH_MODE=token, if the cluster asks for a token; or --ray local"
            raise InferlensError(what, hint=hint) from error
        finally:
            if once:  # processes that Ray starts may try more often
                del os.environ[TRIES]
        self._ours = True
        with suppress(AttributeError):  # Ray has no switch for it: a thread that prints what happens to nodes on our
            ours = self.ray._private.worker.global_worker  # standard output, and burns a core once the head is gone
            ours.threads_stopped.set()
            ours.gcs_error_subscriber.close()

    def workers(self, most: int) -> Sequence[Worker]:
        """See :class:`Launcher`; workers without room wait in Ray."""
        return [RayWorker(self, needs) for needs in self.needs for _ in range(min(most, needs.most or most))]

    def start(self, order: bytes, files: Mapping[str, bytes], needs: Needs) -> Any:
        """Start a part in Ray; return the stream of its events."""
        given_variables = self.environment.get("env_vars", {})
        variables = {name: given_variables.get(name, os.environ.get(name)) for name in VARIABLES_PASSED}
        folder = "" if "working_dir" in self.environment else os.getcwd()
        resources: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus}
        if needs.accelerator:
            resources["accelerator_type"] = needs.accelerator
        with self._lock:
            stream = self.task.options(**resources).remote(order, dict(files), folder, variables, code())
            self._streams.append(stream)
        return stream

    def stop(self) -> None:
        with self._lock:
            for stream in self._streams:
                with suppress(Exception):
                    self.ray.cancel(stream, force=True)


class RayWorker(Worker):
    """A worker that runs one task at a time, wherever Ray chooses."""

    def __init__(self, launcher: RayLauncher, needs: Needs) -> None:
        self.launcher, self.needs, self.kind = launcher, needs, needs.kind

    def do(self, job: RemoteJob, returns: type[Value], observer: Observer) -> Value:
        ray, output = self.launcher.ray, Path(job.plan.output)
        carried = {file: Path(file).read_bytes() for file in job.live.values()}
        stream = self.launcher.start(msgspec.json.encode(Order.of("part", job)), carried, self.needs)
        places: dict[str, Path] = {}
        try:
            for reference in stream:
                data, relative, files = ray.get(reference)
                event = from_json(data, Event)
                if isinstance(event, TaskAnswer):
                    outcome: Outcome[Value] = Outcome(result_from_json(event.result, returns))
                    return outcome.value("A part of the plan failed")
                if isinstance(event, RemoteEvent):
                    _repeat(event, relative, files, output, places, observer)
        except (ray.exceptions.RuntimeEnvSetupError, ray.exceptions.RayTaskError) as error:
            if isinstance(cause := getattr(error, "cause", None), OSError):  # such as a full disk of this node
                raise WorkerLost(str(cause)) from error
            if isinstance(cause, InferlensError):
                raise cause from error
            hint = "inferlens on every node, or a plan file with runtime_env"
            raise InferlensError(f"A node cannot run this: {reason(error)}.", hint=hint) from error
        except ray.exceptions.RayError as error:
            raise WorkerLost(reason(error)) from error
        raise WorkerLost("its task ended without an answer")


def _repeat(
    call: RemoteEvent,
    relative: str,
    files: Mapping[str, bytes],
    output: Path,
    places: dict[str, Path],
    observer: Observer,
) -> None:
    """Repeat a call of an observer on a node here, once its files are here."""
    if call.method == "done":
        record, _ = call.decoded()
        place = places[relative] = Store(output).claim(record.case, record.model.name)
        _write(place, files)
        Store.save(place, record)
        observer.done(record, place)
    elif call.method == "kept":
        place = places.get(relative, output / relative)
        if relative not in places:  # the folder here should have the files of the node, and no others
            shutil.rmtree(place, ignore_errors=True)
        _write(place, files)
        observer.kept(place)
    else:
        call.repeat_for(observer)


def _write(place: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        file = place / name if name else place
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, data)


def needs_of(on: Sequence[str], nodes: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> list[Needs]:
    """Return the resources of workers for ``--on``, from those of the nodes.

    A worker with a GPU takes its share of the node's CPUs. A worker without one takes more than half of the CPUs of the
    largest node, because two workers on one node would disturb each other. Raises InferlensError if no node has a
    named accelerator, or if nothing is named and nodes have different accelerators.
    """
    resources = [dict(node["Resources"]) for node in nodes]
    with_gpu = [node for node in resources if node.get("GPU")]
    kinds = sorted({name[len(ACCELERATOR) :] for node in resources for name in node if name.startswith(ACCELERATOR)})
    if not on:
        if not with_gpu or tuple(devices) == ("cpu",):
            largest = max((int(node.get("CPU", 0)) for node in resources), default=0)
            return [Needs("", cpus=largest // 2 + 1)]
        if len(kinds) > 1:
            hint = f"--on {kinds[0]}, or --on {','.join(kinds)} for all cases on each"
            raise InferlensError(f"The cluster has {', '.join(kinds)}.", hint=hint)
        return [Needs("", kinds[0] if kinds else "", 1, _cpu_share(with_gpu))]
    needs = []
    for words in on:
        name, _, number = words.partition(":")
        fitting = [node for node in with_gpu if f"{ACCELERATOR}{name}" in node]
        if not fitting:
            expected = one_of(kinds) if kinds else "a cluster whose nodes have accelerators"
            raise InferlensError(f"No node of the cluster has '{name}'.", expected=expected)
        if number and (not number.isdecimal() or not int(number)):
            raise InferlensError(
                f"'{words}' is not valid for on.", expected="such as H200, or H200:2 for two at a time"
            )
        needs.append(Needs(name if len(on) > 1 else "", name, 1, _cpu_share(fitting), int(number or 0)))
    return needs


def _cpu_share(nodes: Sequence[Mapping[str, float]]) -> int:
    """Return the CPUs of a worker with a GPU, on the node that has the fewest per GPU."""
    return max(1, min(int(node.get("CPU", 1)) // max(1, int(node["GPU"])) for node in nodes))


def _check_answers(address: str) -> None:
    """Refuse an address where no cluster answers, for which Ray waits very long, or of Ray's client without streams."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isdecimal():
        raise InferlensError(f"'{address}' is not the address of a cluster.", expected="local, auto, or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        what = f"No Ray cluster answers at {address}: {getattr(error, 'strerror', None) or error}."
        raise InferlensError(what, hint="ray status, or --ray local") from error


# On the node


def serve(
    order: bytes, files: Mapping[str, bytes], folder: str, variables: Mapping[str, str | None], code_there: str
) -> Iterator[tuple[Any, ...]]:
    """Do a part on a node, and yield its events.

    Args:
        files: files that the node lacks, by their paths.
        folder: the working directory, if there is such a folder.
        variables: environment variables. A variable of None is removed, also if Ray has set it.
        code_there: the hash of the code of the command: other code may measure in another way.
    """
    if code_there != code():
        what = f"The node {socket.gethostname()} has another Inferlens: its code is not that of this one."
        raise InferlensError(what, expected=f"one Inferlens on every node; there it is {inferlens.__version__}")
    for name in variables:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    if folder and Path(folder).is_dir():
        os.chdir(folder)
    _isolate()
    for path, data in files.items():
        if not Path(path).exists():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="inferlens-") as scratch:
        output = Path(scratch).resolve()
        kept = Path.home() / ".cache" / "inferlens" / ".cache"  # from part to part
        kept.mkdir(parents=True, exist_ok=True)
        (output / ".cache").symlink_to(kept)
        part = msgspec.json.decode(order, type=Order)
        job = from_json(part.job, remote.Part)
        moved = Order.of(part.task, replace(job, plan=replace(job.plan, output=str(output))))

        def work() -> None:
            try:
                worker.perform(moved, events.put)
            finally:
                events.put(None)

        thread = threading.Thread(target=work, name="inferlens-part")
        thread.start()
        sent: set[str] = set()
        while (event := events.get()) is not None:
            if isinstance(event, (RemoteEvent, TaskAnswer)):
                yield _packed(event, output, sent)
        thread.join()


def _packed(event: RemoteEvent | TaskAnswer, output: Path, sent: set[str]) -> tuple[bytes, str, dict[str, bytes]]:
    """Return an event as JSON, with a path below the scratch folder, and the files there."""
    relative, files = "", {}
    if isinstance(event, RemoteEvent) and event.method in ("done", "kept"):
        path = Path(event.decoded()[-1]).resolve()
        relative = str(path.relative_to(output))
        if event.method == "done":
            sent.add(relative)
        files = _read(path, limited=relative in sent)
    return msgspec.json.encode(event), relative, files


def _read(path: Path, *, limited: bool) -> dict[str, bytes]:
    """Return the content of a file, or of a folder's files by path; ``limited`` leaves out records and large files."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = (file for file in path.rglob("*") if file.is_file())
    if limited:
        files = (file for file in files if file.name != RECORD and file.stat().st_size <= LARGEST)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def _isolate() -> None:
    """Name the GPU that Ray has given by its UUID, and keep to a share of the CPUs of the node."""
    devices = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    cards = gpu_cards()  # all of the node
    if devices is None:
        return
    first = devices.split(",")[0].strip()
    index = int(first) if first.isdigit() else next((n for n, card in enumerate(cards) if card.uuid == first), -1)
    if "," in devices or not 0 <= index < len(cards):
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = cards[index].uuid
    if hasattr(os, "sched_setaffinity"):
        with suppress(InferlensError):  # fewer cores than GPUs
            os.sched_setaffinity(0, core_shares(cards, sorted(usable_cpus()))[index])
