"""From which number on a rule speaks; why, is in ``docs/findings.md`` and ``docs/warnings.md``.

Shares are of a run, of the GPU's busy time, or of a step, whichever the rule is about. When the host is the bottleneck
is defined in :mod:`inferlens.stats.host_bound`, for traces too.
"""

from __future__ import annotations

# Layers
LARGE = 0.1  # of a run, for a layer to be looked at
FAR = 5.0  # times its floor
MOST_FAR = 3  # layers that are named
NEAR = 2.0  # times its floor: about as close as bytes allow
LARGER_THAN_CACHES = 64 * 2**20
FIRST_CONVOLUTION = 0.02
FEW_CHANNELS = 4
SLOWER = 2.0  # than the other convolutions
LAYOUT = 0.02
CHAINS = 0.05
BATCH_NORMS = 0.02
IN_FP32 = 0.05
OUTSIDE = 0.05
STAYED = 0.05  # of the call, in layers with multiply-adds that were not quantized
CONVERSIONS = 0.05
LITTLE_WON = 1.05  # of latencies, fp32 over quantized: in less is no gain

# Kernels
NO_TENSOR_CORES = 0.02
TF32 = 0.2
FEW_LAUNCHES = 20
TINY = 5e-6  # seconds of a kernel
TINY_SHARE = 0.2
FEW_BLOCKS = 0.2

# Trust
COST, FASTER = 1.3, 0.77  # profiled calls against unprofiled ones
GPU_COST = 1.1
RUN_SPREAD = 1.5  # 95th percentile against the median

# Records
COPY_BOUND = 0.5  # of the GPU time that copies take
UNEVEN = 0.1  # half-width of the median of the throughput windows, as a share of it
SLOW_RATE = 0.8  # of the calls per second that one call after another gives
LESS_ACCURATE = 0.01  # below fp32, if the interval of the drop says that there is one
AT_CHANCE = 0.2  # of top-1 in fp32: what is surely below, and not surely above the share of the commonest label
PARTLY = 0.5  # of the multiply-adds in int8
GPU_FLOOR = 0.05  # of the GPU time that a kernel that does nothing has as well

# Everywhere
WORTH = 0.02  # of a call or a step: what saves no more is never the first finding, and none of a trace

MOSTLY_KNOWN = 0.9  # of a call, in layers with a floor
NEAR_CEILING = 0.25  # of a call, by which it is above its floors: what libraries seldom come below
FASTER_WAY = 1.02  # of latencies, for a way to be taken instead

# Traces
LONG = 1e-3  # seconds: what only launches something takes microseconds
MOSTLY = 0.5  # of the time, in convolutions, products and attention
FILLED = 0.5  # of the time in which a GPU works, weighted by its busy multiprocessors
