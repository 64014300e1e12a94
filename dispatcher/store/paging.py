"""Cursors of pages of jobs, and what both stores agree on besides. Knows nothing of where jobs are kept."""

import base64
import binascii
import json
from datetime import datetime

from dispatcher.errors import BadInput
from dispatcher.store import Job
from dispatcher.store.changes import utc

#: Days that a webhook's message id is remembered; senders repeat for up to three days or so.
RECEIPTS_KEPT = 7
#: Lines of one grid event's history that are kept, the latest.
CHANGES_KEPT = 1000
#: The most jobs on one page.
MAX_PAGE = 10_000


def cursor_of(job: Job) -> str:
    """The cursor after ``job``: its place in the order, opaque to callers."""
    place = json.dumps([job.submitted_at.isoformat(), job.id])
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def position_of(cursor: str) -> tuple[datetime, str]:
    """(submitted_at, id) of a cursor. Raises BadInput for one that ``cursor_of`` did not make."""
    try:
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        at, job_id = place
        if not isinstance(job_id, str) or "\x00" in job_id:
            raise ValueError("no job id")
        job_id.encode()
        return utc("cursor", datetime.fromisoformat(at)), job_id
    except (ValueError, TypeError, BadInput, binascii.Error):
        raise BadInput([("cursor", cursor, "pass next_cursor of the page before, unchanged")]) from None


def check_limit(limit: int) -> None:
    """Raise BadInput unless 1 <= limit <= MAX_PAGE."""
    if not 1 <= limit <= MAX_PAGE:
        raise BadInput([("limit", limit, f"must be between 1 and {MAX_PAGE}")])
