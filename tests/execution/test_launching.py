"""Plans on several workers, also of a real Ray cluster: what is placed where, lost workers, the same command again."""

import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import torch
from msgspec.structs import replace

import inferlens
from inferlens import InferlensError
from inferlens.execution import remote
from inferlens.execution.child import START
from inferlens.execution.protocol import Observer, Order, RemoteObserver, from_json
from inferlens.execution.ray import Needs, RayWorker, needs_of, serve
from inferlens.execution.remote import LAUNCHERS, GpuCard, Worker, WorkerLost, chosen_cards, core_shares, launcher_of
from inferlens.measure import environment
from inferlens.measure.environment import code
from inferlens.record.record import CUT_SHORT, Environment
from inferlens.record.store import Store, load_records
from inferlens.spec.plan import Plan, Where, where_of
from tests.commands import Heard
from tests.commands import inferlens as command
from tests.views.samples import record as sample

QUICK = {"iterations": 10, "warmup": 1, "backend": "fake:noisy"}
RACES = {"batch": "1,2,3", "option": "fake.latency=4,4.6"}


class Mortal(Worker):
    """Does parts as data, in this process, and is lost after so many records."""

    def __init__(self, lives=1000, kind=""):
        self.lives, self.kind = lives, kind
        self.did = []

    def do(self, job, returns, observer):
        self.did.append(job)
        job = from_json(Order.of("part", job).job, remote.Part)

        def hear(event):
            event.repeat_for(observer)
            if event.method == "done":
                self.lives -= 1
                if not self.lives:
                    self.lives = 1000
                    raise WorkerLost("it fell")

        return job.run(RemoteObserver(hear))


class Some(remote.Launcher):
    """Workers of this test."""

    those: Sequence[Worker] = ()

    def workers(self, most):
        return self.those


@pytest.fixture
def some(monkeypatch, one_process):
    monkeypatch.setattr(remote, "launcher_of", Some)
    monkeypatch.setattr(Some, "those", [Mortal(), Mortal()])
    return Some


def bench(folder, observer=None, **words):
    words = {**QUICK, **RACES, "devices": "all", **words}
    return list(inferlens.bench("fake:demo", output=str(folder), observer=observer, **words))


def measured(records):
    return dict(Counter((record.case.label, record.repeat) for record in records))


def kept(folder):
    return measured(load_records(folder).records)


def test_races_stay_together_and_the_records_are_those_of_one_worker(tmp_path, some):
    records = bench(tmp_path / "two")
    assert all(worker.did for worker in some.those), "both have worked"
    for worker in some.those:
        for job in worker.did[1:]:
            assert len({planned.case.batch for planned in job.cases}) == 1
            assert job.plan.within == pytest.approx(60 * 2 / 3)
    some.those = [Mortal()]
    alone = bench(tmp_path / "one")
    assert {key for key in measured(records) if not key[1]} == {key for key in measured(alone) if not key[1]}
    for found in (records, alone):
        assert set(measured(found).values()) == {1}
        assert max(record.repeat for record in found) >= 3
        assert len({record.run for record in found}) == 1
    assert [planned.case.batch for planned in some.those[0].did[1].cases] == [1, 1, 2, 2, 3, 3], "all in one part"


@pytest.mark.parametrize("lives", [1, 3, 5])
def test_a_lost_worker_leaves_its_records_and_another_one_does_the_rest(lives, tmp_path, some):
    some.those = [Mortal(lives), Mortal(lives + 1)]
    heard = Heard()
    records = bench(tmp_path, heard)
    assert (len([text for text in heard.remarks if "it fell" in text]), kept(tmp_path)) == (2, measured(records))
    assert set(measured(records).values()) == {1}
    assert len({record.case.digest for record in records if record.repeat < 2}) == 6
    assert all(max(each.repeat for each in records if each.case.batch == batch) >= 2 for batch in (1, 2, 3))


def test_what_takes_every_worker_along_is_a_row_whatever_others_do_meanwhile(tmp_path, some):
    attempts = []

    class Doomed(Mortal):
        def do(self, job, returns, observer):
            if any(planned.case.batch == 2 for planned in getattr(job, "cases", ())):
                attempts.append(job)
                assert len(attempts) < 10
                observer.done(sample(id=str(len(attempts))), tmp_path)
                raise WorkerLost("it fell")
            return super().do(job, returns, observer)

    some.those = [Doomed(), Doomed()]
    records = [record for record in bench(tmp_path, quick=True) if record.case.model == "fake:demo"]
    assert {each.case.batch: each.status for each in records} == {1: "ok", 2: "unsupported", 3: "ok"}
    assert any("3 workers were lost with it, the last one like this: it fell" in each.reason for each in records)
    assert len(attempts) == 3


@pytest.mark.parametrize("after", [1, 5, 9])
def test_the_same_command_goes_on_where_one_was_stopped(after, tmp_path, some):
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, Heard(after))
    left = kept(tmp_path)
    assert left
    heard = Heard()
    records = bench(tmp_path, heard)
    cases = len({label for label, _ in left})
    assert heard.remarks[0].startswith(f"{cases} of 6 cases measured before")
    assert (kept(tmp_path), set(measured(records).values())) == (measured(records), {1})
    assert left.keys() <= measured(records).keys()
    assert (len({each.run for each in records}), any(CUT_SHORT in each.facts for each in records)) == (1, False)
    assert len(bench(tmp_path, quick=True)) == 6, "another plan is another run"
    assert len({each.run for each in load_records(tmp_path).records}) == 2


@pytest.fixture
def cut_short(tmp_path, some):
    """The records of a run that was interrupted."""
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, Heard(5), quick=True)
    return load_records(tmp_path).records


def test_what_failed_or_was_measured_elsewhere_is_measured_again(tmp_path, cut_short, monkeypatch):
    loaded, collect = load_records(tmp_path), environment.collect
    Store.save(loaded.folders[cut_short[0].id], replace(cut_short[0], status="failed", reason="It broke."))
    records = bench(tmp_path, quick=True)
    assert {each.id for each in cut_short} - {each.id for each in records} == {cut_short[0].id}
    assert (kept(tmp_path), {each.status for each in records}) == (measured(records), {"ok"})

    monkeypatch.setattr(Some, "those", [Mortal(), Mortal()])
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "b", Heard(1), quick=True)
    monkeypatch.setattr(environment, "collect", lambda: replace(collect(), libraries={"numpy": "9"}))
    records = bench(tmp_path / "b", quick=True)
    assert {each.environment.libraries["numpy"] for each in records} == {"9"}
    assert (len(records), set(measured(records).values())) == (6, {1})


def test_rerun_and_another_request_or_model_file_take_nothing_over(tmp_path, cut_short, monkeypatch):
    heard = Heard()
    records = bench(tmp_path, heard, quick=True, rerun=True)
    records += bench(tmp_path, heard, quick=True, iterations=11)
    assert not {each.id for each in cut_short} & {each.id for each in records}
    assert (len(records), heard.remarks) == (12, [])


def test_a_race_goes_on_where_it_began(some):
    barrier = threading.Barrier(2)
    did = {}

    class OfGpu(Mortal):
        def do(self, job, returns, observer):
            did[self.gpu] = job.gpu
            barrier.wait(60)

    workers = [OfGpu(), OfGpu()]
    workers[0].gpu, workers[1].gpu = "GPU-b", "GPU-a"
    some.those = workers
    plan = Plan(model=("fake:demo",), where=Where(on=("all",)))
    seen = [Environment(variables={"CUDA_VISIBLE_DEVICES": gpu}) for gpu in ("GPU-a", "GPU-b")]
    states = [remote.RunState(records=(sample(environment=each),)) for each in seen]
    jobs = [remote.CasesJob(plan=plan, cases=(), state=state) for state in states]
    remote.RemoteRun(plan, some(plan), Observer(), None).do(jobs, type(None))
    assert did == {"GPU-a": "GPU-a", "GPU-b": "GPU-b"}


def test_a_dry_run_lists_what_runs_there(tmp_path, some):
    some.those = [Mortal(kind="H200"), Mortal(kind="L4")]
    words = ("fake:demo", "--devices", "all", "--dry-run")
    shown = command("bench", *words, "-b", "fake", cwd=tmp_path).stdout
    assert all(f"{kind} fake:steady fp32 batch 1 cpu" in shown for kind in ("H200", "L4"))
    assert "2 cases" in shown
    shown = command("tune", *words, "--only", "fake:steady,fp32,knob_a", cwd=tmp_path).stdout
    assert all(f"{kind} fake:steady" in shown for kind in ("H200", "L4"))
    assert sum(len(worker.did) for worker in some.those) == 4


def test_the_local_launcher_needs_no_entry_point(monkeypatch):
    monkeypatch.setattr(LAUNCHERS, "_points", {})
    monkeypatch.setattr(remote, "gpu_cards", lambda: CARDS[:1])
    assert isinstance(launcher_of(Plan(model=("x",), where=Where(on=("all",)))), remote.GpuLauncher)


def test_each_kind_of_worker_measures_the_whole_plan(tmp_path, some):
    some.those = [Mortal(kind="H200"), Mortal(kind="L4")]
    records = bench(tmp_path, quick=True)
    assert Counter(record.facts["on"] for record in records) == {"H200": 6, "L4": 6}
    assert all(len({job.kind for job in worker.did}) == 1 for worker in some.those)


def test_profiles_come_from_several_workers_and_one_that_is_lost_begins_its_case_anew(tmp_path, some):
    some.those = [Mortal(2), Mortal()]
    words = {"backend": "fake:steady", "batch": "1,2,3", "runs": 3, "devices": "all"}
    profiles = inferlens.profile("fake:demo", output=str(tmp_path), **words)
    assert sorted(made.case.batch or 0 for made in profiles) == [1, 2, 3]
    assert all(made.status == "ok" and made.layers for made in profiles)
    assert len(list(tmp_path.rglob("record.json"))) == len(list(tmp_path.rglob("profile-layer.json"))) == 3


def test_tunings_of_several_sizes_run_on_several_workers(tmp_path, some):
    words = {"only": "fake:steady,fp32,knob_a", "budget": "1s", "devices": "all"}
    inferlens.tune("fake:demo", batch="1,2", output=str(tmp_path), **words)
    for batch in (1, 2):
        assert (tmp_path / f"demo/batch-{batch}/best/best.toml").exists()
        assert (tmp_path / f"demo/batch-{batch}/tuning/tuned.json").exists()
    assert not list(tmp_path.glob("demo/fake-*")), "its rounds are records of no bench"
    jobs = [job for worker in some.those for job in worker.did if isinstance(job, remote.TuneJob)]
    assert [job.seconds for job in jobs] == [1.0, 1.0]


# GPUs of this machine

CARDS = [GpuCard("NVIDIA H200", f"GPU-{name}") for name in ("aaa1", "aaa2", "bbb3")]


def test_devices_are_named_by_number():
    assert (chosen_cards(["all"], CARDS), chosen_cards(["cuda:2", "cuda:0", "cuda:2"], CARDS)) == ([0, 1, 2], [2, 0])
    with pytest.raises(InferlensError, match=r"no device 'cuda:3'.*cuda:0, cuda:1, cuda:2"):
        chosen_cards(["cuda:3"], CARDS)
    with pytest.raises(InferlensError, match="no NVIDIA GPU"):
        chosen_cards(["all"], [])


def topology(folder, cores):
    for cpu, siblings in cores.items():
        (folder / f"cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    return folder


def test_each_card_has_whole_cores_of_its_own_near_to_it(tmp_path):
    pairs = topology(tmp_path, {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert core_shares(CARDS[:2], range(8), pairs) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    near = [GpuCard("", "b", frozenset({2, 3, 6, 7})), GpuCard("", "a", frozenset({0, 1, 4, 5}))]
    assert core_shares(near, range(8), pairs) == [[2, 3, 6, 7], [0, 1, 4, 5]]
    assert core_shares([*near, near[0]], range(8), pairs) == [[2, 6], [0, 1, 4, 5], [3, 7]]
    assert core_shares(CARDS, range(3), tmp_path / "none") == [[0], [1], [2]]
    with pytest.raises(InferlensError, match="3 devices share 2 CPU cores"):
        core_shares(CARDS, [0, 1, 4, 5], pairs)


def test_a_process_for_each_card_sees_it_alone(tmp_path, monkeypatch, without_torch):
    """Real processes; the cards are not, and the backend is the fake one."""
    monkeypatch.setattr(remote, "gpu_cards", lambda: CARDS[:2])
    monkeypatch.setattr(remote, "core_shares", lambda cards, cpus: [list(cpus)] * len(cards))
    heard, before = Heard(), threading.active_count()
    records = bench(tmp_path, heard, repeats=2, batch="1,2", option="fake.latency=4", mode="latency")
    assert (kept(tmp_path), len(records)) == (measured(records), 4)
    by_batch = {record.case.batch: record.environment.variables["CUDA_VISIBLE_DEVICES"] for record in records}
    assert set(by_batch.values()) == {"GPU-aaa1", "GPU-aaa2"}
    for record in records:
        assert record.environment.variables["CUDA_VISIBLE_DEVICES"] == by_batch[record.case.batch]
    assert "beside 1 other worker as alone" in heard.remarks[-1]
    (both,) = filter(None, (record.facts.get("beside others") for record in load_records(tmp_path).records))
    assert (both["others"], both["ratio"], threading.active_count()) == (1, pytest.approx(1, abs=0.2), before)


def test_where_words():
    assert (where_of({}), where_of({"devices": "cuda:0, cuda:1"})) == (Where(), Where(on=("cuda:0", "cuda:1")))
    on_ray = Where(launcher="ray", address="local", on=("H200:2", "L4"))
    assert where_of({"ray": "local", "on": ["H200:2", "L4"]}) == on_ray
    assert where_of({"launcher": "slurm:gpu"}) == Where(launcher="slurm", address="gpu")
    every = {"devices": "all"}
    for words in ({**every, "ray": "local"}, {"on": "H200"}, {**every, "on": "H200"}, {"devices": ""}, {"ray": ""}):
        with pytest.raises(InferlensError):
            where_of(words)
    with pytest.raises(InferlensError, match="no launcher 'slrm'"):
        launcher_of(Plan(model=("x",), where=Where(launcher="slrm")))


def node(cpus, gpus=0, kind=""):
    return {"Resources": {"CPU": cpus, **({"GPU": gpus, f"accelerator_type:{kind}": 1.0} if gpus else {})}}


def test_what_fails_on_a_node_is_an_answer_and_other_code_is_refused(tmp_path, monkeypatch, without_torch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = Plan.from_words({"model": "fake:nothing-like-it", "backend": "onnxruntime", "device": "cpu"})
    order = msgspec.json.encode(Order.of("part", remote.ListJob(plan=plan)))
    ((answer, _, _),) = serve(order, {}, "", {"OMP_NUM_THREADS": "1"}, code())
    assert b"failed" in answer
    with pytest.raises(InferlensError, match="has another Inferlens"):
        list(serve(order, {}, "", {}, "that of another version"))


def test_a_disk_that_is_full_on_a_node_loses_the_worker(tmp_path):
    class TaskError(Exception):
        cause = OSError(28, "No space left on device")

    def get(_):
        raise TaskError

    names = {"RuntimeEnvSetupError": TaskError, "RayTaskError": TaskError, "RayError": TaskError}
    ray = SimpleNamespace(exceptions=SimpleNamespace(**names), get=get)
    launcher = SimpleNamespace(ray=ray, start=lambda *_: ["a reference"])
    job = remote.ListJob(plan=Plan(model=("x",), output=str(tmp_path)))
    with pytest.raises(WorkerLost, match="No space left"):
        RayWorker(launcher, Needs("")).do(job, list, Observer())


def test_what_workers_ask_of_ray():
    assert needs_of((), [node(8), node(4)], ()) == [Needs("", cpus=5)], "no node has room for two"
    cluster = [node(32, 4, "H200"), node(16, 4, "H200"), node(8)]
    assert needs_of((), cluster, ()) == [Needs("", "H200", 1, 4)]
    assert needs_of((), cluster, ("cpu",)) == [Needs("", cpus=17)]
    both = [*cluster, node(8, 1, "L4")]
    assert needs_of(("H200:2", "L4"), both, ()) == [Needs("H200", "H200", 1, 4, 2), Needs("L4", "L4", 1, 8)]
    with pytest.raises(InferlensError, match="has H200, L4"):
        needs_of((), both, ())
    for wrong in ("A100", "H200:none", "H200:0"):
        with pytest.raises(InferlensError):
            needs_of((wrong,), both, ())


# A real Ray cluster of two nodes on this machine

LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for the address of the network


class Cluster:
    """Two nodes without a GPU, one of which can be killed."""

    def __init__(self):
        from ray.cluster_utils import Cluster as OfRay

        self.words = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": LOOPBACK}
        self.cluster = OfRay(initialize_head=True, head_node_args={**self.words, "include_dashboard": False})
        self.second = self.cluster.add_node(**self.words)
        self.address = self.cluster.address

    def working(self):
        """Whether a case is measured on the second node."""
        (raylet,) = self.second.all_processes["raylet"]
        for each in psutil.Process(raylet.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended since, or nobody has collected it (ZombieProcess)
                if START.format("worker") in each.cmdline():
                    return True
        return False

    def kill(self):
        """Kills the second node."""
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="module")
def cluster():
    made = Cluster()
    yield made
    made.cluster.shutdown()


def run(words, output, kill):
    """Runs a command, and calls ``kill`` at each end of a case until it has killed something; what it printed."""
    command = [sys.executable, "-m", "inferlens", *words, "--output", str(output)]
    said, killed = [], False
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(command, stdout=printed, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr
        for line in process.stderr:
            said.append(line)
            killed = killed or (line.startswith("[") and kill(process))
        assert killed, said
        printed.seek(0)
        return printed.read(), "".join(said)


def answers(folder):
    """What must not depend on where cases run."""
    return {
        each.case.digest: (each.status, each.agreement and each.agreement.agrees, each.model.weights_sha256)
        for each in load_records(folder).records
    }


def test_what_nobody_has_and_where_nobody_answers_is_refused(cluster, tmp_path):
    asked = ("bench", "fake:demo", "-b", "fake", "--ray")
    done = command(*asked, cluster.address, "--on", "H200", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "Error: No node of the cluster has 'H200'.")
    nobody = "No Ray cluster answers at 127.0.0.1:1: Connection refused."
    for address, said in (("127.0.0.1:1", nobody), ("ray://a:1", "is not the address of a cluster")):
        done = command(*asked, address, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InferlensError, match=r"ray is not installed.*\[ray\]"):
        inferlens.bench("fake:demo", backend="fake", ray="local", output=tmp_path)


def test_a_live_module_is_measured_with_the_right_answers(cluster, tmp_path):
    """Real: PyTorch in a process on a node, given a module that is only here."""
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
    words = {"backend": "pytorch", "device": "cpu", "iterations": 5, "warmup": 1, "output": tmp_path}
    (record,) = inferlens.bench(module, torch.randn(2, 16), ray=cluster.address, quick=True, mode="latency", **words)
    assert record.agreement.agrees
    assert (record.status, len(record.samples("latency")), load_records(tmp_path).records) == ("ok", 5, [record])


PLAN = ("fake:demo", "-b", "fake:steady", "--batch", "1,2,3,4", "--option", "fake.latency=4,5,6")
FEW = ("--quick", "--mode", "latency", "--device", "cpu", "--iterations", "10", "--warmup", "1", "--format", "json")


def test_a_driver_and_a_node_that_are_killed_take_their_running_cases_along_and_no_more(cluster, tmp_path):
    """Each case is there once, with its own times, and with the answers that it has where nothing was killed."""
    words, cases = ("bench", *PLAN, *FEW), 12
    on_ray, output = (*words, "--ray", cluster.address), tmp_path / "on-ray"

    def kill_driver(process):
        process.kill()
        return True

    def kill_node(_):
        if there := cluster.working():
            cluster.kill()
        return there

    run(on_ray, output, kill_driver)
    assert 0 < len(load_records(output).records) < cases
    printed, said = run(on_ray, output, kill_node)
    assert "measured before" in said
    assert "A worker was lost" in said
    assert len(json.loads(printed)["rows"]) == cases
    stored = load_records(output).records
    assert len(stored) == len(answers(output)) == cases  # each once
    assert {each.status for each in stored} == {"ok"}
    expected = [(each.case.options.get("latency", 4.0) + (each.case.batch or 1) - 1) / 1e3 for each in stored]
    assert [each.samples("latency")[0] for each in stored] == pytest.approx(expected)
    command(*words, "--output", "alone", cwd=tmp_path)
    assert answers(output) == answers(tmp_path / "alone")
