"""Reads a file as a trace, in a process of its own: what anybody may have dropped must not harm who shows it.

Its format is told by its content, never by its name.
"""

import codecs
import re
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from lib.model.hardware.process import MAX_MEMORY_BYTES, answer
from lib.timing.profiling.traces import nsight, profilers
from lib.timing.profiling.traces.form import FORMAT, Refused, Trace, parsed

MAX_SAVED_BYTES = 16 << 20  # of a trace that the page itself saved
HEAD = 4096  # bytes by which a format is told

# What else people drop, by how it begins, and what helps.
_UNPACK = "unpack it, and choose a trace in it"
_NSYS = "make a file that is read: nsys export --type=sqlite FILE"
_FOREIGN = (
    (b"PK\x03\x04", "a ZIP archive", _UNPACK),
    (b"BZh", "compressed with bzip2", _UNPACK),
    (b"\xfd7zXZ", "compressed with xz", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", _UNPACK),
    (b"NVIDIA Tegra Profiler Report", "a report of Nsight Systems itself (.nsys-rep, .qdrep)", _NSYS),
    (b"QDSS", "an unfinished report of Nsight Systems itself (.qdstrm)", f"open it in Nsight Systems, then {_NSYS}"),
    (b"NVR\0", "a report of Nsight Compute", "profile with Nsight Systems: nsys profile --trace=cuda"),
    (b"# tracer:", "a log of Linux' ftrace", "it has no row of a training"),
    (b"\x89PNG", "a picture", ""),
    (b"\xff\xd8\xff", "a picture", ""),
    (b"%PDF", "a PDF", ""),
    (b"<", "a page of HTML or XML", "a trace that is drawn in it can be saved from there as JSON"),
    (b"\x7fELF", "a program", ""),
    (b"\x93NUMPY", "a NumPy array", ""),
)
# JSON without trace events, by a key that it has, and what helps.
_PYTHON_ALONE = "it has functions of Python alone; profile with torch.profiler, jax.profiler or TensorFlow's profiler"
_JSON = (
    (
        rb'speedscope.app/file-format|"\$schema"[^,]{0,80}speedscope',
        "a profile of speedscope, such as py-spy's",
        _PYTHON_ALONE,
    ),
    (rb'"nodes"\s*:.*"(samples|timeDeltas)"|"head"\s*:\s*{"functionName"', "a CPU profile of V8 or Node.js", ""),
    (rb'"(stackTable|preprocessedProfileVersion|libs)"', "a profile of Firefox", ""),
    (
        rb'"rocprofiler-sdk-tool"',
        "a result of rocprofv3",
        "profile with torch.profiler or jax.profiler, which read the card too",
    ),
    (
        rb'"schema"\s*:.{0,40}Chakra|"nodes"\s*:\s*\[\s*{\s*"(id|name)".*"ctrl_deps"',
        "an execution trace of PyTorch, which has no times",
        "",
    ),
    (rb'"cells"\s*:|"nbformat"', "a notebook", ""),
)
_EXPECTED = (
    "expected an .xplane.pb of JAX or TensorFlow, a Chrome or PyTorch trace in JSON, or an export of Nsight Systems as"
    " SQLite or CSV"
)
# An XSpace: its first field is a plane, which has a number or none, and then its name. A trace of Perfetto has packets.
_LENGTH = rb"[\x80-\xff]{0,9}[\0-\x7f]"
_XSPACE = re.compile(rb"\n" + _LENGTH + rb"(\x08" + _LENGTH + rb")?\x12" + _LENGTH + rb"[ -~]{4}")
_PERFETTO = re.compile(rb"\n" + _LENGTH + rb"[\x08-\xff]")
_REPLACED = "\ufffd".encode()  # what a program puts in place of bytes that are no text
_Reader = Callable[[Path, str], Trace]


def reader_of(head: bytes) -> _Reader:
    """What reads a file that begins with these bytes.

    Raises:
        Refused: No format begins like that; the text says what it looks like, and what helps.
    """
    if not head.strip():
        raise Refused("it is empty; stop the profiler, and let it write its file, before the file is copied")
    if head.startswith(b"SQLite format 3\0"):
        return nsight.read_export
    if head.startswith(b"\x1f\x8b"):
        inner = _unpacked(head)
        return _reader_of_json(inner) if _is_text_of_json(inner) else _packed
    looks = next(((words, helps) for begins, words, helps in _FOREIGN if head.startswith(begins)), None)
    if looks is not None:
        raise Refused(f"it looks like {looks[0]}; {looks[1] or _EXPECTED}")
    if head[257:262] == b"ustar":
        raise Refused(f"it looks like an archive of files (tar); {_UNPACK}")
    if _is_text_of_json(head):
        if f'"format":"{FORMAT}"'.encode() in head[:100]:
            return _saved
        return _reader_of_json(head)
    if (head.count(_REPLACED) >= 8 and b"\0" in head) or head.startswith(b"\x1f" + _REPLACED):
        raise Refused(
            "a program has taken it for text and replaced bytes of it, which are lost; copy or download it as a binary"
            " file"
        )
    if _XSPACE.match(head):
        return profilers.read_xspace
    if _PERFETTO.match(head) and (b"\0" in head or _is_no_text(head)):
        raise Refused(
            "it looks like a trace of Perfetto in its binary form; make a file that is read: traceconv json FILE"
            " trace.json (traceconv is from get.perfetto.dev)"
        )
    if b"\0" not in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return nsight.read_report
    raise Refused(f"it is a binary file of another kind; {_EXPECTED}")


def _reader_of_json(head: bytes) -> _Reader:
    known = next(((words, helps) for has, words, helps in _JSON if re.search(has, head, re.DOTALL)), None)
    if known is not None and profilers.EVENTS.encode() not in head:
        raise Refused(f"it is JSON, but {known[0]}; {known[1] or profilers.BY_PROFILERS}")
    return profilers.read_events


def _is_text_of_json(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def _is_no_text(head: bytes) -> bool:
    try:
        head[:-4].decode()
    except UnicodeDecodeError:
        return True
    return False


def _unpacked(head: bytes) -> bytes:
    """The beginning of what is gzipped; JSON where it cannot be told, so that its reader says what is wrong."""
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD) or b"{"
    except zlib.error:
        return b"{"


def _packed(path: Path, title: str) -> Trace:
    with path.open("rb") as file:
        head = _unpacked(file.read(HEAD))
    try:
        reader_of(head)
    except Refused as why:
        raise Refused(f"it is gzipped, and of what it holds: {why}") from None
    raise Refused(f"it is gzipped, and what it holds is no JSON; {_UNPACK}")


def _saved(path: Path, title: str) -> Trace:
    if path.stat().st_size > MAX_SAVED_BYTES:
        raise Refused(
            f"a trace that this page saved has at most {MAX_SAVED_BYTES >> 20} MiB; choose the file as it was saved"
        )
    return parsed(path.read_bytes())


def read(path: Path, title: str) -> Trace:
    """The trace in a file.

    Raises:
        Refused: It cannot be read; the text says what it looks like, and what to do.
    """
    try:
        if path.exists() and not path.is_file():
            raise Refused("it cannot be opened (it is no file)")
        with path.open("rb") as file:
            head = file.read(HEAD)
        return reader_of(head)(path, title)
    except OSError as error:
        raise Refused(f"it cannot be opened ({error.strerror or error})") from None
    except MemoryError:
        raise Refused(f"reading it takes more than {MAX_MEMORY_BYTES >> 30} GiB; record fewer steps") from None
    except RecursionError:
        raise Refused("it is nested too deeply for a trace") from None


def main(connection: Connection) -> None:
    """The reader's process: for each (path, title) that comes, send a `Trace`, or a sentence why there is none."""
    answer(connection, read)
