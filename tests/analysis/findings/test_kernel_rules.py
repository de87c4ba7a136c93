"""Each rule that looks at kernels: a profile of which it speaks, with what numbers, and those of which it must not."""

from __future__ import annotations

import pytest

from inferlens.analysis.findings.families import of_kernel
from inferlens.record.kernel_profile import Kernel
from tests.analysis.findings.crafted import (
    MS,
    ON_GPU,
    kernel,
    launched,
    layer,
    layered,
    of_rule,
    tensor,
    the,
    untouched,
)
from tests.views.samples import case

TENSOR = "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off"
PLAIN = "ampere_sgemm_32x128_tn"


def test_a_run_that_waits_for_the_host() -> None:
    of = launched(kernel(TENSOR, 4.0, 400, tensor_cores=True), kernel("relu", 2.0, 80), launches=480)
    found = the("host-bound", of, record=untouched(of, 5.0))
    assert found.sentence == (
        "Host-bound: the GPU works 1.76 ms of a call's 5.00 ms (35.2 %); 480 launches, 480 kernels of "
        "3.67 µs on average."
    )
    assert found.seconds == pytest.approx(3.24 * MS)
    assert found.won == pytest.approx(0.648)
    assert "CUDA graph" in found.advice
    assert not of_rule("host-bound", of, record=untouched(of, 2.0)), "busy"
    assert not of_rule("host-bound", of), "profiled calls wait for the profiler"
    few = launched(kernel(TENSOR, 400.0), launches=1)
    assert "so few launches" in the("host-bound", few, record=untouched(few, 5.0)).advice


def test_without_kernels_the_time_of_enqueueing_tells() -> None:
    of = layered(layer("conv", 1.0), of=ON_GPU, timed="GPU")
    assert "enqueueing takes 950 µs of a call's 1.00 ms; profiled" in (
        the("host-bound", of, record=untouched(of, 1.0, enqueue=0.95, gpu=0.9)).sentence
    )
    assert not of_rule("host-bound", of, record=untouched(of, 1.0, enqueue=0.2, gpu=0.9))


def test_many_tiny_kernels() -> None:
    of = launched(kernel("add", 2.0, 200), kernel(TENSOR, 50.0, 10))
    found = the("tiny-kernels", of)
    assert found.sentence == (
        "200 of 210 kernel calls last less than 5.00 µs each (2.00 µs on average) and take 44.4 % of the GPU's time "
        "(400 µs)."
    )
    assert not of_rule("tiny-kernels", launched(kernel("add", 2.0, 10), kernel(TENSOR, 5.0, 1))), "few"
    assert not of_rule("tiny-kernels", launched(kernel("add", 2.0, 50), kernel(TENSOR, 5000.0))), "little time"


def test_fewer_blocks_than_multiprocessors() -> None:
    small = kernel(TENSOR, 300.0, grid=(33, 1, 1), modules=("layer4.conv2",))
    found = the("few-blocks", launched(small, kernel("add", 700.0)))
    assert found.sentence == (
        "1 kernel call with fewer blocks than the GPU's 132 multiprocessors takes 30 % of the GPU's time (300 µs), "
        "and on average 75 % of the GPU is empty meanwhile; most in layer4.conv2."
    )
    assert found.seconds == pytest.approx(0.225 * MS)
    assert not of_rule("few-blocks", launched(kernel(TENSOR, 300.0, grid=(132, 1, 1))))
    assert not of_rule("few-blocks", launched(kernel(TENSOR, 300.0, grid=()))), "not told"
    assert not of_rule("few-blocks", launched(small, kernel("add", 7000.0))), "little time"


def test_low_occupancy() -> None:
    hungry = kernel("my_scan_kernel", 200.0, occupancy=0.125, registers=255, shared_memory=48 * 2**10)
    found = the("low-occupancy", launched(hungry, kernel("add", 800.0)))
    assert "1 kernel call with an occupancy below 25 % takes 20 % of the GPU's time" in found.sentence
    assert "my_scan_kernel with 12.5 % (255 registers a thread and 48.0 KiB of shared memory a block)" in found.sentence
    assert not of_rule("low-occupancy", launched(kernel(TENSOR, 200.0, occupancy=0.125))), "meant to be so"
    assert not of_rule("low-occupancy", launched(kernel("scan", 200.0, occupancy=None)))
    assert not of_rule("low-occupancy", launched(kernel("scan", 200.0, occupancy=0.1, grid=(4,)))), "few blocks"


def test_convolutions_and_products_without_tensor_cores() -> None:
    slow = kernel(PLAIN, 100.0, 5, tensor_cores=False, layer="fc1", modules=("fc1",))
    fast = kernel(TENSOR, 100.0, 5, tensor_cores=True)
    found = the("tensor-cores-unused", launched(slow, fast))
    assert found.sentence == (
        "5 kernel calls of convolutions and matrix products use no tensor cores and take 50 % of the GPU's time "
        "(500 µs); most in fc1."
    )
    fc1 = layer("fc1", 0.5, "Linear", inputs=(tensor(8, 510),), outputs=(tensor(8, 512),))
    both = the("tensor-cores-unused", layered(fc1, of=ON_GPU), launched(slow, fast))
    assert both.sentence.endswith("Channels of fc1 (510 to 512) are no multiples of 8.")
    assert not of_rule("tensor-cores-unused", launched(fast))
    for name in ("gemv2T_kernel_val", "conv_depthwise2d_forward_kernel", "splitKreduce_kernel", "softmax"):
        assert not of_rule("tensor-cores-unused", launched(kernel(name, 100.0, tensor_cores=False), fast)), name
    assert not of_rule("tensor-cores-unused", launched(kernel(PLAIN, 100.0, tensor_cores=None), fast)), "not told"


def test_kernels_in_full_fp32() -> None:
    slow = kernel(PLAIN, 100.0, 5, tensor_cores=False)
    assert (
        "50 % of the GPU's time"
        in the("tf32-off", launched(slow, kernel("add", 500.0), of=case(device="cuda"))).sentence
    )
    assert not of_rule("tf32-off", launched(kernel(TENSOR, 100.0, tensor_cores=True), of=case(device="cuda")))


def test_kernels_that_reformat_and_copy() -> None:
    to_nhwc = kernel("void cudnn::ops::nchwToNhwcKernel<__half, __half>", 30.0, 4)
    copy = kernel("Memcpy HtoD (Pageable -> Device)", 100.0, kind="copy", grid=())
    of = launched(to_nhwc, copy, kernel(TENSOR, 780.0))
    assert "4 kernel calls that only change memory order take 12 % of the GPU's time" in the("reformats", of).sentence
    assert the("reformats", of).subject == "nchwToNhwcKernel<…>", "as in the table of kernels"
    found = the("host-copies", of, record=untouched(of, 1.0))
    assert found.sentence == (
        "1 copy between host and GPU inside of a run takes 10 % of it (100 µs): Memcpy HtoD (Pageable -> Device)."
    )
    inside = kernel("Memcpy DtoD (Device -> Device)", 100.0, kind="copy", grid=())
    assert not of_rule("host-copies", launched(inside, kernel(TENSOR, 100.0)))


def test_kernels_of_which_the_times_cannot_be_right_say_nothing() -> None:
    good = kernel("add", 2.0, 200)
    for times in ((1e-6,) * 3, (-1e-6,) * 40, (float("nan"),) * 40, ()):
        assert not of_rule("tiny-kernels", launched(good, Kernel(name="add", calls=200, times=times), busy=1e-3)), times


def test_kernels_of_inductor_are_no_products_for_their_names() -> None:
    """It names a kernel after all that was fused into it: what follows a convolution is of that name, too."""
    assert of_kernel("triton_poi_fused__native_batch_norm_legit_no_training_convolution_relu_9") == "normalisation"
    assert of_kernel("triton_poi_fused_convolution_0") == "elementwise"
    assert of_kernel("triton_per_fused_addmm_mean_21") == ""
    assert of_kernel("triton_red_fused_add_cat_convolution_permute_view_0") == ""
    assert of_kernel("triton_tem_fused_addmm_3") == "matrix product"
    assert of_kernel("triton_tem_fused_convolution_4") == "convolution"
    assert of_kernel("cudnn_generated_resampleFwd_cutlass_sm80_knob_34_16x32x1_8x32x1_1_kernel0_0") == ""


def test_what_is_compiled_already_is_not_told_to_compile() -> None:
    eager = launched(kernel("add", 2.0, 200, operator="aten::add"), kernel(TENSOR, 50.0, 10, operator="aten::mm"))
    engine = launched(kernel("__myl_Add", 2.0, 200), kernel(TENSOR, 50.0, 10, grid=(33, 1, 1)))
    assert "torch_compile, tensorrt" in the("tiny-kernels", eager).advice
    assert "torch_compile" not in the("tiny-kernels", engine).advice
    assert "tensorrt" not in the("few-blocks", engine).advice
