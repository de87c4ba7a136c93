"""Whether a plan on a Ray cluster survives what it may: the long version of ``tests/execution/test_on_ray.py``.

    python -m benchmarks.cluster [--real resnet18,mobilenet_v2,squeezenet1_1]

A cluster of two nodes on this machine measures 40 cases of the fake backend and real ones on two backends. The driver
is killed in the middle and run again; then a node is killed. Every case has to be in the store once, and its answers
have to be those of a run without Ray. What the driver itself takes of a core is told, too.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from inferlens.record.record import Record
from inferlens.record.store import load_records

FAKE = ("fake:demo", "-b", "fake:steady,fake:fast", "--batch", "1,2,4,8", "--option", "fake.latency=1,2,3,4,5")
QUICK = ("--quick", "--mode", "latency", "--device", "cpu", "--iterations", "20", "--warmup", "2")
BACKENDS = "pytorch,onnxruntime:cpu"
LOOPBACK = "127.0.0.2"


def started(words: Sequence[str], output: Path) -> subprocess.Popen[str]:
    """A run of the command."""
    command = [sys.executable, "-m", "inferlens", "bench", *words, *QUICK, "--output", str(output)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def followed(run: subprocess.Popen[str], ends: int = 0, then: Any = None) -> tuple[float, float]:
    """Reads what a run says, does ``then`` after so many ends of cases.

    Returns:
        CPU seconds of its own process from the first end to the last, and those that passed.
    """
    process, seen = psutil.Process(run.pid), []
    assert run.stderr
    for line in run.stderr:
        if re.match(r"\[\d+/\d+\]", line):
            times = process.cpu_times()
            seen.append((times.user + times.system, time.monotonic()))
            ends -= 1
            if ends == 0:
                then()
        if "lost" in line or "Going on" in line or "Error" in line:
            print(f"  {line.strip()[:160]}", flush=True)
    run.wait()
    used, passed = (last - first for first, last in zip(seen[0], seen[-1], strict=True))
    return used, passed


def answers(records: Sequence[Record]) -> dict[str, Any]:
    """What must not depend on where cases run."""
    return {
        each.case.digest: (
            each.status, each.agreement and each.agreement.agrees, each.model.weights_sha256,
            len(each.samples("latency")), each.samples("latency")[0] if each.case.backend == "fake" else None,
        )
        for each in records
    }  # fmt: skip


def main(words: Sequence[str]) -> None:
    """Prints what became of each plan."""
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster")
    parser.add_argument("--real", default="resnet18,mobilenet_v2,squeezenet1_1")
    asked = parser.parse_args(words)
    real = (*asked.real.split(","), "-b", BACKENDS)
    of_node: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20, "node_ip_address": LOOPBACK}
    with tempfile.TemporaryDirectory() as scratch:
        for name, plan, kill in (("fake", FAKE, 10), ("real", real, 2)):
            cluster = Cluster(initialize_head=True, head_node_args={**of_node, "include_dashboard": False})
            second = cluster.add_node(**of_node)
            output, alone = Path(scratch) / name, Path(scratch) / f"{name}-alone"
            print(f"{name}: the driver is killed after {kill} cases", flush=True)
            run = started((*plan, "--ray", cluster.address), output)
            followed(run, kill, lambda run=run: run.send_signal(signal.SIGKILL))
            left = len(load_records(output).records)
            print(f"{name}: {left} records are left; run again, a node is killed", flush=True)
            run = started((*plan, "--ray", cluster.address), output)
            node = [second]
            used, seconds = followed(
                run,
                left + kill // 2,
                lambda cluster=cluster, node=node: cluster.remove_node(node[0], allow_graceful=False),
            )
            cluster.shutdown()
            followed(started(plan, alone))
            found, expected = load_records(output).records, load_records(alone).records
            twice = max(Counter(each.case.digest for each in found).values()) > 1
            same = "the same answers" if answers(found) == answers(expected) else "OTHER ANSWERS"
            once = "SOME TWICE" if twice else "each once"
            print(
                f"{name}: {len(found)} records of {len(expected)} cases; {once}; {same} as without Ray; "
                f"the driver took {used:.2f} s of CPU in {seconds:.0f} s of cases",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
