"""Tests of WebGPU need an adapter that computes on the CPU, such as Mesa's; without one they are skipped."""

import pytest

from lib.model.hardware.webgpu import SOFTWARE, asked

there_is_one = any(adapter.kind == SOFTWARE for adapter in asked(with_software=True))
needs_software_adapter = pytest.mark.skipif(
    not there_is_one, reason="WebGPU finds no software adapter (pip install wgpu, apt install mesa-vulkan-drivers)"
)
