"""``inferlens load``: the deployment that serves most requests within a limit. :func:`run` is the table of contents.

Each way is measured with several numbers of instances, and the best of them meet in rounds with the same arrivals until
one is the fastest. A record is on disk before the next one is measured. :func:`export_deployment` writes the winner
with a server, and :func:`run_http` measures such a server.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import queue
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import datetime, timezone
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec import structs

from inferlens.analysis.interference import energy_per_item, mean_value
from inferlens.analysis.load import FOLDER, best_record, capacity_race, load_loads, may_win
from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError, check_choice, library
from inferlens.execution.cases import ModelHandle, cases_of, live_files, model_handle
from inferlens.execution.child import kill_groups
from inferlens.execution.deploy import new_folder, write_script
from inferlens.execution.load import serve, tasks
from inferlens.execution.load.dispatcher import Finished, Instances, measure, read_mix
from inferlens.execution.protocol import Observer, PlannedCase, TaskResult
from inferlens.execution.scheduler import Scheduler, open_scheduler
from inferlens.measure import environment
from inferlens.measure.monitor import Monitor, gpu_before, usable_cpus
from inferlens.models.inputs import draw
from inferlens.record.files import write_whole
from inferlens.record.load import POOL, Arrivals, Deployment, Limit, LimitedBy, LoadRecord, LoadRun, Mix, parse_batching
from inferlens.record.machine import CpuSamples, GpuSamples, MachineLog
from inferlens.record.record import Memory, ModelFacts
from inferlens.record.store import LOG, lock_folder, safe_name
from inferlens.spec.case import Case, TensorSpec, with_batch
from inferlens.spec.commands import own_options
from inferlens.spec.objective import Constraint
from inferlens.spec.plan import Plan, read_plan
from inferlens.units import duration, parse_price, parse_rate

PATIENCE = 60.0  # seconds without an answer after which an instance hangs, or a request to a server has failed


def export_deployment(records: Sequence[LoadRecord], output: Path, cache: Path, **words: Any) -> LoadRecord:
    """Write the best deployment to a new folder, as a script for each batch size and a server; return its record."""
    records = [record for record in records if record.case.backend in BACKENDS.names()]  # not a server's
    best = best_record([record for record in records if may_win(record)] or records)
    case, deployment, specs = best.case, best.deployment, best.model.inputs
    if not may_win(best) or len(best.mix.groups) > 1:
        message = "No deployment of one size keeps its limit with right answers."
        raise InferlensError(message, hint="inferlens load MODEL")
    versions = best.environment.libraries if best.environment else {}
    with new_folder(output):
        for size in deployment.sizes:
            folder = output / f"batch-{size}"
            sized = structs.replace(with_threads(case, deployment), batch=size)
            write_script(folder, sized, with_batch(specs, size), versions, cache=cache, **words)
        shutil.copy(folder / "requirements.txt", output)
        single, double = with_batch(specs, 1), with_batch(specs, 2)
        settings = {
            "model": case.model, "name": best.model.name, "way": case.label, "sizes": deployment.sizes,
            "instances": deployment.instances, "max_batch": deployment.max_batch, "wait": deployment.wait,
            "queue": deployment.queue,
            "inputs": {spec.name: spec.shape != twice.shape for spec, twice in zip(single, double, strict=True)},
            "specs": single, "seed": case.seed,
        }  # fmt: skip
        (output / "serve.json").write_bytes(msgspec.json.encode(settings))
        shutil.copy(serve.__file__, output / "serve.py")
    return best


class HttpInstances(Instances):
    """Connections to a server that send one request at a time. Raises InferlensError if there is no server."""

    count = 64

    def __init__(self, url: str) -> None:
        address = urlsplit(url).netloc
        self._connections = [HTTPConnection(address, timeout=PATIENCE) for _ in range(self.count)]
        self._threads = ThreadPoolExecutor(self.count)
        self._done: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        try:
            self._connections[0].request("GET", "/model")
            self.settings: dict[str, Any] = json.loads(self._connections[0].getresponse().read())
            self.specs = msgspec.convert(self.settings["specs"], tuple[TensorSpec, ...])
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            message = f"No server of 'inferlens export --best' answers at {url}: {error}."
            raise InferlensError(message, hint="python serve.py in its folder") from error
        self._bodies = []
        batched = self.settings["inputs"]
        for sample in range(POOL):
            file = io.BytesIO()
            inputs: dict[str, Any] = draw(self.specs, self.settings["seed"] + sample)
            np.savez(file, **{name: array[0] if batched[name] else array for name, array in inputs.items()})
            self._bodies.append(file.getvalue())

    def send(self, instance: int, samples: Sequence[int], size: int) -> None:  # noqa: ARG002 - one at a time
        self._threads.submit(self._request, instance, self._bodies[samples[0]])

    def wait(self, until: float) -> list[Finished]:
        try:
            return [self._done.get(timeout=max(0.0, min(until - self.now(), 1.0)))]
        except queue.Empty:
            return []

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def _request(self, instance: int, body: bytes) -> None:
        connection, begin = self._connections[instance], self.now()
        try:
            connection.request("POST", "/infer", body)
            response = connection.getresponse()
            response.read()
            failed = response.status != 200
        except (OSError, HTTPException):
            connection.close()
            failed = True
        self._done.put(Finished(instance, begin, self.now(), failed))


QUANTILES = {"latency": 0.5, "latency.p95": 0.95, "latency.p99": 0.99}
LEAST_ROUNDS, MOST_ROUNDS = 2, 10
MOST_INSTANCES = 4
GAIN = 1.02  # more instances must serve so much more to be tried further
DEFAULT_BATCH = 16


def load_test(
    model: Any,
    words: Mapping[str, Any],
    observer: Observer,
    records: list[LoadRecord],
    ways: Sequence[Plan] = (),
    example_inputs: Any = None,
) -> None:
    """Measure a model, the winners of a folder as plans, or a server; ``records`` gets each record at once."""
    options, plan_words = own_options("load", words)
    template = load_template(options)
    name = str(model) if isinstance(model, (str, Path)) else ""
    with model_handle(model, example_inputs) as handle:
        plan = read_plan([name], plan_words) if name else Plan.from_words({**plan_words, "model": handle.spec})
        if name.startswith("http://"):
            records += run_http(plan, template, name)
        else:
            run(ways or [structs.replace(plan, recommended=True)], template, observer, records, handle)


def load_template(options: Mapping[str, Any]) -> LoadRecord:
    """Return the part that all records share, by the own options of ``load``; 0 instances stand for the best number.

    Raises InferlensError for values that do not fit.
    """
    limit = Constraint.parse(options["within"])
    if limit.name not in QUANTILES:
        raise InferlensError(f"{limit.name} cannot be a limit of load.", expected="p50, p95 or p99, such as p99=50ms")
    if options["scenario"]:
        check_choice("scenario", options["scenario"], list(tasks.SCENARIOS))
        library("mlperf_loadgen", extra="load")
    if options["rate"] and options["concurrency"]:
        raise InferlensError("--rate and --concurrency are two kinds of traffic.", expected="one of them")
    max_batch, wait = parse_batching(options["batching"]) if options["batching"] else (DEFAULT_BATCH, 0.0)
    deployment = Deployment(options["instances"], max_batch, wait, options["queue"], options["give_up"])
    return LoadRecord(
        case=Case(model="", backend=""), requested=deployment, deployment=deployment, search=not options["batching"],
        limit=Limit(QUANTILES[limit.name], limit.limit), arrivals=Arrivals.parse(options["arrivals"]),
        mix=read_mix(Path(options["mix"])) if options["mix"] else Mix(),
        rates=tuple(map(parse_rate, options["rate"])), clients=options["concurrency"], seconds=options["seconds"],
        scenario=options["scenario"], price=parse_price(options["price"]) if options["price"] else 0.0,
        budget=options["budget"],
    )  # fmt: skip


def new_record(template: LoadRecord, case: Case, deployment: Deployment, **fields: Any) -> LoadRecord:
    """Return the record of a case before it is measured."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return structs.replace(
        template, id=uuid.uuid4().hex, created=now, case=case, requested=deployment, deployment=deployment, **fields
    )


def run(
    plans: Sequence[Plan], template: LoadRecord, observer: Observer, records: list[LoadRecord], model: ModelHandle
) -> None:
    """Measure every way of the plans under load, then measure the best deployments in rounds.

    ``records`` gets each record at once, so that an interrupt loses none.
    """
    deadline = time.monotonic() + template.budget
    observer.doing("looking at models and backends")
    if mixed := template.mix != Mix():
        dim = tuple(tuple(TensorSpec(name, (size,)) for name, size in group.items()) for group in template.mix.groups)
        plans = [structs.replace(plan, dim=dim) for plan in plans]
    cases = [planned for plan in plans for planned in cases_of(plan, model)]
    ways: dict[str, Way] = {}
    for planned in cases:
        case = structs.replace(planned.case, batch=None, inputs=() if mixed else planned.case.inputs)
        ways.setdefault(case.digest, Way(case, [])).groups.append(planned)
    folder = Path(plans[0].output) / safe_name(cases[0].model.name) / FOLDER
    with lock_folder(folder.parent), open_scheduler(plans[0], observer, cases, live_files(model)) as scheduler:
        measurer = Measurer(template, scheduler, folder, records, [] if plans[0].rerun else load_loads([folder], []))
        first_round: dict[str, list[LoadRecord]] = {}
        for digest, way in ways.items():
            now = time.monotonic()
            first_round[digest] = search(measurer, way, now + (deadline - now) / (len(ways) - len(first_round)))
        for number in range(1, 1 if template.rates or template.clients else MOST_ROUNDS):
            race = capacity_race(records)
            if race is None or (number >= LEAST_ROUNDS and race.decided) or time.monotonic() > deadline:
                break
            for digest in [race.leader, *(race.open or race.rivals)]:
                best = best_record(first_round[digest])
                measurer.measure(ways[digest], best.deployment, number, deadline, best)


class Way(NamedTuple):
    """A case without a batch size, and without sizes if there is a mix; and the cases of its groups of requests."""

    case: Case
    groups: list[PlannedCase]


def run_http(plan: Plan, template: LoadRecord, url: str) -> list[LoadRecord]:
    """Measure a server that runs already, over HTTP; threads of this process make the traffic."""
    deployment = template.deployment
    served = (deployment.instances, deployment.queue, deployment.timeout, plan.backend)
    if any(served) or template.scenario or not template.search or template.mix != Mix():
        options = "--mix, --scenario, --batching, --instances, --queue, --give-up and --backend"
        message = f"{options} are for models that Inferlens serves itself."
        raise InferlensError(message, expected="a model in place of an address")
    instances = HttpInstances(url)
    settings = instances.settings
    facts = ModelFacts(name=settings.get("name", settings["model"]), inputs=instances.specs)
    case, machine = Case(model=settings["model"], backend=url), environment.collect()
    record = new_record(template, case, Deployment(instances.count), search=False, environment=machine, model=facts)
    with closing(instances):
        record = measure(record, instances, lambda _: None, time.monotonic() + template.budget)
    deployment = Deployment(settings["instances"], settings["max_batch"], settings["wait"], settings["queue"])
    record = structs.replace(record, requested=deployment, deployment=deployment)
    write_whole(new_file(record, Path(plan.output) / safe_name(facts.name) / FOLDER), msgspec.json.encode(record))
    return [record]


def new_file(record: LoadRecord, folder: Path) -> Path:
    """Create the folder, and return the record's file in it, which is named after its time."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{record.created[:19].replace(':', '')}-{record.id[:6]}.load.json"


def search(measurer: Measurer, way: Way, end: float) -> list[LoadRecord]:
    """Measure a way with 1, 2 and 4 instances, until more instances do not serve more; return all records.

    No further number of instances is tried after ``end``.
    """
    template = measurer.template
    instances = most_instances = template.deployment.instances or 1
    if not (template.deployment.instances or template.rates or template.clients):
        most_instances = MOST_INSTANCES if way.case.device != "cpu" else min(MOST_INSTANCES, len(usable_cpus()))
    records: list[LoadRecord] = []
    while instances <= most_instances and (not records or time.monotonic() < end):
        before = max((record.capacity or 0.0 for record in records), default=0.0)
        records.append(measurer.measure(way, structs.replace(template.deployment, instances=instances), 0, end))
        if records[-1].status != "ok" or (records[-1].capacity or 0.0) < before * GAIN:
            break
        instances *= 2
    return records


def measure_capacity(
    scheduler: Scheduler, planned: PlannedCase, limit: str, number: int, end: float, first: LoadRecord | None
) -> LoadRecord:
    """Return the record of a case's capacity in a round: with the deployment of ``first``, or else the best one."""
    folder = Path(scheduler.plan.output) / safe_name(planned.model.name) / FOLDER
    measurer = Measurer(load_template(own_options("load", {"within": limit})[0]), scheduler, folder, [])
    way = Way(structs.replace(planned.case, batch=None), [planned])
    if first:
        return measurer.measure(way, first.deployment, number, end, first)
    return best_record(search(measurer, way, end))


def with_threads(case: Case, deployment: Deployment) -> Case:
    """Return the case of an instance. Instances on a CPU share its threads; an instance on a GPU has one thread.

    More threads would convert the inputs of a GPU no faster, and would wait actively on all CPUs for the next ones.
    """
    share = max(1, len(usable_cpus()) // deployment.instances) if case.device == "cpu" else 1
    return structs.replace(case, threads=case.threads or share)


@dataclasses.dataclass(frozen=True)
class Measurer:
    """Measure deployments and keep their records; records of an earlier run with the same request are used again."""

    template: LoadRecord
    scheduler: Scheduler
    folder: Path
    records: list[LoadRecord]
    earlier: Sequence[LoadRecord] = ()

    def measure(
        self, way: Way, deployment: Deployment, number: int, end: float, before: LoadRecord | None = None
    ) -> LoadRecord:
        """Return the record of a deployment in a round; from ``end`` on its capacity is not narrowed further.

        The search begins at the capacity of the record ``before``, or of an earlier run that its budget ended.
        """
        case = way.case
        record = new_record(
            self.template, case, deployment, round=number, search=self.template.search and not number,
            environment=self.scheduler.environments.of(case), model=ModelFacts(name=way.groups[0].model.name),
        )  # fmt: skip
        matching = [saved for saved in self.earlier if saved.key == record.key and saved.status == "ok"]
        if complete := next((saved for saved in matching if not saved.cut_short), None):
            self.records.append(complete)
            return complete
        if start := before or next(reversed(matching), None):
            fields = {name: getattr(start, name) for name in ("service", "capacity", "deployment")}
            record = structs.replace(record, **fields)
        file = new_file(record, self.folder)
        try:
            if refusal := next((group.refusal for group in way.groups if group.refusal), None):
                record = structs.replace(record, status="unsupported", reason=refusal.sentence, hint=refusal.hint)
            else:
                self.scheduler.observer.doing(f"{case.label}: {deployment}")
                record = self._run(record, way, end, file)
            write_whole(file, msgspec.json.encode(record))
        except KeyboardInterrupt:
            self.records.extend(load_loads([file] * file.exists(), []))  # the runs so far
            raise
        self.records.append(record)
        return record

    def _run(self, record: LoadRecord, way: Way, end: float, file: Path) -> LoadRecord:
        """Return the record with the measurements of its instances; the file has the runs so far."""
        scheduler, deployment = self.scheduler, record.deployment
        pools = [dataclasses.replace(group, case=structs.replace(group.case, batch=POOL)) for group in way.groups]
        references = [scheduler.references.of(pool) for pool in pools]
        if missing := next((reference.missing for reference in references if reference.missing), ""):
            return structs.replace(record, status="failed", reason=missing)
        case = with_threads(way.case, deployment)
        scratch = scheduler.scratch / record.id[:12]
        folders = [scratch / str(instance) for instance in range(deployment.instances)]
        for folder in folders:
            folder.mkdir(parents=True)
        address = str(scratch / "socket")
        drive = tasks.DriveJob(
            address=address, stop=str(scratch / "stop"), record=record, file=str(file.resolve()),
            patience=PATIENCE, end=end,
        )  # fmt: skip
        limited = record.search and case.device == "cpu" and not (record.capacity or record.rates or record.clients)
        groups = tuple(
            (group.case.inputs, reference.path) for group, reference in zip(way.groups, references, strict=True)
        )
        serves = [
            tasks.ServeJob(
                **scheduler.job_fields(case, folder), address=address, instance=instance, sizes=deployment.sizes,
                groups=groups, reference=references[0].name, longest=limited * record.limit.seconds,
            )
            for instance, folder in enumerate(folders)
        ]  # fmt: skip
        pids: dict[int, int] = {}
        gpu = case.device == "cuda"
        with Monitor(lambda: [*pids.values()], gpu=gpu, before=gpu_before() if gpu else None) as monitor:
            driven, served = run_processes(scheduler, drive, serves, pids)
        return with_observations(with_results(record, driven, served), monitor.log())


def run_processes(
    scheduler: Scheduler, drive: tasks.DriveJob, serves: Sequence[tasks.ServeJob], pids: dict[int, int]
) -> tuple[TaskResult[LoadRecord], list[TaskResult[tasks.ServeResult]]]:
    """Run the traffic and the instances until all have ended; return their results.

    ``pids`` gets the process numbers of the instances, and of the traffic at -1. An instance that goes on long after
    the traffic has ended is killed, because it hangs. An interrupt kills all.
    """

    def run_one(task: str, job: Any, kind: Any, number: int, **words: Any) -> TaskResult[Any]:
        started = partial(pids.setdefault, number)
        result = scheduler.launch(task, job, kind, timeout=math.inf, started=started, **words).result
        if result.status != "ok" or number < 0:
            Path(drive.stop).touch()
        return result

    hung = TaskResult[Any](status="timed out", reason=f"An instance did not answer for {duration(PATIENCE)}.")
    with ThreadPoolExecutor(len(serves)) as pool:
        try:
            serving = [  # the variable is for conversions that a library leaves to PyTorch
                pool.submit(
                    run_one, "serve", job, tasks.ServeResult, number, log=Path(job.folder) / LOG,
                    variables={"OMP_NUM_THREADS": str(job.case.threads)},
                )
                for number, job in enumerate(serves)
            ]  # fmt: skip
            driven = run_one("drive", drive, LoadRecord, -1)
            hanging = wait(serving, PATIENCE).not_done
            kill_groups(pids[serving.index(future)] for future in hanging)
            results = [future.result() for future in serving]
        except BaseException:
            kill_groups(pids.values())
            raise
    return driven, [hung if future in hanging else result for future, result in zip(serving, results, strict=True)]


BUSY = 0.85  # share of the time from which on something limits the rate


def with_observations(record: LoadRecord, log: MachineLog) -> LoadRecord:
    """Return the record with the monitor's values for its runs, and with what limits the rate."""
    gpu, cpu = log.gpu or GpuSamples(), log.cpu or CpuSamples()

    def observed(run: LoadRun) -> LoadRun:
        begin, end = run.begin, run.begin + run.seconds
        busy = mean_value(cpu.times, cpu.busy, begin, end)
        return structs.replace(
            run,
            gpu=mean_value(gpu.times, gpu.utilisation, begin, end),
            host=None if busy is None else busy / (log.cpus or 1),
            others=mean_value(cpu.times, cpu.others, begin, end),
            energy=energy_per_item(log, record.case.device, begin, end, run.answered),
        )

    record = structs.replace(record, runs=tuple(map(observed, record.runs)))
    return structs.replace(record, limited_by=limited_by(record))


def limited_by(record: LoadRecord) -> LimitedBy:
    """Return the limit of a record's capacity, which :class:`LoadRecord` describes."""
    run, limit, wait = record.run, record.limit.seconds, record.deployment.wait
    if run is None or not record.capacity:
        return ""
    if (run.gpu or 0.0) >= BUSY:
        return "gpu"
    if record.case.device == "cpu" and (run.host or 0.0) >= BUSY:
        return "cpu"
    if run.busy >= BUSY:
        return "instances" if run.gpu is None else "host"
    size = max(1, round(run.mean_batch))
    for times in record.service:
        fitting_sizes = [prepared for prepared in times if prepared >= size]
        if fitting_sizes and times[min(fitting_sizes)] > limit / 2:
            return "call"
    return "batching" if wait >= limit / 5 and run.waited > wait / 2 else "queue"


def with_results(
    record: LoadRecord, driven: TaskResult[LoadRecord], served: Sequence[TaskResult[tasks.ServeResult]]
) -> LoadRecord:
    """Return the record with the runs, and with the verdict on the answers."""
    results: list[TaskResult[Any]] = [driven, *served]
    failures = (result for result in results if result.status != "ok" and tasks.NEVER_SERVED not in result.reason)
    outcome = next(failures, TaskResult[Any]())
    verdicts = [result.value for result in served if result.value]
    agreements = [verdict.agreement for verdict in verdicts if verdict.agreement]
    facts = next((result.model for result in served if result.model), record.model)
    warnings = [warning for result in served for warning in result.warnings]
    return structs.replace(
        driven.value or record, status=outcome.status, reason=outcome.reason, hint=outcome.hint,
        model=structs.replace(facts, name=record.model.name),
        agreement=min(agreements, key=lambda agreement: agreement.agrees is not False, default=None),
        checked=sum(verdict.checked for verdict in verdicts), mixed_up=sum(verdict.mixed_up for verdict in verdicts),
        memory=Memory(host_peak=sum(result.memory.host_peak or 0 for result in served)),
        warnings=tuple({(warning.code, warning.message): warning for warning in warnings}.values()),
    )  # fmt: skip
