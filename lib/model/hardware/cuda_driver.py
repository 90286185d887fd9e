"""What CUDA's driver knows of a card and NVML does not, asked without any library; for workers, which use the card."""

import ctypes
from contextlib import suppress

_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE


def l2_cache_bytes() -> int:
    """Bytes of the L2 cache of the first card that this process may use; 0 where no driver answers."""
    size, device = ctypes.c_int(0), ctypes.c_int(0)
    with suppress(OSError, AttributeError):  # no driver, or one without these functions
        driver = ctypes.CDLL("libcuda.so.1")
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDeviceGetAttribute(ctypes.byref(size), _L2_CACHE_SIZE, device)
        )
        return 0 if failed else max(0, size.value)
    return 0
