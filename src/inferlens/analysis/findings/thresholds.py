"""From which number on a rule speaks; why, is in ``docs/findings.md`` and ``docs/warnings.md``.

Shares are of a run, of the GPU's busy time, or of a step, whichever the rule is about. When the host is the bottleneck
is defined in :mod:`inferlens.stats.host_bound`, for traces too.
"""

from __future__ import annotations

# Profiles: layers against their floors
LARGE = 0.1  # of a run, for a layer to be looked at
FAR = 5.0  # times its floor
MOST_FAR = 3  # layers that are told of
DOMINATING = 0.5
LEAST_LAYERS = 5
OUT_OF_PROPORTION = 3.0  # times its share of the FLOPs
LARGE_FOR_ITS_WORK = 0.2
NEAR, BELOW = 2.0, 0.9  # times its floor: as close as bytes allow, and no closer than they do
LARGER_THAN_CACHES = 64 * 2**20

# Profiles: convolutions, layout, fusion, precision
FIRST_CONVOLUTION = 0.02
FIRST_CONVOLUTION_WITHOUT_RATE = 0.1
FEW_CHANNELS = 4
SLOWER = 2.0  # than the other convolutions
LAYOUT = 0.02
AT_THE_ENDS = 2  # layers that change memory order
CHAINS = 0.05
BATCH_NORMS = 0.02
NO_TENSOR_CORES = 0.02
TF32 = 0.2
IN_FP32 = 0.05

# Profiles: waiting, and an empty GPU
FEW_LAUNCHES = 20
TINY = 5e-6  # seconds of a kernel
TINY_SHARE = 0.2
OUTSIDE = 0.05
FEW_BLOCKS = 0.2
LOW_OCCUPANCY = 0.25  # of a multiprocessor's threads
LOW_OCCUPANCY_SHARE = 0.1
OWN_OPERATORS = 0.9  # of the kernels, where nothing has compiled the model

# Profiles: trust
COST, FASTER = 1.3, 0.77  # profiled calls against unprofiled ones
GPU_COST = 1.1
UNKNOWN = 0.1
RUN_SPREAD, LAYER_SPREAD = 1.5, 2.0  # 95th percentile against the median
LAYER_LOSS = 0.02
MANY = 0.3
OVERLAP = 0.02

# Records
COPY_BOUND = 0.5  # of the GPU time that copies take
LEFT_OUT = 0.25  # of the samples that were not steady yet
UNEVEN = 0.1  # half-width of the median of the throughput windows, as a share of it
GPU_FLOOR = 0.05  # of the GPU time that is told of a kernel that does nothing

# Traces
LOADER = SYNCHRONISING = COPIES = 0.05
COMMUNICATION = 0.1
ALLOCATING = 0.02
WITHOUT_TENSOR_CORES = 0.2
ELEMENTWISE = ONE_KERNEL = 0.3  # of the kernels' time
FILLED = 0.5  # of the time in which a GPU works, weighted by its busy multiprocessors
