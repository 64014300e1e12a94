"""A server of requests that are slow while a batch job works beside it: while the job's file grows, in its first attempt.

It measures its own answers and tells them as Prometheus metrics.
"""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import Gauge, Histogram, generate_latest

port, beside = int(sys.argv[1]), Path(sys.argv[2])
took = Histogram("chat_request_seconds", "Time of a request", buckets=(0.01, 0.1, 1.0))
running = Gauge("chat_running", "Requests at work")


def is_disturbed() -> bool:
    """Whether the job beside has just done something, and is as heavy as it is in its first attempt."""
    try:
        return time.time() - beside.stat().st_mtime < 1.0 and "attempt=2" not in beside.read_text()
    except OSError:
        return False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"hello"
        if self.path == "/metrics":
            body = generate_latest()
        else:
            with took.time(), running.track_inprogress():
                time.sleep(0.2 if is_disturbed() else 0.02)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
