"""Opens a plan to look at it: its layers, and the GPU time of a call, so that two builds can be compared."""

from __future__ import annotations

import itertools
from typing import Any

from inferlens.backends.tensorrt.builds import Examine
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.runtime import Call, Engine
from inferlens.models.model import Model
from inferlens.spec.case import Case
from inferlens.stats.quantiles import median

WARMUP, CALLS = 20, 200


def examiner(model: Model, case: Case, flavour: Flavour, options: Options) -> Examine:
    """What opens plans of ``case``: returns a plan's layers, and the median GPU time of a call in seconds."""

    def examine(plan: bytes) -> tuple[list[dict[str, Any]], float | None]:
        import torch

        from inferlens.backends.clocks import CudaClock
        from inferlens.models.inputs import make_inputs

        engine = Engine(plan, flavour, plugins=options.plugins, host_code=options.version_compatible)
        with torch.cuda.stream(torch.cuda.Stream()):
            stream = torch.cuda.current_stream()
            arrays = make_inputs(model, case.seed)
            feed = {
                name: torch.from_numpy(arrays[name]).to("cuda", engine.dtype(name)).contiguous()
                for name in engine.inputs
            }
            call = Call(engine, stream, {name: tuple(feed[name].shape) for name in feed}, options.profile)
            call.bind(feed)
            for _ in range(WARMUP):
                call.enqueue()
            times = CudaClock().time(lambda _: call.enqueue(), itertools.repeat(None), CALLS).gpu
            call.close()
        layers = [layer if isinstance(layer, dict) else {"Name": str(layer)} for layer in engine.layers()]
        return layers, median(times)

    return examine
