import sys
from types import SimpleNamespace
from unittest import mock

import pytest

from inferlens.measure.environment import collect
from inferlens.record.record import Gpu
from tests.measure.fake_nvml import NOT_SUPPORTED, Device, FakeNvml, NVMLError


@pytest.mark.parametrize(("milliwatts", "watts"), [(699_500, 699.5), (None, None)])
def test_a_gpu_and_its_power_limit_if_it_has_one(milliwatts, watts, monkeypatch):
    nvml = FakeNvml(Device("GPU-1"))
    vars(nvml).update(
        nvmlSystemGetDriverVersion=lambda: "570.1", nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0), nvmlDeviceGetEnforcedPowerLimit=lambda _: milliwatts,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=2**30),
    )  # fmt: skip
    if milliwatts is None:
        nvml.nvmlDeviceGetEnforcedPowerLimit = mock.Mock(side_effect=NVMLError(NOT_SUPPORTED))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    environment = collect()
    gpu = Gpu(name="NVIDIA Fake", memory=2**30, compute_capability="9.0", uuid="GPU-1", power_limit=watts)
    assert (environment.gpus, environment.driver, environment.cuda_driver) == ((gpu,), "570.1", "12.8")


KEPT = ("OMP_PROC_BIND", "ONEDNN_DEFAULT_FPMATH_MODE", "TORCHINDUCTOR_FREEZING", "TRITON_PTXAS_PATH", "LD_PRELOAD")
LEFT_OUT = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_REDIS_URL", "CUBLAS_LOGDEST_DBG", "TRITON_HOME", "AN_API_KEY")


def test_variables_that_change_speed_are_kept_and_others_are_not(monkeypatch):
    for name in (*KEPT, *LEFT_OUT):
        monkeypatch.setenv(name, "")
    assert {*KEPT, *LEFT_OUT} & collect().variables.keys() == {*KEPT}
