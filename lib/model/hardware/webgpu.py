"""Which adapters WebGPU reaches on this machine: graphics cards of any vendor, and software that stands in for one.

What kind an adapter is, is the device that a training runs on: `discrete` and `integrated` GPUs are two devices, and a
machine may have both. `software` is an adapter that computes on the processor (Mesa's llvmpipe, SwiftShader, WARP): it
proves that the kernels are right, and says nothing of a GPU's speed. So it is not used unless `WEBGPU_SOFTWARE=1` asks
for it, as tests do, and its name says what it is. Adapters of a virtual or unknown type are not used at all: nobody can
say whether their seconds are a GPU's.

They are asked in a process of its own, because loading drivers takes half a second and threads of theirs stay behind;
in a worker, which has `wgpu` loaded anyway, without one. Where Linux shows no graphics device at all, nobody is asked.
"""

# pyright: reportMissingImports=false
# `wgpu` is optional: it has no wheel for some systems.

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lib import python_path

SOFTWARE, BROWSER = "software", "browser"
KINDS = {  # and in words
    "discrete": "discrete GPU",
    "integrated": "integrated GPU",
    SOFTWARE: "software adapter",
    BROWSER: "GPU of a browser",  # which does not say of which kind it is; none that Python reaches
}
NO_GPU = "a software adapter computes on the processor, and says nothing of a GPU's speed"
SOFTWARE_ALLOWED = "WEBGPU_SOFTWARE"  # the environment variable
_BY_TYPE: dict[str, str] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": SOFTWARE}  # wgpu's own
# OpenGL would list the same cards once more, with fewer abilities.
_BACKENDS = ("Vulkan", "Metal", "DX12")
_DEVICE_FILES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg")
ASK_S = 20.0


@dataclass(frozen=True)
class Adapter:
    """One adapter, as its driver describes it."""

    kind: str  # one of `KINDS`; another type's own name if it is none of these
    name: str
    vendor: str
    driver: str

    @property
    def is_gpu(self) -> bool:
        """Whether it is a graphics card, discrete or integrated; software and what nobody can place are none."""
        return self.kind in KINDS and self.kind != SOFTWARE

    @property
    def line(self) -> str:
        """All of it in one line, for example “NVIDIA GeForce RTX 4070 (discrete GPU; nvidia, 580.65)”."""
        about = ", ".join(filter(None, (self.vendor, self.driver)))
        return f"{self.name} ({'; '.join(filter(None, (KINDS.get(self.kind, self.kind), about)))})"


def adapters() -> tuple[Adapter, ...]:
    """The first adapter of each kind, software only where it is allowed; empty where there is none, or no `wgpu`."""
    return tuple(one for one in asked(software_allowed()) if software_allowed() or one.kind != SOFTWARE)


def software_allowed() -> bool:
    """Whether `WEBGPU_SOFTWARE` asks for software adapters too."""
    return os.environ.get(SOFTWARE_ALLOWED, "") not in ("", "0")


@cache
def asked(with_software: bool) -> tuple[Adapter, ...]:
    """The first adapter of each kind and type; asked once.

    Args:
        with_software: Also where there can be no other.
    """
    if sys.modules.get("wgpu") is not None:
        found = [described(one) for one in _enumerated()]
    elif not (_installed() and (with_software or _has_device_file())):
        found = []
    else:
        found = _answer()
    return tuple({one.kind: one for one in reversed(found)}.values())[::-1]


def _installed() -> bool:
    try:
        return find_spec("wgpu") is not None
    except (ModuleNotFoundError, ValueError):  # it is hidden, or a stand-in has no spec
        return False


def _has_device_file() -> bool:
    """Whether there can be a GPU; only Linux shows it so cheaply."""
    return sys.platform != "linux" or any(any(Path("/").glob(pattern[1:])) for pattern in _DEVICE_FILES)


def _answer() -> list[Adapter]:
    """What a process of its own finds; nothing where it fails or takes too long."""
    command = [sys.executable, "-m", "lib.model.hardware.webgpu"]
    environment = os.environ | {"PYTHONPATH": python_path()}
    try:
        answer = subprocess.run(command, capture_output=True, timeout=ASK_S, check=True, text=True, env=environment)
        last = answer.stdout.strip().splitlines()[-1]  # a driver may have written before it
        return [Adapter(**one) for one in json.loads(last)]
    except (IndexError, OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []


@cache
def _enumerated() -> tuple[Any, ...]:
    """All adapters, by wgpu. For workers: it loads the drivers."""
    import wgpu
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    # Timestamps in nanoseconds, as in a browser; without the second flag in units of the adapter's own.
    set_instance_extras(backends=_BACKENDS, flags=("Default", "AutomaticTimestampNormalization"))
    return tuple(wgpu.gpu.enumerate_adapters_sync())


def described(adapter: Any) -> Adapter:
    """What a driver says of an adapter, from wgpu's object."""
    info = adapter.info
    kind = _BY_TYPE.get(type_ := str(info["adapter_type"]), type_)
    return Adapter(kind, info["device"], info["vendor"], info["description"])


def open_adapter(kind: str) -> Any:
    """The first adapter of this kind, as wgpu's object. For workers.

    Raises:
        LookupError: There is none.
    """
    for adapter in _enumerated():
        if described(adapter).kind == kind:
            return adapter
    raise LookupError(f"none is among the {len(_enumerated())} adapters that WebGPU reaches here")


if __name__ == "__main__":
    print(json.dumps([asdict(described(one)) for one in _enumerated()]))
