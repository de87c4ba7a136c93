"""Plans on a real Ray cluster of two nodes on this machine, of which one is killed; and what is refused."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import inferlens
from inferlens import InferlensError
from inferlens.execution.protocol import Observer
from inferlens.record.record import Record
from inferlens.record.store import load_records
from tests.commands import inferlens as command

LOOPBACK = "127.0.0.2"  # Ray takes 127.0.0.1 for the address of the network


class Cluster:
    """Two nodes without a GPU, one of which can be killed; the first says that it has an accelerator."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as OfRay

        words: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20, "node_ip_address": LOOPBACK}
        self.cluster = OfRay(initialize_head=True, head_node_args={**words, "include_dashboard": False})
        self.second = self.cluster.add_node(**words)
        self.address = self.cluster.address

    def working(self) -> bool:
        """Whether a case is measured on the second node."""
        (raylet,) = self.second.all_processes["raylet"]
        for each in psutil.Process(raylet.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended since, or nobody has collected it (ZombieProcess)
                if "inferlens.execution.worker" in each.cmdline():
                    return True
        return False

    def kill(self) -> None:
        """Kills the second node."""
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.cluster.shutdown()


class Killer(Observer):
    """Kills a node after so many records, once there is work on it."""

    def __init__(self, cluster: Cluster, after: int) -> None:
        self.cluster, self.left, self.killed = cluster, after, False
        self.remarks: list[str] = []

    def done(self, record: Record, folder: Path) -> None:
        self.left -= 1
        if self.left <= 0 and not self.killed and self.cluster.working():
            self.killed = True
            self.cluster.kill()

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def test_what_nobody_has_and_where_nobody_answers_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    asked = ("bench", "fake:demo", "-b", "fake", "--ray")
    done = command(*asked, cluster.address, "--on", "H200", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "Error: No node of the cluster has 'H200'.")
    nobody = "No Ray cluster answers at 127.0.0.1:1: Connection refused."
    for address, said in (("127.0.0.1:1", nobody), ("ray://a:1", "Ray client")):
        done = command(*asked, address, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InferlensError, match=r"ray is not installed.*\[ray\]"):
        inferlens.bench("fake:demo", backend="fake", ray="local", output=tmp_path)


def test_a_live_module_is_measured_with_the_right_answers(cluster: Cluster, tmp_path: Path) -> None:
    """Real: PyTorch in a process on a node, given a module that is only here."""
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).eval()
    words: dict[str, Any] = {"backend": "pytorch", "device": "cpu", "iterations": 5, "warmup": 1, "output": tmp_path}
    (record,) = inferlens.bench(module, torch.randn(2, 16), ray=cluster.address, quick=True, mode="latency", **words)
    assert record.agreement
    assert record.agreement.agrees
    assert (record.status, len(record.samples("latency"))) == ("ok", 5)
    assert load_records(tmp_path).records == [record]


def test_a_node_that_is_killed_takes_its_running_cases_along_and_no_more(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killer = Killer(cluster, after=3)
    words: dict[str, Any] = {
        "batch": "1,2,3",
        "option": "fake.latency=4,5,6,7,8,9,10,11",
        "iterations": 10,
        "warmup": 1,
    }
    words |= {"backend": "fake:steady", "quick": True, "mode": "latency"}  # too many to be over before the end is seen
    records = inferlens.bench("fake:demo", ray=cluster.address, output=tmp_path, observer=killer, **words)
    assert killer.killed
    assert capsys.readouterr().out == ""  # where a command prints its tables or JSON
    assert any("A worker was lost" in text and len(text) < 200 for text in killer.remarks), killer.remarks
    stored = load_records(tmp_path).records
    assert sorted(each.id for each in stored) == sorted(each.id for each in records)
    assert set(Counter(each.case.digest for each in stored).values()) == {1}
    assert len(stored) == 24
    for each in stored:
        expected = (each.case.options["latency"] + (each.case.batch or 1) - 1) / 1e3  # type: ignore[operator]
        assert (each.status, each.samples("latency")[0]) == ("ok", pytest.approx(expected))
