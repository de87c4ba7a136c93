"""ONNX Runtime on an NVIDIA GPU, on a stream and with memory of PyTorch's.

The stream is the runner's own and PyTorch's current one while the runner is entered, so the CUDA clock's events are
recorded where ONNX Runtime enqueues. ONNX Runtime is told not to wait for the GPU at the end of a run: ``infer``
enqueues only, as with every other backend on a GPU.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.backends.base import Inputs, Outputs
from inferlens.backends.clocks import Clock, CudaClock
from inferlens.backends.onnxruntime.providers import preload
from inferlens.backends.onnxruntime.runner import TYPES, OnnxRunner
from inferlens.backends.pytorch.runner import host_array
from inferlens.errors import Unsupported

Feed = dict[str, Any]


class CudaRunner(OnnxRunner):
    """ONNX Runtime with its CUDA or TensorRT provider."""

    clock: Clock = CudaClock()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._entered = ExitStack()
        self._own: Feed = {}
        self._outputs: list[Any] = []
        self._binding: Any = None
        self._bound: Feed | None = None

    def __enter__(self) -> CudaRunner:
        import onnxruntime as ort
        import torch

        from inferlens.models.inputs import make_inputs

        preload(ort, self.provider)
        with ExitStack() as entered:
            stream = torch.cuda.Stream()
            entered.enter_context(torch.cuda.stream(stream))
            with self.preparation.phase("build"):
                self._loaded = self.load(stream.cuda_stream)
                self._run_options = ort.RunOptions()
                self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
                self._own = self.place(make_inputs(self.model, self.case.seed))
                self._bind_outputs()
                self.synchronize()
            self._entered = entered.pop_all()
        self.preparation.facts["threads"] = self.case.threads
        return self

    def __exit__(self, *error: Any) -> None:
        # ONNX Runtime goes first: it holds addresses of the tensors, which must outlive it.
        self._binding = None
        super().__exit__(*error)
        self._own, self._outputs, self._bound = {}, [], None
        self._entered.close()

    def place(self, inputs: Inputs) -> Feed:
        """Tensors on the GPU, in the types that the graph declares, by name."""
        import torch

        return {
            name: torch.from_numpy(array.copy()).to("cuda", getattr(torch, TYPES[kind][0]))
            for name, (array, kind) in self.arrays(inputs).items()
        }

    def infer(self, feed: Feed) -> list[Any]:
        """Enqueues one run. A feed that is not the last one is copied into the bound tensors first."""
        if feed is not self._bound:
            self.bind(feed)
        self._loaded.run_with_iobinding(self._binding, self._run_options)
        return self._outputs

    def bind(self, feed: Feed) -> None:
        """Copies ``feed`` into the bound tensors."""
        for name, own in self._own.items():
            own.copy_(feed[name])
        self._bound = feed

    def read_by(self, feed: Feed) -> list[Any]:  # noqa: ARG002 - every feed is copied into the bound tensors
        """The bound tensors."""
        return list(self._own.values())

    def synchronize(self) -> None:
        """Waits for the runner's stream."""
        import torch

        torch.cuda.current_stream().synchronize()

    def collect(self, outputs: list[Any]) -> Outputs:
        """See :class:`~inferlens.backends.base.Runner`."""
        return [host_array(tensor) for tensor in outputs]

    def _bind_outputs(self) -> None:
        """Binds tensors of PyTorch's as outputs, so that every run writes to the same place.

        Shapes the graph does not declare are learned from one run. That run is kept out of a CUDA graph, which would
        hold on to outputs that ONNX Runtime allocated for it.

        Raises:
            Unsupported: if that run fails; a provider may refuse an operator as late as that.
        """
        import onnxruntime as ort
        import torch

        shapes = [tuple(node.shape) for node in self._loaded.get_outputs()]
        kinds = [TYPES[node.type][0] for node in self._loaded.get_outputs()]
        if not all(isinstance(size, int) for shape in shapes for size in shape):
            uncaptured = ort.RunOptions()
            uncaptured.add_run_config_entry("gpu_graph_id", "-1")
            first = self._bind([])
            try:
                self._loaded.run_with_iobinding(first, uncaptured)
            except Exception as error:
                if "alloc" in str(error).lower():
                    raise
                raise Unsupported(f"{self.case.backend_label} cannot run the graph: {first_lines(error)}") from error
            shapes = [tuple(value.shape()) for value in first.get_outputs()]
        self._outputs = [
            torch.empty(shape, dtype=getattr(torch, kind), device="cuda")
            for shape, kind in zip(shapes, kinds, strict=True)
        ]
        self._binding = self._bind(self._outputs)

    def _bind(self, outputs: list[Any]) -> Any:
        """A binding of the own inputs and, if there are any yet, of ``outputs``."""
        binding = self._loaded.io_binding()
        kinds = {node.name: TYPES[node.type][1] for node in self._loaded.get_inputs()}
        for name, tensor in self._own.items():
            binding.bind_input(name, "cuda", 0, kinds[name], tuple(tensor.shape), tensor.data_ptr())
        for index, node in enumerate(self._loaded.get_outputs()):
            if not outputs:
                binding.bind_output(node.name, "cuda", 0)
                continue
            tensor = outputs[index]
            kind = TYPES[node.type][1]
            binding.bind_output(node.name, "cuda", 0, kind, tuple(tensor.shape), tensor.data_ptr())
        return binding
