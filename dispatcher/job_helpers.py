"""The in-job helpers as a Ray package: `dispatcher.client` alone, delivered with each checkpoint job.

So a cluster needs no gridshift installed for a job to be asked for its checkpoint. It knows nothing of clusters.
"""

import io
from pathlib import Path

from dispatcher import client
from dispatcher.packages import PackageStore


def store_helper_package(packages: PackageStore) -> str:
    """Put the package into the store (the same bytes give the same name) and return its ``gcs://`` URI for py_modules."""
    extra = {"dispatcher/__init__.py": b"", "dispatcher/client.py": Path(client.__file__).read_bytes()}
    entries = client.package_entries(None, (), extra)
    name = client.package_name(entries)
    if not packages.verify(name):
        buffer = io.BytesIO()
        client.write_package(entries, buffer)
        packages.put(name, buffer.getvalue())
    return f"gcs://{name}"
