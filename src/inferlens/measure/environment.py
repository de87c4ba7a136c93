"""The machine, the system and the libraries of a record. Unknown fields stay empty."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import inferlens
from inferlens.backends import importable_backends
from inferlens.backends.availability import open_nvml
from inferlens.errors import InferlensError, installing, one_line
from inferlens.measure.monitor import text_of, usable_cpus, visible
from inferlens.record.record import Environment, Gpu

LIBRARIES = (  # in addition to the libraries of backends
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
    """Return the environment of this process, without importing any framework."""
    gpus, driver, cuda_driver = _gpus()
    names = re.findall(r"^model name\s*: (.*)$", text_of(Path("/proc/cpuinfo")), re.M)
    libraries = {}
    for name in itertools.chain(LIBRARIES, *(backend.distributions for backend in importable_backends())):
        with suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    variables = (
        name for name in os.environ if name in VARIABLES or (name.startswith(FAMILIES) and not PLACES.search(name))
    )
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
        variables={name: os.environ[name] for name in sorted(variables)},
        git_revision=git_revision(),
    )


def _gpus() -> tuple[tuple[Gpu, ...], str, str]:
    """Return the GPUs that CUDA may use, and the versions of driver and CUDA, from NVML; empty without a driver."""
    with suppress(Exception), open_nvml() as nvml:  # a missing library and a missing or broken driver mean the same
        gpus = tuple(_gpu(nvml, handle) for handle in visible(nvml))
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return gpus, str(nvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}"
    return (), "", ""


def _gpu(nvml: Any, handle: Any) -> Gpu:
    limit = None
    with suppress(nvml.NVMLError):  # not every GPU has one
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
    """Return ``docker``, ``podman``, ``kubernetes`` ..., or an empty text on a plain machine or if unknown."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return os.environ.get("container", "")  # noqa: SIM112 - systemd-nspawn, LXC and podman spell it so


def git_revision(folder: str = "") -> str:
    """Return the git revision of a folder, with ``+`` if it has uncommitted changes; empty outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=folder or None, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


# Another interpreter, of another virtual environment, is checked before a case runs in it. Both sides must have the
# same files of Inferlens, so that the timing code and the data between the two are the same.

EXPECTED = "the Python of a virtual environment, such as old/bin/python"
LEAST = (3, 10)
TIMEOUT = 60.0
MARK = "inferlens says "  # before the answer, for others may print, too
UNSEEN = ("cli", "views")  # rooms that a measurement does not use
# Every version of Python can run this, so that one that is too old can report its version.
ASK = f"""
import sys
sys.path = [*filter(None, sys.path)]
answer = {{"python": sys.version_info[:3]}}
try:
    import inferlens
    answer["version"] = inferlens.__version__
    from inferlens.measure.environment import code
    from inferlens.execution import worker
    answer["code"] = code()
except Exception as error:
    answer["error"] = str(error)
    answer["missing"] = getattr(error, "name", None)
import json
print("{MARK}" + json.dumps(answer))
"""


@cache
def code() -> str:
    """Return a hash of the code that measures, which differs between checkouts of the same version."""
    digest, root = hashlib.sha256(), Path(inferlens.__file__).parent
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if place.parts[0] not in UNSEEN:
            digest.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def check(interpreter: str, variables: Mapping[str, str]) -> None:
    """Refuse an interpreter that is none, is too old, or has no Inferlens or another one, and say what helps."""
    path = Path(interpreter)
    if not path.is_file():
        hint = shutil.which(os.path.expanduser(interpreter)) or ""
        raise InferlensError(f"There is no interpreter {interpreter}.", expected=EXPECTED, hint=hint)
    answer = _run_check(path, interpreter, variables)
    version = ".".join(map(str, answer["python"]))
    if tuple(answer["python"]) < LEAST:
        least = ".".join(map(str, LEAST))
        raise InferlensError(f"{interpreter} is Python {version}.", expected=f"Python {least} or newer")
    hint, lacking = in_environment(interpreter, installing("torch")), answer.get("missing")
    if lacking and not lacking.startswith("inferlens"):
        raise InferlensError(f"Inferlens lacks {lacking} in the environment of {interpreter}.", hint=hint)
    if answer.get("code") != code():
        has = f"another Inferlens {one_line(str(answer['version']))}" if "version" in answer else "no Inferlens"
        expected = f"Inferlens {inferlens.__version__} with the same code as here"
        raise InferlensError(f"{interpreter} has {has}.", expected=expected, hint=hint)


def _run_check(path: Path, interpreter: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the interpreter's answer about itself. Raises InferlensError if there is none in time."""
    try:
        done = subprocess.run(
            [os.path.abspath(path), "-c", ASK],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        answer = json.loads(done.stdout.decode(errors="replace").rpartition(MARK)[2])
        return {**answer, "python": [*map(int, answer["python"])]}
    except (subprocess.SubprocessError, OSError, ValueError, TypeError, LookupError):
        raise InferlensError(f"{interpreter} is not a Python interpreter.", expected=EXPECTED) from None


def in_environment(interpreter: str, hint: str) -> str:
    """Return an installation hint for the environment of an interpreter."""
    return f"{interpreter} -m {hint}" if interpreter and hint.startswith("pip install") else hint
