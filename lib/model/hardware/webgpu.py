"""WebGPU adapters on this machine: graphics cards of any vendor, and software stand-ins.

An adapter's kind is the device of a training: `discrete` and `integrated` GPUs are two devices, and a machine may have
both. `software` adapters compute on the processor (Mesa's llvmpipe, SwiftShader, WARP): they show that the kernels are
correct, but nothing about a GPU's speed. They are used only if `WEBGPU_SOFTWARE=1`, as in tests, and labelled as
software. Adapters of a virtual or unknown type are never used, because their times may not be a GPU's.

Adapters are listed in a separate process, because loading drivers takes half a second and leaves threads behind. A
worker that has already loaded `wgpu` lists them itself. If Linux shows no graphics device, none are listed unless
software adapters are allowed.
"""

# pyright: reportMissingImports=false
# `wgpu` is optional: it has no wheel for some systems.

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lib import python_path

SOFTWARE, BROWSER = "software", "browser"
KINDS = {  # with a description
    "discrete": "discrete GPU",
    "integrated": "integrated GPU",
    SOFTWARE: "software adapter",
    BROWSER: "GPU of a browser",  # a browser does not report its kind; Python cannot reach it
}
NO_GPU = "a software adapter computes on the CPU and says nothing about a GPU's speed"
SOFTWARE_ALLOWED = "WEBGPU_SOFTWARE"  # an environment variable
_BY_TYPE: dict[str, str] = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": SOFTWARE}  # by wgpu's type
# OpenGL would list the same cards again, with fewer features.
_BACKENDS = ("Vulkan", "Metal", "DX12")
_DEVICE_FILES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg")
ASK_S = 20.0


@dataclass(frozen=True)
class Adapter:
    kind: str  # one of `KINDS`, or wgpu's name for any other type
    name: str
    vendor: str
    driver: str

    @property
    def is_gpu(self) -> bool:
        """Whether it is a graphics card: false for software and for adapters of unknown type."""
        return self.kind in KINDS and self.kind != SOFTWARE

    @property
    def line(self) -> str:
        """All fields in one line, for example “NVIDIA GeForce RTX 4070 (discrete GPU; nvidia, 580.65)”."""
        about = ", ".join(filter(None, (self.vendor, self.driver)))
        return f"{self.name} ({'; '.join(filter(None, (KINDS.get(self.kind, self.kind), about)))})"


def adapters() -> tuple[Adapter, ...]:
    """The first adapter of each kind, software only if allowed; empty without adapters or without `wgpu`."""
    return tuple(one for one in asked(software_allowed()) if software_allowed() or one.kind != SOFTWARE)


def software_allowed() -> bool:
    return os.environ.get(SOFTWARE_ALLOWED, "") not in ("", "0")


@cache
def asked(with_software: bool) -> tuple[Adapter, ...]:
    """The first adapter of each kind and type; cached.

    Args:
        with_software: Look even if only a software adapter can exist.
    """
    if sys.modules.get("wgpu") is not None:
        found = [described(one) for one in _enumerated()]
    else:
        found = _answer() if with_software or _has_device_file() else []
    return tuple({one.kind: one for one in reversed(found)}.values())[::-1]


def _has_device_file() -> bool:
    """Whether there can be a GPU; only Linux offers such a cheap check."""
    return sys.platform != "linux" or any(any(Path("/").glob(pattern[1:])) for pattern in _DEVICE_FILES)


def _answer() -> list[Adapter]:
    """List adapters in a separate process; empty if it fails, as without `wgpu`, or takes too long."""
    command = [sys.executable, "-m", "lib.model.hardware.webgpu"]
    environment = os.environ | {"PYTHONPATH": python_path()}
    try:
        answer = subprocess.run(command, capture_output=True, timeout=ASK_S, check=True, text=True, env=environment)
        last = answer.stdout.strip().splitlines()[-1]  # a driver may have printed earlier lines
        return [Adapter(**one) for one in json.loads(last)]
    except (IndexError, OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []


@cache
def _enumerated() -> tuple[Any, ...]:
    """All adapters, as wgpu objects. For workers, because it loads the drivers."""
    import wgpu
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    # Timestamps in nanoseconds, as in a browser; without the second flag, the adapter's own units.
    set_instance_extras(backends=_BACKENDS, flags=("Default", "AutomaticTimestampNormalization"))
    return tuple(wgpu.gpu.enumerate_adapters_sync())


def described(adapter: Any) -> Adapter:
    """Convert wgpu's adapter object to an `Adapter`."""
    info = adapter.info
    kind = _BY_TYPE.get(type_ := str(info["adapter_type"]), type_)
    return Adapter(kind, info["device"], info["vendor"], info["description"])


def open_adapter(kind: str) -> Any:
    """Return the first adapter of this kind, as a wgpu object. For workers.

    Raises:
        LookupError: There is none.
    """
    for adapter in _enumerated():
        if described(adapter).kind == kind:
            return adapter
    raise LookupError(f"none of the {len(_enumerated())} adapters that WebGPU reaches here is one")


if __name__ == "__main__":
    print(json.dumps([asdict(described(one)) for one in _enumerated()]))
