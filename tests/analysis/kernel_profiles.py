"""Profiles of kernels: from real traces of an H200, and what a hostile file may hold."""

from typing import Any

from msgspec.structs import replace

from inferlens.record.profile import Kernel, Kernels, Profile
from tests.analysis.profiles import NASTY, profile, times
from tests.backends.profiling import samples as kernel_samples
from tests.views.samples import case

OF = {
    kernel_samples.EAGER: "pytorch", kernel_samples.GRAPH: "torch_compile:reduce-overhead",
    kernel_samples.ENGINE: "torch_tensorrt:dynamo",
}  # fmt: skip


def of_kernels(label: str, kernels: Kernels | None, **fields: Any) -> Profile:
    """A profile at the level of kernels."""
    of = case(label, device="cuda", precision="fp16")
    its = {"id": f"kernels {of.digest}", "created": "2026-05-04T10:00:02Z", "level": "kernel", "kernels": kernels}
    runs = len(kernels.whole) if kernels else 0
    return replace(profile(of, [], **{**its, "runs": runs, **fields}), layers=None)


def traced(name: str = kernel_samples.EAGER) -> Profile:
    """The profile of a real trace."""
    return of_kernels(OF[name], kernel_samples.kernels(name))


def made(*kernels: Kernel, busy: float | None = None, idle: float = 1e-3, **fields: Any) -> Kernels:
    """Kernels made by hand, one after the other; ``busy`` seconds where some of them ran side by side."""
    runs = len(kernels[0].times)
    sums = [sum(kernel.times[run] for kernel in kernels) for run in range(runs)]
    taken = tuple(sums if busy is None else [busy] * runs)
    defaults: dict[str, Any] = {"launches": len(kernels), "clock": "CUPTI"}
    return Kernels(kernels=kernels, whole=tuple(item + idle for item in taken), busy=taken, **{**defaults, **fields})


def kernel(name: str, mean: float, *modules: str, **fields: Any) -> Kernel:
    """A kernel that takes ``mean`` seconds."""
    return Kernel(name=name, modules=modules, times=times(mean, 40, seed=len(name)), **fields)


def nasty() -> Profile:
    """Names that break out of whatever they stand in."""
    odd = {"layer": NASTY, "operator": NASTY, "grid": (1, 2, 3), "block": (1,), "shared_memory": 10**18}
    return of_kernels(
        "pytorch", made(kernel(NASTY, 1e-4, NASTY, **odd), kernel("", 1e-4, "a..b"), kernel("<" * 999, 1e-5))
    )
