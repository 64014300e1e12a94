"""Users of a server, in a process of their own: each request is sent when it is due, whether or not others were answered.

``python serving_users.py URL < SCHEDULE > ANSWERS``: a line of the schedule is "due steps", ``due`` in s of time.monotonic();
a line of the answers is "due took status", ``took`` in s from when it was due, so that a late sender hides nothing.
"""

import asyncio
import contextlib
import os
import sys
import time

import aiohttp


async def ask(session: aiohttp.ClientSession, url: str, due: float, steps: int) -> tuple[float, float, int]:
    """Send one request when it is due."""
    await asyncio.sleep(due - time.monotonic())
    try:
        async with session.get(url, params={"steps": steps}) as answer:
            await answer.read()
            status = answer.status
    except (aiohttp.ClientError, TimeoutError):
        status = 0
    return due, time.monotonic() - due, status


async def main(url: str) -> None:
    """All requests."""
    schedule = [(float(due), int(steps)) for due, steps in (line.split() for line in sys.stdin)]
    connector = aiohttp.TCPConnector(limit=0, force_close=False)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        done = await asyncio.gather(*(ask(session, url, due, steps) for due, steps in schedule))
    for due, took, status in done:
        print(f"{due:.4f} {took:.5f} {status}")


if __name__ == "__main__":
    # Users sit at machines of their own: what they measure must not depend on the CPU that is left here.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -19)
    asyncio.run(main(sys.argv[1]))
