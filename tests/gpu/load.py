"""Puts load on one GPU when told to: the child process of check.py. It measures no power and sets nothing.

It takes lines on standard input, ``matrix SECONDS REST_S``, ``memory SECONDS REST_S`` or ``stop``, and answers with JSON lines.
Their times are seconds of CLOCK_MONOTONIC, which all processes of a machine share. PyTorch does the work, else CuPy, else the
driver with NVRTC.
"""

import ctypes
import ctypes.util
import glob
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The side of the matrices, and the bytes that a memory-bound pass reads and writes.
SIDE, PASS_BYTES = 4096, 2 * 2**30
#: Work is handed over in batches of about so long, so that progress is known and the GPU never waits for us.
_BATCH_S, _TELL_S = 0.1, 0.25

Work = tuple[Callable[[], Any], Callable[[], None], str]


class NotHere(Exception):
    """This way of putting load on a GPU is not possible here; the message says what is missing."""


def tell(**event: object) -> None:
    """One answer."""
    print(json.dumps({"t": time.monotonic(), **event}), flush=True)


# --- ways, each: kind -> (one step, wait for all steps, what a step is) -------------------------------------------


def torch_way() -> tuple[str, Callable[[str], Work]]:
    """PyTorch: bf16 matrix products and copies."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise NotHere("PyTorch is not installed") from error
    if not torch.cuda.is_available():
        raise NotHere("PyTorch sees no CUDA device")
    wait: Callable[[], None] = torch.cuda.synchronize

    def make(kind: str) -> Work:
        if kind == "matrix":
            a = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
            b, out = torch.randn_like(a), torch.empty_like(a)
            return (lambda: torch.matmul(a, b, out=out)), wait, f"bf16 product of {SIDE} x {SIDE} matrices"
        source = torch.ones(PASS_BYTES // 8, device="cuda", dtype=torch.float32)
        target = torch.empty_like(source)
        return (lambda: torch.add(source, 1.0, out=target)), wait, f"pass over {PASS_BYTES} bytes"

    return f"PyTorch {torch.__version__}", make


def cupy_way() -> tuple[str, Callable[[str], Work]]:
    """CuPy: float32 matrix products and copies."""
    try:
        import cupy  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise NotHere("CuPy is not installed") from error
    try:
        cupy.cuda.Device(0).use()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NotHere(f"CuPy sees no CUDA device ({error})") from error
    wait: Callable[[], None] = cupy.cuda.Device(0).synchronize

    def make(kind: str) -> Work:
        if kind == "matrix":
            a = cupy.random.rand(SIDE, SIDE, dtype=cupy.float32)
            b, out = cupy.random.rand(SIDE, SIDE, dtype=cupy.float32), cupy.empty((SIDE, SIDE), cupy.float32)
            return (lambda: cupy.matmul(a, b, out=out)), wait, f"float32 product of {SIDE} x {SIDE} matrices"
        source = cupy.ones(PASS_BYTES // 8, cupy.float32)
        target = cupy.empty_like(source)
        return (lambda: cupy.add(source, 1.0, out=target)), wait, f"pass over {PASS_BYTES} bytes"

    return f"CuPy {cupy.__version__}", make


#: A product by tiles in shared memory, and a pass over memory. Plain CUDA C, so that any toolkit's NVRTC takes it.
SOURCE = r"""
#define TILE 32
extern "C" __global__ void product(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < n; k += TILE) {
        left[threadIdx.y][threadIdx.x] = a[(size_t)row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(size_t)(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    c[(size_t)row * n + column] = sum;
}
extern "C" __global__ void add_one(const float4 *source, float4 *target, size_t n) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float4 v = source[i];
        target[i] = make_float4(v.x + 1.0f, v.y + 1.0f, v.z + 1.0f, v.w + 1.0f);
    }
}
"""


def find_nvrtc() -> str | None:
    """The library of NVRTC: on the loader's path, in a toolkit, or in a Python package; None without one."""
    places = [f"{place}/nvidia/*/lib/libnvrtc.so.*" for place in sys.path if place]
    places += [
        "/usr/local/cuda*/lib64/libnvrtc.so*",
        "/usr/local/cuda*/targets/*/lib/libnvrtc.so*",
        "/opt/cuda*/lib64/libnvrtc.so*",
    ]
    found = ctypes.util.find_library("nvrtc")
    return found or next(
        (
            path
            for place in places
            for path in sorted(glob.glob(place))  # noqa: PTH207 - absolute patterns
            if Path(path).is_file()
        ),
        None,
    )


def compiled(nvrtc: Any, architecture: str) -> bytes:
    """SOURCE as PTX for an architecture such as "compute_80". Raises NotHere with the compiler's words."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.encode(), b"load.cu", 0, None, None):
        raise NotHere("NVRTC cannot make a program")
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    if nvrtc.nvrtcCompileProgram(program, 1, options):
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise NotHere(f"NVRTC does not compile for {architecture}: {log.value.decode(errors='replace')[:300]}")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value


def driver_way() -> tuple[str, Callable[[str], Work]]:
    """The CUDA driver alone, with kernels of our own compiled by NVRTC."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NotHere("there is no CUDA driver (libcuda.so.1)") from error
    path = find_nvrtc()
    if path is None:
        raise NotHere("there is no NVRTC (libnvrtc) to compile a kernel with")
    try:
        nvrtc = ctypes.CDLL(path)
    except OSError as error:
        raise NotHere(f"NVRTC cannot be loaded: {error}") from error

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise NotHere(f"the CUDA driver answers {code} to {name}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    version = []
    for attribute in (75, 76):  # compute capability, major and minor
        number = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        version.append(number.value)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    module = ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), compiled(nvrtc, f"compute_{version[0]}{version[1]}"))

    def function(name: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found

    def floats(count: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(4 * count))
        call("cuMemsetD32_v2", pointer, 0x3F9D70A4, ctypes.c_size_t(count))  # 1.23: zeros would cost less power
        return pointer

    def make(kind: str) -> Work:
        if kind == "matrix":
            what, kernel, grid, block = (
                f"float32 product of {SIDE} x {SIDE} matrices",
                "product",
                (SIDE // 32, SIDE // 32),
                (32, 32),
            )
            values: list[Any] = [floats(SIDE * SIDE) for _ in range(3)] + [ctypes.c_int(SIDE)]
        else:
            what, kernel, grid, block = f"pass over {PASS_BYTES} bytes", "add_one", (4096, 1), (256, 1)
            values = [floats(PASS_BYTES // 8), floats(PASS_BYTES // 8), ctypes.c_size_t(PASS_BYTES // 32)]
        code = function(kernel)
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values))

        def step() -> list[Any]:
            call("cuLaunchKernel", code, *grid, 1, *block, 1, 0, None, arguments, None)
            return values  # which the array of arguments points to

        return step, lambda: call("cuCtxSynchronize"), what

    return f"the CUDA driver and NVRTC ({Path(path).name})", make


# --- running ------------------------------------------------------------------------------------------------------


def any_way() -> tuple[str, Callable[[str], Work]]:
    """The first way that is possible. Raises NotHere with what each lacks."""
    lacking = []
    for way in (torch_way, cupy_way, driver_way):
        try:
            return way()
        except NotHere as reason:
            lacking.append(str(reason))
    raise NotHere("; ".join(lacking))


def run(work: Work, seconds: float, rest_s: float) -> None:
    """Work for ``seconds`` and tell of progress, after a trial and a rest in which the power of the trial falls again, so that
    the start is the work's own."""
    step, wait, what = work
    for _ in range(3):
        step()
    wait()
    began = time.monotonic()
    step()
    wait()
    batch = max(1, round(_BATCH_S / max(time.monotonic() - began, 1e-5)))
    time.sleep(rest_s)
    done, started = 0, time.monotonic()
    tell(event="start", step=what)
    told = started
    while time.monotonic() - started < seconds:
        for _ in range(batch):
            step()
        wait()
        done += batch
        if time.monotonic() - told >= _TELL_S:
            told = time.monotonic()
            tell(event="progress", done=done)
    tell(event="end", done=done)


def main() -> int:
    """Obey standard input until it ends."""
    parent = os.getppid()
    try:
        name, make = any_way()
        made = {kind: make(kind) for kind in ("matrix", "memory")}
    except NotHere as reason:
        tell(event="not_here", reason=str(reason))
        return 0
    except Exception as error:  # noqa: BLE001 - whatever a library says here (out of memory, broken install) is the answer
        tell(event="not_here", reason=f"{type(error).__name__}: {error}"[:400])
        return 0
    tell(event="ready", way=name)
    for line in sys.stdin:
        kind, *numbers = line.split()
        if kind == "stop" or os.getppid() != parent:
            break
        try:
            run(made[kind], *map(float, numbers))
        except Exception as error:  # noqa: BLE001
            tell(event="failed", reason=f"{type(error).__name__}: {error}"[:400])
    return 0


if __name__ == "__main__":
    sys.exit(main())
