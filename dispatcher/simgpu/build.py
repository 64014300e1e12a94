"""Compiles driver.c into a folder that can stand in LD_LIBRARY_PATH; once for each source and compiler flags."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dispatcher.errors import GridshiftError

SOURCE = Path(__file__).with_name("driver.c")
#: The name under which every NVML client looks for the driver's library.
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")
COMPILE_LIMIT_S = 120.0


def default_cache_dir() -> Path:
    """Where built libraries are kept: the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gridshift" / "simgpu"


def find_compiler() -> str:
    """The C compiler's path. Raises GridshiftError when there is none."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return found
    raise GridshiftError("simulated GPUs need a C compiler (cc, gcc or clang) on the PATH; install one, e.g.: apt install gcc")


def build(cache_dir: Path | None = None) -> Path:
    """The folder that holds the library, compiled if it is not there yet; safe with several at once.

    Raises GridshiftError when there is no compiler, when it fails, or when the folder cannot be written."""
    cache = cache_dir or default_cache_dir()
    key = hashlib.sha256(SOURCE.read_bytes() + repr((FLAGS, os.uname().machine)).encode()).hexdigest()[:16]
    folder = cache / key
    if (folder / LIBRARY).exists():
        return folder
    compiler = find_compiler()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix="build-", suffix=".so")
    except OSError as error:
        raise GridshiftError(f"cannot write the simulated driver to {folder}: {error.strerror}") from None
    os.close(descriptor)
    try:
        argv = [compiler, *FLAGS, "-o", temporary, str(SOURCE), "-lm"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
        if done.returncode:
            raise GridshiftError(f"{compiler} could not compile the simulated driver: {done.stderr.strip()[-800:]}")
        Path(temporary).chmod(0o755)
        # Renamed into place as a whole: who compiles at the same time replaces it by the same.
        Path(temporary).replace(folder / LIBRARY)
    except subprocess.TimeoutExpired:
        raise GridshiftError(f"{compiler} did not compile the simulated driver within {COMPILE_LIMIT_S:g} s") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    return folder
