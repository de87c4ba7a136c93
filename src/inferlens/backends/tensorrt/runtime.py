"""Running an engine: the opened :class:`Engine`, and :class:`BoundContext`, one way of calling it with its own memory.

A context reads and writes memory by address, so a :class:`BoundContext` keeps every tensor while its context lives.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

from inferlens.backends.tensorrt.flavours import Flavour, condensed, load_plugins, log
from inferlens.backends.tensorrt.layers import layers_and_bindings
from inferlens.backends.tensorrt.profiles import Shape, shape_text
from inferlens.errors import Unsupported, one_line
from inferlens.record.files import write_whole

# PyTorch's types by the names of TensorRT's.
TYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64", "INT32": "int32", "INT8": "int8",
    "UINT8": "uint8", "BOOL": "bool", "FP8": "float8_e4m3fn",
}  # fmt: skip


class Engine:
    """An engine, opened on the GPU; ``inputs`` and ``outputs`` are the names of its tensors in order.

    ``content`` was checked to be for this flavour and GPU (``check_engine``). ``host_code`` lets it run the code that a
    version-compatible engine brings along: only for engines that were built here or are trusted. The file ``cache``, in
    flavours that compile kernels when an engine runs, keeps those from one run to the next. ``hint`` is what to try if
    it cannot be opened.
    """

    def __init__(
        self, content: bytes, flavour: Flavour, *, plugins: str = "", cache: Path | None = None,
        host_code: bool = False, hint: str = "",
    ) -> None:  # fmt: skip
        load_plugins(flavour, plugins)
        trt: Any = flavour.module
        self.flavour = flavour
        self.log = log(flavour)
        self._runtime = trt.Runtime(self.log)
        if host_code and not flavour.jit:  # TensorRT for RTX has no engines with code
            self._runtime.engine_host_code_allowed = True
        self.opened: Any = self._runtime.deserialize_cuda_engine(content)
        if self.opened is None:
            raise self._failed("cannot open the engine", hint)
        names = [self.opened.get_tensor_name(index) for index in range(self.opened.num_io_tensors)]
        modes = {name: self.opened.get_tensor_mode(name) for name in names}
        self.inputs = [name for name in names if modes[name] == trt.TensorIOMode.INPUT]
        self.outputs = [name for name in names if modes[name] == trt.TensorIOMode.OUTPUT]
        self._cache = cache
        self._config: Any = None
        self._kernels: Any = None
        if cache is not None and flavour.jit:
            self._use_cache(cache)

    def dtype(self, name: str) -> Any:
        import torch

        kind = self.opened.get_tensor_dtype(name).name
        if kind not in TYPES:
            raise Unsupported(f"The engine's tensor '{one_line(name)}' is {kind}, which PyTorch has not.")
        return getattr(torch, TYPES[kind])

    def context(self) -> Any:
        create = self.opened.create_execution_context
        made = create() if self._config is None else create(self._config)
        if made is None:
            raise self._failed("created no context")
        return made

    def keep_kernels(self) -> None:
        """Writes the kernels that were compiled so far to the cache file, if there is one."""
        if self._kernels is not None and self._cache is not None:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._cache, bytes(self._kernels.serialize()))

    def information(self) -> tuple[list[Any], list[str]]:
        """What the inspector has of the layers, a mapping for each or its name alone; names of inputs and outputs."""
        inspector = self.opened.create_engine_inspector()
        return layers_and_bindings(inspector.get_engine_information(self.flavour.module.LayerInformationFormat.JSON))

    def _failed(self, what: str, hint: str = "") -> Exception:
        reason = f"{self.flavour.title} {what}: {condensed(self.log.errors)}."
        return MemoryError(reason) if "memory" in reason.lower() else Unsupported(reason, hint=hint)

    def _use_cache(self, path: Path) -> None:
        self._config = self.opened.create_runtime_config()
        self._kernels = self._config.create_runtime_cache()
        content = path.read_bytes() if path.is_file() else b""
        if content and self._kernels.deserialize(content) is False:  # a version that does not tell returns None
            raise Unsupported(
                f"{path} holds no kernels, or those of another GPU, driver or version.", hint="another timing_cache"
            )
        self._config.set_runtime_cache(self._kernels)


class BoundContext:
    """One context of an engine on a stream, with its inputs and outputs bound."""

    def __init__(self, engine: Engine, stream: Any, shapes: dict[str, Shape], profile: int = 0) -> None:
        """Binds outputs for inputs of ``shapes``; it ``grows`` if the shape of an output is known only after a call."""
        self.engine = engine
        self.stream = stream
        self._handle = stream.cuda_stream
        self.context = engine.context()
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []  # tensors, and what will give one where its shape depends on the data
        self.grows = False
        if profile:
            self.context.set_optimization_profile_async(profile, self._handle)
            stream.synchronize()
        self._profile = profile
        self.reshape(shapes)
        self._bind_outputs()

    def reshape(self, shapes: dict[str, Shape]) -> None:
        """Gives inputs other shapes, by name, that the profile takes. Outputs keep the memory they were bound to."""
        for name, shape in shapes.items():
            if not self.context.set_input_shape(name, shape):
                least, _, most = map(tuple, self.engine.opened.get_tensor_profile_shape(name, self._profile))
                takes = f"takes {one_line(name)} from {shape_text(least)} to {shape_text(most)}"
                raise Unsupported(f"The engine {takes}, not {shape_text(shape)}.")

    def bind(self, tensors: dict[str, Any]) -> None:
        """Reads the inputs from ``tensors``, by name: contiguous, on the GPU, of the engine's types; no copies."""
        for name, tensor in tensors.items():
            self.context.set_tensor_address(name, tensor.data_ptr())
        self._inputs = dict(tensors)

    def enqueue(self) -> None:
        """One inference on the stream; a ``RuntimeError`` if TensorRT could not enqueue it."""
        if not self.context.execute_async_v3(self._handle):
            raise RuntimeError(f"{self.engine.flavour.name} did not run: {condensed(self.engine.log.errors)}")

    def close(self) -> None:
        """Lets go of the context first, then of what it had the addresses of."""
        self.stream.synchronize()
        self.context = None
        self._inputs, self._outputs = {}, []

    @property
    def outputs(self) -> list[Any]:
        """The outputs' tensors; those whose shape depends on the data have it once the stream has come to its end."""
        return [value.tensor() if hasattr(value, "notify_shape") else value for value in self._outputs]

    def _bind_outputs(self) -> None:
        import torch

        for name in self.engine.outputs:
            shape = tuple(self.context.get_tensor_shape(name))
            dtype = self.engine.dtype(name)
            if all(size >= 0 for size in shape):
                tensor = torch.empty(shape, dtype=dtype, device="cuda")
                self.context.set_tensor_address(name, tensor.data_ptr())
                self._outputs.append(tensor)
            else:
                growing = _growing(self.engine.flavour.module)(dtype)
                self.context.set_output_allocator(name, growing)
                self._outputs.append(growing)
                self.grows = True


@functools.lru_cache(maxsize=2)
def _growing(module: Any) -> Any:
    """The class of outputs whose shape depends on the data, which must be a subclass of the module's own allocator."""

    class _Growing(module.IOutputAllocator):  # type: ignore[misc]
        """Memory that TensorRT asks for while it runs, kept from call to call and never made smaller."""

        def __init__(self, dtype: Any) -> None:
            module.IOutputAllocator.__init__(self)
            self._dtype = dtype
            self._memory: Any = None
            self._shape: Shape = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            return self._room(size)

        def reallocate_output_async(self, _name: str, _memory: int, size: int, _alignment: int, _stream: int) -> int:
            return self._room(size)

        def notify_shape(self, _name: str, shape: Any) -> None:
            self._shape = tuple(shape)

        def tensor(self) -> Any:
            """The output of the last call."""
            return self._memory.view(self._dtype)[: math.prod(self._shape)].reshape(self._shape)

        def _room(self, size: int) -> int:
            import torch

            if self._memory is None or self._memory.numel() < size:
                self._memory = torch.empty(max(size, 256) + 15 & ~15, dtype=torch.uint8, device="cuda")
            return int(self._memory.data_ptr())

    return _Growing
