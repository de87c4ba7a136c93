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
from inferlens.backends import importable_backends
from inferlens.backends.availability import open_nvml
from inferlens.measure.monitor.cpu import text_of, usable_cpus
from inferlens.measure.monitor.gpu import visible
from inferlens.record.record import Environment, Gpu

LIBRARIES = (  # beside those that backends name
    "numpy", "torchvision", "timm", "transformers", "torchao", "nncf", "mkl", "intel-openmp", "nvidia-cublas",
    "nvidia-cublas-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
)  # fmt: skip
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
    names = re.findall(r"^model name\s*: (.*)$", text_of(Path("/proc/cpuinfo")), re.M)
    libraries = {}
    for name in itertools.chain(LIBRARIES, *(backend.distributions for backend in importable_backends())):
        with suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    told = (name for name in os.environ if name in VARIABLES or (name.startswith(FAMILIES) and not PLACES.search(name)))
    return Environment(
        cpu=names[0].strip() if names else platform.processor() or platform.machine(),
        cpu_cores=psutil.cpu_count(logical=False),
        cpu_threads=len(usable_cpus()),
        governor=text_of(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        memory=psutil.virtual_memory().total,
        gpus=gpus,
        driver=driver,
        cuda_driver=cuda_driver,
        system=platform.platform(),
        container=_container(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        inferlens=inferlens.__version__,
        libraries=libraries,
        variables={name: os.environ[name] for name in sorted(told)},
        git_revision=git_revision(),
    )


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """The GPUs that CUDA may use, the driver's version and that of its CUDA, from NVML; nothing without a driver."""
    with suppress(Exception), open_nvml() as nvml:  # a missing library and a missing or broken driver mean the same
        gpus = tuple(_gpu(nvml, handle) for handle in visible(nvml))
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return gpus, str(nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}"
    return (), "", ""


def _gpu(nvml: Any, handle: Any) -> Gpu:
    limit = None
    with suppress(nvml.NVMLError):  # not every GPU has one, and that is no reason to know nothing of it
        limit = float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=str(nvml.nvmlDeviceGetName(handle)),
        memory=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=f"{major}.{minor}",
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        power_limit=limit,
    )


def _container() -> str:
    """``docker``, ``podman``, ``kubernetes`` ..., or empty on a plain machine or where it cannot be told."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return os.environ.get("container", "")  # noqa: SIM112 - systemd-nspawn, LXC and podman spell it so


def git_revision(folder: str = "") -> str:
    """Revision of a folder, the working directory, with ``+`` if it has uncommitted changes; empty outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder or None, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
