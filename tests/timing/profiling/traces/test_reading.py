"""A format is told by a file's content; what is none is named; and the reader's process survives what kills it."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.timing.profiling.traces import reading
from lib.timing.profiling.traces.form import Refused, Trace, written
from tests.timing.profiling.traces.files import API_SUM, xspace
from tests.timing.profiling.traces.files import nsight as made

TORCH = Path(__file__).with_name("torch_step.json")


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "b")
    return buffer.getvalue()


def test_each_format_is_told_by_its_content(tmp_path):
    heads = {
        reading.read_events: [b' {"traceEvents": []}', b"[]", b"\x1f\x8b\x08"],
        reading.read_report: [API_SUM.encode(), b"\xef\xbb\xbf" + API_SUM.encode()],
        reading.read_xspace: [xspace({"/host:CPU": {}})],
        reading.read_export: [made(tmp_path / "a.sqlite", 1).read_bytes()[: reading.HEAD]],
        reading._saved: [written(reading.read_events(TORCH, "torch")).encode()],
    }
    for reader, known in heads.items():
        for head in known:
            assert reading.reader_of(head[: reading.HEAD]) is reader


NO_TRACES = {  # by names: a test is told by its parameters, and packed bytes hold the time at which they were made
    "empty": (b"", "it is empty"),
    "blank": (b" \n", "it is empty"),
    "zip": (zipped(), "looks like a ZIP archive"),
    "html": (b"<!DOCTYPE html>", "looks like a page of HTML"),
    "picture": (b"\x89PNG\r\n", "looks like a picture"),
    "pdf": (b"%PDF-1.7", "looks like a PDF"),
    "binary": (b"\x00\x01\x02" * 50, "a binary file of another kind"),
    "text": (b"hello", "no report of nsys stats"),
    "string": (b'"a string"', "no report of nsys stats"),
    "gzipped text": (gzip.compress(b"hello"), "it is gzipped, and of what it holds|no JSON"),
    "gzipped database": (
        gzip.compress(b"SQLite format 3\0" + bytes(4096)),
        "it is gzipped, and what it holds is no JSON",
    ),
    "nsys-rep": (b"NVIDIA Tegra Profiler Report 1..\n\x0bLocal (CLI)", "nsys export --type=sqlite"),
    "qdstrm": (b"QDSS\0\1", "open it in Nsight Systems"),
    "perfetto": (b"\x0a\x61\x32\x5a\x10\x06\x0a\x0a\x08\x06\x10\xc4\xd8\xf0\xd7\xb7\xc9\x01", "traceconv json"),
    "perfetto of a process tree": (b"\x0a\x08\x12\x06\x0a\x04\x08\x01\x10\x00\xd7\xb7", "traceconv json"),
    "speedscope": (b'{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "functions of Python alone"),
    "gzipped rocprofv3": (gzip.compress(b'{"rocprofiler-sdk-tool":[]}'), "a result of rocprofv3"),
    "rocprofv3": (b'{"rocprofiler-sdk-tool":[]}', "a result of rocprofv3"),
    "taken for text": (("\n\ufffd\ufffd\0" * 9).encode(), "taken it for text"),
    "tar": (bytes(257) + b"ustar\0", "an archive of files"),
    "gzipped tar": (gzip.compress(bytes(257) + b"ustar\0"), "an archive of files"),
    "gzipped report": (gzip.compress(b"NVIDIA Tegra Profiler Report"), "nsys export --type=sqlite"),
    "begun only": (b'[{"ph":"B","pid":1,"tid":1,"name":"a","ts":1}]', "events that begin, but none that ends"),
    "counters": (b'[{"ph":"C","pid":1,"name":"a","ts":1,"args":{"x":1}}]', "only counters"),
    "a list of numbers": (b"[1, 2]", "something else than trace events"),
    "nested": (gzip.compress(b'{"traceEvents": [' + b"[" * 500_000), "nested too deeply"),
}


@pytest.mark.parametrize(("content", "why"), NO_TRACES.values(), ids=NO_TRACES)
def test_what_is_no_trace_is_refused_by_what_it_looks_like(tmp_path, content, why):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(Refused, match=why) as refused:
        reading.read(path, "trace.json")
    assert "again" not in str(refused.value), "the same file again would be refused again"


def test_a_report_that_powershell_wrote_is_read(tmp_path):
    path = tmp_path / "report.csv"
    path.write_bytes(API_SUM.encode("utf-16"))
    plain = tmp_path / "plain.csv"
    plain.write_text(API_SUM)
    assert reading.read(path, "a").calls == reading.read(plain, "a").calls


@given(
    st.binary(max_size=300), st.sampled_from([b"", b"{", b"[", b"\n\x20", b"SQLite format 3\0", b"\x1f\x8b", b"Name,"])
)
def test_any_bytes_are_a_trace_or_a_sentence(tmp_path_factory, content, head):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(head + content)
    told = ""
    try:
        assert isinstance(reading.read(path, "any"), Trace)
    except Refused as why:
        told = str(why)
    assert not told or 10 < len(told) < 600


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(Refused, match="cannot be opened"):
        reading.read(tmp_path / "nowhere", "nowhere")
    with pytest.raises(Refused, match="cannot be opened"):
        reading.read(tmp_path, "a folder")
