"""Files: their kinds, atomic writing, reading of plain or packed files, and JSON that names its schema.

The kind comes from the first kilobytes and the structure. The name is not used, and nothing is unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from inferlens.errors import InferlensError, unwritable

if TYPE_CHECKING:
    import zipfile

HEAD = 1 << 19  # bytes that are read
LARGEST_PART = 1 << 26  # bytes of a pickle or a description in an archive
MOST_OPCODES = 500_000  # of a pickle
RUN = "inferlens bench {path}"
LOAD = "inferlens bench MODEL --weights {path}"
SHOW = "inferlens show {path}"
TRACE = "inferlens trace {path}"
CONVERT = "export the model to ONNX"
AGAIN = "copy, export or download it again, if it should be another file"
DOWNLOAD = "download it again, and look at what the address answers"


class FileType(Enum):
    """A kind of file: its title in a sentence, and the command that takes such a file, or other advice."""

    ONNX = "an ONNX model", RUN
    TORCHSCRIPT = "a TorchScript module", RUN
    TORCH_TENSORRT = "a module that Torch-TensorRT compiled", f"{RUN} --trust"
    EXPORTED = "an exported program of torch.export", RUN
    MODULE = "a pickled module", f"{RUN} --trust"
    WEIGHTS = "a file of weights without a model", LOAD
    SAFETENSORS = "a file of weights (safetensors) without a model", LOAD
    WEIGHTS_INDEX = "an index of weights in several files", LOAD
    ENGINE = "a TensorRT engine", RUN
    ULTRALYTICS_ENGINE = (
        "a TensorRT engine behind metadata of Ultralytics",
        "cut off the metadata: its length is in the first four bytes, little endian, and the engine follows it",
    )
    OPENVINO = "a graph of OpenVINO (IR)", RUN
    RECORD = "a record of Inferlens", SHOW
    PROFILE = "a profile of Inferlens", "inferlens modules {path}, or inferlens report {path}"
    OWN = "a JSON file of Inferlens", "inferlens show with the folder that it lies in"
    TRACE = "a trace in Chrome's format", TRACE
    TRTEXEC = "a file of times or outputs from trtexec", "inferlens bench or inferlens profile, with the engine's file"
    TRTEXEC_LAYERS = "a list of the layers of a TensorRT engine (trtexec --exportLayerInfo)", "inferlens graph {path}"
    PROFILER_FILE = (
        "a file of PyTorch's profiler that is no trace, such as a memory timeline or an execution trace",
        "inferlens trace with what export_chrome_trace writes",
    )
    MEMORY_SNAPSHOT = "a memory snapshot of PyTorch", "open it at docs.PyTorch.org/memory_viz"
    LFS_POINTER = "a pointer of Git LFS in the place of the file", "git lfs pull"
    HTML = "a web page or the error of a server in the place of the file", DOWNLOAD
    OTHER_MODEL = "a model in a format that is not supported", CONVERT
    ARCHIVE = "an archive", "unpack it, and give the file in it"
    DAMAGED = "a zip archive that is cut short or damaged, such as a PyTorch file", "copy or export it again"
    JSON = "a JSON file of another tool", AGAIN
    PICKLE = "a pickle of something else", AGAIN
    DATA = "a file of data", AGAIN
    EMPTY = "an empty file", "copy or download it again"
    UNKNOWN = "a file of an unknown kind", AGAIN


class FileKind(NamedTuple):
    """The kind of a file, and a more precise title if there is one.

    ``packing`` is the program that the file is packed with, such as ``gzip``.
    """

    kind: FileType
    detail: str = ""
    packing: str = ""

    @property
    def title(self) -> str:
        """Return the description of the file, as the end of a sentence."""
        packed = f", packed with {self.packing}" if self.packing else ""
        return (self.detail or self.kind.value[0]) + packed


MODELS = (
    FileType.ONNX, FileType.TORCHSCRIPT, FileType.TORCH_TENSORRT, FileType.EXPORTED, FileType.MODULE, FileType.ENGINE,
    FileType.OPENVINO,
)  # fmt: skip
TRACES = (FileType.TRACE,)
COMPILED_PROGRAM = "an exported program that Torch-TensorRT compiled"
READABLE = (FileType.RECORD, FileType.PROFILE, FileType.OWN, *TRACES)  # by a report


def wrong_file(path: Path, kind: FileKind, expected: str) -> InferlensError:
    """Return the error that names what a file is, what was expected, and the command that takes the file."""
    hint = kind.kind.value[1].format(path=path)
    if kind.packing and kind.kind not in (*TRACES, FileType.EMPTY):
        hint = f"unpack it ({kind.packing} -d {path})"
    return InferlensError(f"{path} is {kind.title}.", expected=expected, hint=hint)


def refuse_other_files(paths: Iterable[Path], allowed: Sequence[FileType], noun: str) -> None:
    """Raise the error of :func:`wrong_file` for the first path that is a file of none of the ``right`` kinds."""
    for path in paths:
        with suppress(OSError):
            if path.is_file() and (kind := file_kind(path)).kind not in allowed:
                raise wrong_file(path, kind, expected=f"a {noun}")


def _open(source: Path | bytes) -> IO[bytes]:
    return source.open("rb") if isinstance(source, Path) else io.BytesIO(source)


def file_kind(source: Path | bytes) -> FileKind:
    """Return the kind of a file, or of a file that begins with the bytes. Raises OSError if the file cannot be read."""
    with _open(source) as file:
        packing, unpacked = _unpacked(file)
        head = _read_head(unpacked)
        file.seek(0)
        return _kind(head, io.BytesIO(head) if packing else file)._replace(packing=packing)


def _unpacked(file: IO[bytes]) -> tuple[str, IO[bytes]]:
    """Return the program that a file is packed with, and the file that unpacks it."""
    start = file.read(6)
    file.seek(0)
    openers: tuple[tuple[bytes, str, Callable[[Any], Any]], ...] = (
        (b"\x1f\x8b", "gzip", gzip.open), (b"\xfd7zXZ\0", "xz", lzma.open), (b"\x28\xb5\x2f\xfd", "zstd", _open_zstd),
    )  # fmt: skip
    return next(((name, opener(file)) for magic, name, opener in openers if start.startswith(magic)), ("", file))


def _open_zstd(file: IO[bytes]) -> IO[bytes]:
    with suppress(ImportError):
        import zstandard

        reader: IO[bytes] = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        return reader
    return io.BytesIO(b"\0")  # without zstandard the content stays unknown


def _read_head(file: IO[bytes]) -> bytes:
    """Return the first bytes of a file. If it is damaged, return the bytes before the damage."""
    head = b""
    with suppress(Exception):  # every unpacker has errors of its own
        while len(head) < HEAD and (block := file.read(1 << 14)):
            head += block
    return head


MAGIC: tuple[tuple[int, bytes, FileKind], ...] = (
    (0, b"ftrt", FileKind(FileType.ENGINE)),
    (0, b"vtrt", FileKind(FileType.ENGINE)),
    (0, b"ptrt", FileKind(FileType.ENGINE)),
    (0, b"version https://git-lfs", FileKind(FileType.LFS_POINTER)),
    (4, b"TFL3", FileKind(FileType.OTHER_MODEL, "a TensorFlow Lite model")),
    (4, b"ORTM", FileKind(FileType.OTHER_MODEL, "a model in ONNX Runtime's own format (ORT)")),
    (4, b"ET1", FileKind(FileType.OTHER_MODEL, "an ExecuTorch program")),
    (0, b"GGUF", FileKind(FileType.OTHER_MODEL, "a GGUF model of llama.cpp")),
    (0, b"\x89HDF\r\n\x1a\n", FileKind(FileType.OTHER_MODEL, "an HDF5 file, such as a Keras model")),
    (0, b"\x93NUMPY", FileKind(FileType.DATA, "a NumPy array (.npy)")),
    (0, b"SQLite format 3", FileKind(FileType.DATA, "an SQLite database, such as Nsight Systems exports")),
    (0, b"BZh", FileKind(FileType.ARCHIVE, "a file packed with bzip2")),
    (257, b"ustar", FileKind(FileType.ARCHIVE, "a tar archive")),
)


def _kind(head: bytes, file: IO[bytes]) -> FileKind:
    if not head:
        return FileKind(FileType.EMPTY)
    for offset, magic, kind in MAGIC:
        if head.startswith(magic, offset):
            return kind
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive_kind(file)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return _pickle_kind(file)
    length = struct.unpack_from("<Q", head)[0] if len(head) > 8 else 0
    if 2 <= length < 1 << 30 and head[8:9] == b"{" and b"dtype" in head[:HEAD]:
        return FileKind(FileType.SAFETENSORS)
    if head[4:5] == b"{" and any(magic in head for magic in (b"ftrt", b"vtrt", b"ptrt")):
        return FileKind(FileType.ULTRALYTICS_ENGINE)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"<":
        lower = text[: 1 << 13].lower()
        return FileKind(FileType.OPENVINO if b"<net " in lower and b"version=" in lower else FileType.HTML)
    if text[:1] in (b"{", b"["):
        return _json_kind(text)
    if _ONNX.match(head):
        return FileKind(FileType.ONNX)
    if not text:
        return FileKind(FileType.EMPTY)
    return FileKind(FileType.UNKNOWN if b"\0" in head else FileType.DATA)


# Patterns of the beginning of JSON files. A pattern is a key or a form that the writer always puts there.

_SCHEMA = re.compile(rb'^\{\s*"schema"\s*:\s*"inferlens\.(\w+)')
_PATTERNS: tuple[tuple[FileType, re.Pattern[bytes]], ...] = (
    (FileType.TRTEXEC, re.compile(rb'^\[[^]]*"(latencyMs|startComputeMs|averageMs|timeMs|dimensions)"\s*:')),
    (FileType.PROFILER_FILE, re.compile(rb"^\[\s*\[(\s*-?[\d.e+]+\s*,){3}\s*(-?\d|null)")),
    (FileType.TRTEXEC_LAYERS, re.compile(rb'^\{\s*"(Layers|Bindings)"\s*:\s*\[')),
    (FileType.MEMORY_SNAPSHOT, re.compile(rb'^\{\s*"(segments|device_traces)"\s*:\s*\[')),
    (FileType.WEIGHTS_INDEX, re.compile(rb'^\{.*"weight_map"\s*:\s*\{', re.DOTALL)),
)


def _json_kind(text: bytes) -> FileKind:
    if schema := _SCHEMA.match(text):
        return FileKind({b"record": FileType.RECORD, b"profile": FileType.PROFILE}.get(schema[1], FileType.OWN))
    events = rb'"traceEvents"\s*:\s*\[' if text[:1] == b"{" else rb'"ph"\s*:'
    if re.search(events, text):
        return FileKind(FileType.TRACE)
    for kind, pattern in _PATTERNS:
        if pattern.search(text):
            return FileKind(kind)
    if text[:1] == b"{" and re.search(rb'"schema"\s*:\s*"[^"]*chakra|"nodes"\s*:\s*\[\s*\{\s*"(id|name)"', text):
        return FileKind(FileType.PROFILER_FILE)
    return FileKind(FileType.JSON)


# An ONNX file begins with its IR version, and goes on with the name of the producer, the graph or another early field.
_ONNX = re.compile(rb"\x08[\x01-\x1f][\x12\x1a\x22\x28\x32\x3a\x42]")


def _archive_kind(file: IO[bytes]) -> FileKind:
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            return _content_kind(archive)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, RuntimeError, EOFError):
        return FileKind(FileType.DAMAGED)


def _content_kind(archive: zipfile.ZipFile) -> FileKind:
    names = archive.namelist()

    def members(pattern: str) -> list[str]:
        return [name for name in names if re.search(pattern, f"/{name}")]

    def content(name: str) -> bytes:
        with archive.open(name) as member:
            return member.read(LARGEST_PART)

    programs = members(r"/models/[^/]+\.json$|/serialized_exported_program\.json$")
    if not programs and members(r"/aotinductor/"):
        return FileKind(FileType.OTHER_MODEL, "an AOTInductor package, which is native code for one kind of machine")
    if programs or members(r"/archive_format$"):
        compiled = any(b"torch.ops.tensorrt" in content(name) for name in programs)
        return FileKind(FileType.TORCH_TENSORRT, COMPILED_PROGRAM) if compiled else FileKind(FileType.EXPORTED)
    if members(r"/constants\.pkl$") and members("/code/"):
        compiled = any(b"torch.classes.tensorrt" in content(name) for name in members(r"/code/.*\.py$"))
        return FileKind(FileType.TORCH_TENSORRT if compiled else FileType.TORCHSCRIPT)
    if pickles := members(r"/data\.pkl$"):
        return _pickle_kind(io.BytesIO(content(pickles[0])))
    if names and all(name.endswith(".npy") for name in names):
        return FileKind(FileType.DATA, "arrays of NumPy (.npz)")
    return FileKind(FileType.ARCHIVE)


# A pickle is named by its opcodes. Nothing is imported or called.

LEGACY = 0x1950A86A20F9469CFC6C  # the number in the first pickle of files that torch.save wrote before PyTorch 1.6
_DICTS = ("collections OrderedDict", "collections defaultdict")
_TENSORS = ("torch._utils _rebuild_", "torch._tensor _rebuild", "torch.serialization _get_layout")


def _pickle_kind(file: IO[bytes]) -> FileKind:
    """Return the kind of a pickle. An old file of ``torch.save`` has three headers before the pickle that counts."""
    names, texts, begin = _read_pickle_words(file)
    if begin == LEGACY:
        names, texts, begin = [_read_pickle_words(file) for _ in range(3)][-1]
    is_dict = begin == "EMPTY_DICT" or names[:1] in ([name] for name in _DICTS)
    if {"_modules", "_parameters"} <= texts:
        return FileKind(FileType.MODULE, "a checkpoint with a pickled module" if is_dict else "")
    if is_dict and {"segments", "device_traces"} <= texts:
        return FileKind(FileType.MEMORY_SNAPSHOT)
    if any(name.startswith(_TENSORS) for name in names):
        return FileKind(FileType.WEIGHTS) if is_dict else FileKind(FileType.PICKLE, "a pickle of tensors without names")
    return FileKind(FileType.PICKLE)


def _read_pickle_words(file: IO[bytes]) -> tuple[list[str], set[str], object]:
    """Return the functions and classes of a pickle, its texts, and its first number or else its first opcode."""
    import pickletools  # which few files need, and every command would load

    names: list[str] = []
    texts: list[str] = []
    begin: object = None
    with suppress(Exception):  # a damaged pickle is named by its beginning
        for opcode, argument, _ in islice(pickletools.genops(file), MOST_OPCODES):
            if begin is None and opcode.name not in ("PROTO", "FRAME"):
                begin = argument if isinstance(argument, int) else opcode.name
            if opcode.name == "GLOBAL":
                names.append(str(argument))
            elif opcode.name == "STACK_GLOBAL":
                names.append(" ".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    return names, {*texts}, begin


PACKED = ("", ".gz", ".xz")  # endings of the files that read_unpacked reads
Form = TypeVar("Form")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically. After a crash it has either all of its old content or all of the new."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_folder(folder: Path, hint: str = "--output with another folder") -> Path:
    """Create ``folder`` if it does not exist, and return it. Raises InferlensError with the ``hint`` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"The folder {folder}", error, hint) from error
    return folder


def read_unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz`` or ``.xz``.

    Raises:
        InferlensError: if it is damaged.
        OSError: if it cannot be read.
    """
    data = path.read_bytes()
    try:
        if path.suffix == ".xz":
            return lzma.decompress(data)
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InferlensError(f"It cannot be unpacked: {error}.") from error


def plain_or_packed(path: Path) -> Path:
    """Return the plain or the packed file, whichever exists; ``path`` if none does."""
    candidates = (path.with_name(path.name + ending) for ending in PACKED)
    return next((file for file in candidates if file.is_file()), path)


def files_under(folder: Path, pattern: str) -> list[Path]:
    """Return all paths below a folder whose names fit ``pattern``, plain or packed, in order."""
    entries = ((parent, name) for parent, folders, names in os.walk(folder) for name in (*folders, *names))
    return sorted(
        Path(parent, name) for parent, name in entries if any(fnmatchcase(name, pattern + ending) for ending in PACKED)
    )


@contextmanager
def open_locked(path: Path) -> Iterator[IO[str]]:
    """Open a file to read and append, and lock it. Wait until no other process has it locked."""
    import fcntl  # not on Windows, where results can be viewed

    with open(path, "a+", encoding="utf-8") as file:
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        file.seek(0)
        yield file


def sha256(*parts: Path | bytes) -> str:
    """Return the hash of files or their content, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        with _open(part) as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


class _Tag(Struct):
    schema: str = ""


def decode_json(data: bytes, form: type[Form], schema: str, noun: str) -> Form:
    """Return ``data`` as ``form``. Raises InferlensError, which names it as ``noun``, for another schema or no JSON."""
    try:
        actual = msgspec.json.decode(data, type=_Tag).schema
        if actual != schema:
            hint = "a version of inferlens that knows it"
            raise InferlensError(f"The {noun} has schema '{actual}'.", expected=schema, hint=hint)
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferlensError(f"This is not a {noun}: {error}.", expected=f"JSON with schema {schema}") from error
