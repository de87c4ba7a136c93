"""The runners of modules with engines in them: compiled here, or from a file.

The compilation is outside of PyTorch's inference mode, which the export would trace into the graph. A CUDA graph is
captured around the whole call, and not by the library's own ``enable_cudagraphs``: that one copies the inputs in every
call and clones the outputs, which would be timed here and in no other backend; and it captures single engines, where
PyTorch runs something between them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import structs

from inferlens.backends.abilities import KernelOrigins, Launched, LayerProfiler, Origins
from inferlens.backends.availability import first_lines
from inferlens.backends.base import Preparation
from inferlens.backends.profiling.layer_runs import check_level
from inferlens.backends.pytorch.cuda_graph import CudaGraph
from inferlens.backends.pytorch.runner import Feed, TorchOptions, TorchRunner, not_entered
from inferlens.backends.torch_tensorrt import settings
from inferlens.backends.torch_tensorrt.captured import Captured
from inferlens.backends.torch_tensorrt.engines import collected
from inferlens.backends.torch_tensorrt.front_ends import (
    FRONT_ENDS,
    FrontEnd,
    Work,
    compiling,
    example_specs,
    moved_optimum,
)
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.operators import (
    OF_SCRIPT,
    Lowered,
    compiled_partition,
    segments_of,
    watching,
    ways_of,
)
from inferlens.backends.torch_tensorrt.settings import Options
from inferlens.errors import Unsupported
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.record.layer_profile import Layers
from inferlens.record.partition import Partition, Segment, partition_of
from inferlens.spec.case import Case

if TYPE_CHECKING:
    from inferlens.backends.torch_tensorrt.layers import Interior


class ReplayingRunner(TorchRunner, LayerProfiler, KernelOrigins):
    """Calls a module that has engines in it, or replays the call."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: Options, library: Library) -> None:
        super().__init__(model, case, preparation, TorchOptions(tf32=options.tf32), autocast=options.autocast)
        self.options = options
        self.library = library
        self._graph: CudaGraph | None = None

    def captured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, which is captured first if that was asked for."""
        if self.options.cuda_graph:
            self._graph = CudaGraph.capture(call, self.seeded_feed())
        return call

    def infer(self, feed: Feed) -> Any:
        """One call, or one replay; a replay copies ``feed`` in first unless it is the one that is there already."""
        return self._call(*feed) if self._graph is None else self._graph(feed)

    def bind(self, feed: Feed) -> None:
        """Copies ``feed`` into the captured inputs, if the call is replayed."""
        if self._graph is not None:
            self._graph.bind(feed)

    def read_by(self, feed: Feed) -> list[Any]:
        """The captured inputs, if the call is replayed."""
        return list(feed if self._graph is None else self._graph.inputs)

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """What can be looked into for engines: a module, or a list of modules; and who runs what of it, if known."""
        raise NotImplementedError

    def profile_layers(self, feed: Feed, runs: int) -> Layers:
        """Times the layers of the engines, and what PyTorch runs between them."""
        check_level(self.preparation)
        if self._graph is not None:
            raise Unsupported("A CUDA graph replays kernels and has no layers.", hint="without cuda_graph")
        layers, bindings = self._interior().profile(self, feed, runs)
        self.preparation.facts["engine_bindings"] = bindings
        return layers

    def scopes(self) -> AbstractContextManager[Any]:
        """Names in the trace for what PyTorch runs between engines."""
        from inferlens.backends.torch_tensorrt.layers import part_scopes

        return part_scopes(self._interior().parts)

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """Layers of the engines, and parts that PyTorch runs."""
        return self._interior().origins(launched)

    def _interior(self) -> Interior:
        from inferlens.backends.torch_tensorrt.layers import Interior, lookup_among

        compiled, segments = self.inside()
        paths = frozenset(path for path, _ in self.model.module.named_modules()) if self.model.module else frozenset()
        folder = self.preparation.folder / "engine-reports"
        return Interior(compiled, segments, folder, import_module(self.library.package), lookup_among(paths))

    def device_memory(self) -> None:
        """Not known: engines take memory past PyTorch's allocator."""

    def __exit__(self, *error: Any) -> None:
        self._call = not_entered
        self._graph = None
        super().__exit__(*error)


class TensorRtRunner(ReplayingRunner):
    """Compiles a module and calls what came out."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: Options, library: Library) -> None:
        super().__init__(model, case, preparation, options, library)
        self.compiled: Any = None
        self._program: Any = None
        self._work: Work | None = None
        self._graphs: list[Lowered] = []
        self._captured = Captured()
        self._engines: list[Any] = []  # modules with an engine, noted where layers are to be profiled

    @property
    def front_end(self) -> FrontEnd:
        """The way in."""
        return FRONT_ENDS[self.case.variant]

    def __enter__(self) -> TensorRtRunner:
        import torch

        if self.front_end.exports:
            with self.preparation.phase("export"), self.settings():
                self._program = self._exported()
        super().__enter__()
        try:
            self._note_facts()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        if self.front_end.one_mode:  # it was compiled outside of inference mode, and would compile again inside
            self._entered.enter_context(torch.inference_mode(mode=False))
            self._entered.enter_context(torch.no_grad())
        return self

    def build(self, module: Any) -> Callable[..., Any]:
        """Compiles."""
        from inferlens.backends.torch_tensorrt.layers import detailed_engines

        cache = settings.counting_cache(self.options, self.library, self.preparation)
        level = self.preparation.level
        weights = "without engine_cache: a kept engine's weights must be replaceable"
        with (
            detailed_engines(self.library, level),
            collected(level) as self._engines,
            watching() as self._graphs,
            compiling(self.model.name, "compile", hint=weights if cache is not None else self.front_end.instead),
        ):
            work = self.work()
            if cache is not None:
                work.settings["custom_engine_cache"] = cache
            self.compiled = self.front_end.compile(self._program if self.front_end.exports else module, work)
            if cache is not None:
                self.preparation.facts["engine_cache"] = {"hits": cache.hits, "misses": cache.misses}
                self.cached = bool(cache.hits and not cache.misses)
            self._program = self._work = None
            return self.captured(self.compiled)

    def __exit__(self, *error: Any) -> None:
        import torch

        self.compiled = self._program = self._work = None
        self._graphs, self._engines = [], []
        self._captured = Captured()
        self._call = not_entered
        if self.front_end.one_mode:
            torch._dynamo.reset()  # lets go of the compiled code and of the engines in it
        super().__exit__(*error)

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """The compiled module; of ``torch.compile``, which cannot be looked into, the engines that it made."""
        compiled = self._engines if self.front_end.one_mode else self.compiled
        return compiled, () if self.front_end.script else segments_of(self._graphs)

    def save(self, path: Path) -> None:
        """Writes the compiled module; the runner is entered."""
        with compiling(self.model.name, f"save as {path.suffix}", hint="the other kind of file, .ts or .ep"):
            self.front_end.save(self.compiled, self.work(), path)

    def partition(self, assumed_gpu: str) -> Partition:
        """How the model would be partitioned; nothing is built, and the runner is not entered."""
        if self.front_end.script:
            raise Unsupported(
                "The TorchScript front end has a partition only when it has built.",
                hint="--backend torch_tensorrt:dynamo, or the record of inferlens bench --backend "
                f"{self.case.backend_label}",
            )
        with self.settings():
            program = self._exported() if self.front_end.exports else self._moved()
            with compiling(self.model.name, "partition"):
                work = self.work()
            work = dataclasses.replace(work, feed=work.example)  # nothing is measured: the asked sizes alone
            work.settings.update(dryrun=True, require_full_compilation=False)
            with watching() as self._graphs, compiling(self.model.name, "partition"):
                self.front_end.compile(program, work)
            self._warn_of_sizes()
            found = self._partition(assumed_gpu)
            refused = self._refused(found)
            note = f"{found.note} inferlens bench refuses this: {refused}".strip()
            return structs.replace(found, note=note) if refused else found

    def work(self) -> Work:
        """What the front end works with: settings, and inputs that lie on the device."""
        if self._work is None:
            specs = example_specs(self.model.inputs)
            example = make_inputs(dataclasses.replace(self.model, inputs=specs), self.case.seed)
            self._work = Work(
                library=self.library,
                specs=self.model.inputs,
                precision=self._stored,
                settings=self._settings(),
                example=self.place(example),
                feed=self.seeded_feed(),
                captured=self._captured,
            )
        return self._work

    def _settings(self) -> dict[str, Any]:
        if self.front_end.script:
            return settings.script_settings(self.options, self.case)
        parameters = self.library.settings if self.front_end.one_mode else self.library.parameters
        return settings.dynamo_settings(self.options, self.case, self.library, self.preparation, parameters=parameters)

    def _exported(self) -> Any:
        module = self._moved()
        with compiling(self.model.name, "export", hint=self.front_end.instead):
            return self.front_end.export(module, self.work())

    def _note_facts(self) -> None:
        """What was built, as facts and warnings; refused, if PyTorch runs a part and that was not wanted."""
        facts, preparation, options = self.preparation.facts, self.preparation, self.options
        facts["flavour"] = self.library.flavour
        facts["runtime"] = "Python" if options.use_python_runtime or not self.library.native_runtime else "C++"
        self._warn_of_sizes()
        try:
            partition = self._partition()
        except Exception as error:  # it is read from what the library keeps for itself; the case runs all the same
            if options.require_full_compilation:
                raise
            facts["no_partition"] = f"What runs in TensorRT is not known: {type(error).__name__}: {first_lines(error)}"
            return
        facts["partition"] = msgspec.to_builtins(partition)
        if not partition.engines:
            preparation.warn(
                "no-engines",
                f"There is no engine: everything ran in PyTorch (min_block_size {options.min_block_size}).",
                "inferlens partition shows why.",
            )
        if in_vain := self._in_vain():
            preparation.warn("no-effect", in_vain, "Its operators by name: inferlens partition.")
        if refused := self._refused(partition):
            raise Unsupported(refused, hint="inferlens partition, which shows which part and why")

    def _refused(self, partition: Partition) -> str:
        """Why a partition is not what was asked for; empty if it is."""
        if not self.options.require_full_compilation or not (partition.breaks or partition.interruptions):
            return ""
        what = "PyTorch runs a part" if partition.breaks else "Python runs between the compiled graphs"
        return f"{what} of '{self.model.name}', and require_full_compilation was asked for."

    def _warn_of_sizes(self) -> None:
        """Warns where engines cannot be fastest at the sizes that were asked for."""
        moved = {} if self.front_end.script else moved_optimum(self.model.inputs)
        if moved:
            places = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in moved.items())
            self.preparation.warn(
                "moved-optimum",
                f"The engines are built to be fastest at {places}: a size of 1 is a constant to this front end.",
                "opt=2 or more, or --backend torch_tensorrt:ts-script.",
            )

    def _partition(self, assumed_gpu: str = "") -> Partition:
        """What was partitioned; of the TorchScript front end, as far as the compiled module shows it."""
        size = self.options.min_block_size
        known = {"front_end": self.case.variant, "min_block_size": size, "flavour": self.library.flavour}
        if self.front_end.script:
            forced = settings.script_settings(self.options, self.case)["torch_executed_ops"]
            found = compiled_partition(self.compiled, OF_SCRIPT, forced=forced, wrapped=self.front_end.wrapped, **known)
            return cast("Partition", found)
        ways = ways_of(self._graphs, size)
        interruptions = self._captured.interruptions() if self.front_end.one_mode else ()
        note = " ".join(filter(None, [ways.pop("note", ""), self._in_vain()]))
        segments = segments_of(self._graphs)
        return partition_of(segments, interruptions=interruptions, assumed_gpu=assumed_gpu, note=note, **known, **ways)

    def _in_vain(self) -> str:
        """What torch_executed_ops names in vain; empty where the operators are not known."""
        if self.front_end.script:
            return ""
        names = [operator.name for segment in segments_of(self._graphs) for operator in segment.operators]
        return settings.in_vain(self.options.torch_executed_ops, names)
