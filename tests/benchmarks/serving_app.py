"""A Ray Serve application whose answers take the CPU that they say: for bench_serving, deployed by Ray Serve itself.

As an engine with continuous batching does, it makes a token for each request at work in turn, so that answers get slower the
more there are, and the less CPU the process gets. A prompt costs as many steps as a fiftieth of its tokens.
"""

import asyncio
import hashlib

from ray import serve
from starlette.requests import Request

#: What a step hashes: about a tenth of a millisecond on a server's core.
STEP = bytes(100_000)
PROMPT_TOKENS_PER_STEP = 50


def steps_of(context_tokens: int, generated_tokens: int) -> int:
    """How many steps an answer takes."""
    return generated_tokens + context_tokens // PROMPT_TOKENS_PER_STEP


def step() -> None:
    """The work of one token."""
    hashlib.sha256(STEP).digest()


@serve.deployment(max_ongoing_requests=10_000)
class Chat:
    """One replica, one core at most."""

    async def __call__(self, request: Request) -> str:
        for _ in range(int(request.query_params["steps"])):
            step()
            await asyncio.sleep(0)
        return "done"


app = Chat.bind()  # type: ignore[attr-defined]  # the decorator's own
