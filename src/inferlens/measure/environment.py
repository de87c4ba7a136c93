"""The machine, the system and the libraries a record was measured with. What cannot be learned stays empty."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import inferlens
from inferlens.backends import importable
from inferlens.record.record import Environment, Gpu

LIBRARIES = ("numpy", "torchvision", "timm", "transformers")  # beside those that backends name
VARIABLES = (
    "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_BLAS_PREFER_HIPBLASLT", "TRITON_PTXAS_PATH",
)  # fmt: skip
FAMILIES = (  # of variables by which these libraries choose threads, kernels and what they compile
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "CUBLAS", "CUDNN_", "TORCHINDUCTOR_",
    "TORCHDYNAMO_", "TRITON_",
)  # fmt: skip
# Where a library keeps or finds things, which makes nothing faster; and whom it asks, which may have a password in it.
PLACES = re.compile(r"_(DIR|HOME|ROOT|PATH|FILE|DBG|LOG)$|REDIS|REMOTE|URL|HOST|TOKEN|KEY|PASS|USER")


def collect() -> Environment:
    """Everything about where this process runs, without importing any framework."""
    gpus, driver, cuda_driver = _gpus()
    return Environment(
        cpu=_cpu_name(),
        cpu_cores=psutil.cpu_count(logical=False),
        cpu_threads=usable_threads(),
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory=psutil.virtual_memory().total,
        gpus=gpus,
        driver=driver,
        cuda_driver=cuda_driver,
        system=platform.platform(),
        container=_container(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        inferlens=inferlens.__version__,
        libraries=_libraries(),
        variables=_variables(),
        git_revision=_git_revision(),
    )


def _cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_threads() -> int | None:
    """Logical processors this process may use, which containers and ``taskset`` make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count()


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """GPUs, driver version and the CUDA version of the driver, from NVML; nothing where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing library and a missing or broken driver mean the same here
        return (), "", ""
    try:
        gpus = tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return gpus, str(pynvml.nvmlSystemGetDriverVersion()), f"{version // 1000}.{version % 1000 // 10}"
    except pynvml.NVMLError:
        return (), "", ""
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=str(nvml.nvmlDeviceGetName(handle)),
        memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=f"{major}.{minor}",
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        power_limit=_power_limit(nvml, handle),
    )


def _power_limit(nvml: Any, handle: Any) -> float | None:
    """Watts; of all limits that are set, by whomever, the one that holds."""
    try:
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    except nvml.NVMLError:  # not every GPU has one, and that is no reason to know nothing of it
        return None


def _container() -> str:
    """``docker``, ``podman``, ``kubernetes`` ..., or empty on a plain machine or where it cannot be told."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return os.environ.get("container", "")  # noqa: SIM112 - systemd-nspawn, LXC and podman spell it so


def _variables() -> dict[str, str]:
    told = (name for name in os.environ if name in VARIABLES or (name.startswith(FAMILIES) and not PLACES.search(name)))
    return {name: os.environ[name] for name in sorted(told)}


def _libraries() -> dict[str, str]:
    found = {}
    for name in itertools.chain(LIBRARIES, *(backend.distributions for backend in importable())):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _git_revision() -> str:
    """Revision of the working directory, with ``+`` if it has uncommitted changes; empty outside a checkout."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
