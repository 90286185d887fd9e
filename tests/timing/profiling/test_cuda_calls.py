"""What a step calls of CUDA is counted: by the library itself, with a CUPTI that is played, and between two epochs."""

import ctypes
import shutil
import subprocess
import sys

import pytest

from lib.model.spec import Network
from lib.timing.profiling import run
from lib.timing.profiling.harness import Subject
from lib.timing.profiling.request import NotMeasured

# What the library uses of CUPTI; `play` calls as CUDA would.
HEADER = """
#include <stddef.h>
#include <stdint.h>
#define CUPTIAPI
typedef enum { CUPTI_SUCCESS = 0 } CUptiResult;
typedef enum { CUPTI_CB_DOMAIN_DRIVER_API = 1, CUPTI_CB_DOMAIN_RUNTIME_API = 2 } CUpti_CallbackDomain;
typedef enum { CUPTI_API_ENTER = 0, CUPTI_API_EXIT = 1 } CUpti_ApiCallbackSite;
typedef uint32_t CUpti_CallbackId;
typedef void *CUpti_SubscriberHandle;
typedef struct { CUpti_ApiCallbackSite callbackSite; const char *functionName; } CUpti_CallbackData;
typedef void (*CUpti_CallbackFunc)(void *, CUpti_CallbackDomain, CUpti_CallbackId, const void *);
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain);
"""
PLAYED = """
#include "cupti.h"
static CUpti_CallbackFunc told;
static int enabled[3];
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *one, CUpti_CallbackFunc call, void *with) { told = call; return 0; }
CUptiResult cuptiEnableDomain(uint32_t on, CUpti_SubscriberHandle one, CUpti_CallbackDomain domain) {
  enabled[domain] = on;
  return 0;
}
void play(int domain, unsigned id, const char *name) {
  for (int site = 0; site < 2; site++) {
    CUpti_CallbackData data = {site, name};
    if (told && enabled[domain]) told(NULL, domain, id, &data);
  }
}
"""


@pytest.fixture
def played(tmp_path, monkeypatch):
    """The folder of a CUPTI that is played."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    folder = tmp_path / "cupti"
    folder.mkdir()
    (folder / "cupti.h").write_text(HEADER)
    (folder / "played.c").write_text(PLAYED)
    library = str(folder / "libcupti.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, str(folder / "played.c")], check=True)
    monkeypatch.setattr(run, "_places", lambda: [folder])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["nvcc", "gcc"])
def test_the_library_counts_each_call_once_by_its_name(played, tmp_path, monkeypatch, compiler):
    where = shutil.which(compiler)
    if where is None:
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setattr(run.shutil, "which", lambda name: where if name == compiler else None)
    library = ctypes.CDLL(str(run.build(tmp_path)))
    cupti = ctypes.CDLL(str(played / "libcupti.so"))
    cupti.play(2, 3, b"cudaMemcpy")
    assert [library.InitializeInjection(), library.InitializeInjection()] == [1, 1]
    library.clear_counts()
    for _ in range(3):
        cupti.play(2, 211, b"cudaLaunchKernel")
        cupti.play(1, 307, b"cuLaunchKernel")
    cupti.play(1, 5, b"cuMemAlloc")
    cupti.play(1, 100_000, b"cuFuture")
    assert library.write_counts(str(tmp_path / "counts").encode()) == 0
    lines = (tmp_path / "counts").read_text().splitlines()
    assert lines == ["runtime cudaLaunchKernel 3", "driver cuMemAlloc 1", "driver cuLaunchKernel 3"]
    assert library.write_counts(str(tmp_path / "no" / "counts").encode()) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_row_for_each_function_from_a_fresh_process(small_data, monkeypatch, fails):
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('runtime cudaLaunchKernel 3000\\n')"
    program = "raise SystemExit('no card')" if fails else program
    monkeypatch.setattr(run, "build", lambda folder: folder / "library.so")
    real = run.in_a_fresh_process
    monkeypatch.setattr(
        run, "in_a_fresh_process", lambda command, *more: real([sys.executable, "-c", program, command[-1]], *more)
    )
    counted = run.counted("torch", Subject(Network((16,)), 32, small_data, "gpu"))
    if fails:
        with pytest.raises(NotMeasured, match="its process ended with 1: no card"):
            list(counted)
    else:
        rows = [(row[0], row[1].median_s / row[2]) for row in counted if row is not None]
        assert rows == [("runtime/cudaLaunchKernel", 2.0)]


@pytest.mark.slow
def test_the_steps_of_the_second_epoch_are_between_the_two_moments(monkeypatch):
    monkeypatch.setattr(run, "N_TRAIN", 640)
    assert list(run.steps_of_an_epoch("numpy", 32, "16", "cpu")) == ["begins", "ends"]


@pytest.mark.parametrize("lacks", ["compiler", "CUPTI"])
def test_what_is_not_there_is_said(tmp_path, monkeypatch, lacks):
    monkeypatch.setattr(run.shutil, "which", lambda name: None if lacks == "compiler" else name)
    monkeypatch.setattr(run, "_places", list)
    with pytest.raises(
        NotMeasured, match=f"cannot be counted: expected .*{'nvcc' if lacks == 'compiler' else 'CUPTI'}"
    ):
        run.build(tmp_path)
