"""Simulated GPUs: a driver of our own that the real ``pynvml`` and Ray talk to as to NVIDIA's, on a machine without a GPU.

What it says is a model and not a measurement, and it says so: each GPU's name ends in "(simulated)", and the driver's version
holds "gridshift-simulated". It needs a C compiler, once. See driver.c for how the GPUs behave, workload.py for work on them.
"""

from dispatcher.simgpu.build import LIBRARY, build
from dispatcher.simgpu.layout import GpuRecord, ProcessRecord
from dispatcher.simgpu.models import MODELS, Model
from dispatcher.simgpu.state import (
    DRIVER_VERSION,
    NVML_TIMEOUT,
    NVML_UNKNOWN,
    STATE_VARIABLE,
    Moment,
    SimGpu,
    SimGpus,
    environment,
)

__all__ = [
    "DRIVER_VERSION",
    "LIBRARY",
    "MODELS",
    "NVML_TIMEOUT",
    "NVML_UNKNOWN",
    "STATE_VARIABLE",
    "GpuRecord",
    "Model",
    "Moment",
    "ProcessRecord",
    "SimGpu",
    "SimGpus",
    "build",
    "environment",
]
