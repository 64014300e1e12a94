"""A price site in a process of its own: hours with local labels of Berlin and no offset, as many sites publish them.

``python price_provider.py PORT LATE`` serves /fallback at once and /market with nothing until the asked time is LATE (ISO).
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

BERLIN = ZoneInfo("Europe/Berlin")
CHEAP_LOCAL_HOURS = {"/market": (5, 6), "/fallback": (1, 2)}


def main() -> None:
    """Serve until killed."""
    late = datetime.fromisoformat(sys.argv[2])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            start, end, now = (datetime.fromisoformat(parse_qs(parts.query)[name][0]) for name in ("from", "to", "now"))
            rows = []
            at = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            while at < min(end, late + timedelta(hours=26)) and (parts.path == "/fallback" or now >= late):
                local = at.astimezone(BERLIN)
                # the market is the dearer one by day, so that it is plain whose prices are planned with
                price = 10.0 if local.hour in CHEAP_LOCAL_HOURS[parts.path] else 80.0 + local.hour / 10
                rows.append({"from": local.strftime("%Y-%m-%dT%H:%M"), "price": price})
                at += timedelta(hours=1)
            body = json.dumps({"data": rows}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
