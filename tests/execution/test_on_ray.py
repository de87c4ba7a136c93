"""Plans on a real Ray cluster of two nodes on this machine; drivers and nodes are killed; and what is refused."""

import json
import subprocess
import sys
import tempfile
from contextlib import suppress

import psutil
import pytest
import torch

import inferlens
from inferlens import InferlensError
from inferlens.execution.child import START
from inferlens.record.store import load_records
from tests.commands import inferlens as command

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
QUICK = ("--quick", "--mode", "latency", "--device", "cpu", "--iterations", "10", "--warmup", "1", "--format", "json")


def test_a_driver_and_a_node_that_are_killed_take_their_running_cases_along_and_no_more(cluster, tmp_path):
    """Each case is there once, with its own times, and with the answers that it has where nothing was killed."""
    words, cases = ("bench", *PLAN, *QUICK), 12
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
