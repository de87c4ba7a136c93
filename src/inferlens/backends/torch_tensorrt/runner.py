"""Runs what Torch-TensorRT compiled: everything but the compilation is :class:`TorchRunner`'s.

The compilation is outside of PyTorch's inference mode, which the export would trace into the graph.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from inferlens.backends.availability import first_lines
from inferlens.backends.base import Preparation
from inferlens.backends.pytorch.runner import Feed, not_entered
from inferlens.backends.torch_tensorrt import settings, shapes
from inferlens.backends.torch_tensorrt.captured import Captured
from inferlens.backends.torch_tensorrt.engine_cache import counting_cache
from inferlens.backends.torch_tensorrt.engines import collected
from inferlens.backends.torch_tensorrt.front_ends import FRONT_ENDS, FrontEnd, Work, compiling
from inferlens.backends.torch_tensorrt.inspector import telling
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.monitor import Lowered, segments_of, watching, ways_of
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.backends.torch_tensorrt.replay import ReplayingRunner
from inferlens.backends.torch_tensorrt.scripts import script_partition
from inferlens.errors import Unsupported
from inferlens.models.inputs import make_inputs
from inferlens.models.model import Model
from inferlens.record.partition import Partition, Segment, partition_of
from inferlens.spec.case import Case

ONE_APART = "Shown is what runs sizes from 2 on; torch.compile compiles a size of 1 apart from the range."
BOTH_COUNTED = (
    "Counted are two compilations: one for the range, and one for the size of 1, which is the one that was measured."
)
REFUSED = "inferlens bench refuses this: {}"
NO_PARTITION = "What runs in TensorRT and what in PyTorch could not be told"


class TensorRtRunner(ReplayingRunner):
    """Calls a module that has engines in it."""

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
            self._tell()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        if self.front_end.one_mode:  # it was compiled outside of inference mode, and would compile again inside
            self._entered.enter_context(torch.inference_mode(mode=False))
            self._entered.enter_context(torch.no_grad())
        return self

    def build(self, module: Any) -> Callable[..., Any]:
        """Compiles.

        Raises:
            Unsupported: if the model, or what was asked for, is not for this front end.
        """
        cache = counting_cache(self.options, self.library, self.preparation)
        level = self.preparation.level
        with (
            telling(self.library, level),
            collected(level) as self._engines,
            watching() as self._graphs,
            compiling(self.model.name, "compile", hint=self._cure()),
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
        """Writes the compiled module; the runner is entered.

        Raises:
            Unsupported: if the front end has no such form.
        """
        with compiling(self.model.name, f"save as {path.suffix}", hint="the other kind of file, .ts or .ep"):
            self.front_end.save(self.compiled, self.work(), path)

    def partition(self, assumed_gpu: str) -> Partition:
        """How the model would be partitioned; nothing is built, and the runner is not entered."""
        if self.front_end.script:
            raise Unsupported(
                "The TorchScript front end tells its partition only when it has built.",
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
            apart = self.front_end.one_mode and shapes.vary_from_one(self.model.inputs)
            self._warn_of_sizes()
            found = self._partition(ONE_APART if apart else "", assumed_gpu)
            refused = self._refused(found)
            return structs.replace(found, note=f"{found.note} {REFUSED.format(refused)}".strip()) if refused else found

    def work(self) -> Work:
        """What the front end works with: settings, and inputs that lie on the device."""
        if self._work is None:
            self._work = Work(
                library=self.library,
                name=self.model.name,
                specs=self.model.inputs,
                precision=self._stored,
                settings=self._settings(),
                example=self._example(),
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

    def _cure(self) -> str:
        """What to try where compiling fails."""
        if self.options.engine_cache:
            return "without engine_cache: a kept engine's weights must be replaceable"
        return self.front_end.instead

    def _example(self) -> Feed:
        """Inputs that show which sizes vary."""
        specs = shapes.example_specs(self.model.inputs)
        arrays = make_inputs(dataclasses.replace(self.model, inputs=specs), self.case.seed)
        return self.place(arrays)

    def _tell(self) -> None:
        """What was built, as facts and warnings.

        Raises:
            Unsupported: if PyTorch runs a part and that was not wanted.
        """
        facts, preparation, options = self.preparation.facts, self.preparation, self.options
        facts["flavour"] = self.library.flavour
        facts["runtime"] = "Python" if options.use_python_runtime or not self.library.native_runtime else "C++"
        moved = self._warn_of_sizes()
        partition = self._told_partition(BOTH_COUNTED if moved and self.front_end.one_mode else "")
        if partition is None:
            return
        facts["partition"] = msgspec.to_builtins(partition)
        if not partition.engines:
            preparation.warn(
                "no-engines",
                f"There is no engine: everything ran in PyTorch (min_block_size {options.min_block_size}).",
                "inferlens partition tells why.",
            )
        if not_there := self._not_there():
            preparation.warn("no-effect", not_there, "Its operators by name: inferlens partition.")
        if refused := self._refused(partition):
            raise Unsupported(refused, hint="inferlens partition, which tells which part and why")

    def _refused(self, partition: Partition) -> str:
        """Why a partition is not what was asked for; empty if it is."""
        if not self.options.require_full_compilation or not (partition.breaks or partition.interruptions):
            return ""
        what = "PyTorch runs a part" if partition.breaks else "Python runs between the compiled graphs"
        return f"{what} of '{self.model.name}', and require_full_compilation was asked for."

    def _warn_of_sizes(self) -> bool:
        """Warns where engines cannot be fastest at the sizes that were asked for; whether that is so."""
        moved = {} if self.front_end.script else shapes.moved_optimum(self.model.inputs)
        if moved:
            places = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in moved.items())
            self.preparation.warn(
                "moved-optimum",
                f"The engines are built to be fastest at {places}: a size of 1 is a constant to this front end.",
                "opt=2 or more, or --backend torch_tensorrt:ts-script.",
            )
        return bool(moved)

    def _told_partition(self, sizes: str) -> Partition | None:
        """What was built; ``None`` where that cannot be told, and then a fact says why: the case runs all the same."""
        try:
            return self._script_partition() if self.front_end.script else self._partition(sizes)
        except Exception as error:  # it is read from what the library keeps for itself
            if self.options.require_full_compilation:
                raise
            self.preparation.facts["no_partition"] = f"{NO_PARTITION}: {type(error).__name__}: {first_lines(error)}"
            return None

    def _script_partition(self) -> Partition:
        return script_partition(
            self.compiled.inlined_graph,
            front_end=self.case.variant,
            min_block_size=self.options.min_block_size,
            flavour=self.library.flavour,
            forced=settings.script_settings(self.options, self.case)["torch_executed_ops"],
            wrapped=self.front_end.wrapped,
        )

    def _partition(self, sizes: str, assumed_gpu: str = "") -> Partition:
        """What was partitioned; ``sizes`` says for which, where that is not plain."""
        ways = ways_of(self._graphs, self.options.min_block_size)
        return partition_of(
            segments_of(self._graphs),
            front_end=self.case.variant,
            min_block_size=self.options.min_block_size,
            choices=ways.choices,
            ways=ways.total,
            interruptions=self._captured.interruptions() if self.front_end.one_mode else (),
            flavour=self.library.flavour,
            assumed_gpu=assumed_gpu,
            note=" ".join(filter(None, [sizes, ways.note, self._not_there()])),
        )

    def _not_there(self) -> str:
        """What torch_executed_ops names in vain; empty where the operators are not known."""
        if self.front_end.script:
            return ""
        names = [operator.name for segment in segments_of(self._graphs) for operator in segment.operators]
        return settings.not_there(self.options.torch_executed_ops, names)
