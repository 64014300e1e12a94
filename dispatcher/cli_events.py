"""``gridshift events explain``: how a demand-response message is understood, without acting and without a control plane."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli_common import json_option, print_json, time_option

if TYPE_CHECKING:
    from dispatcher.dr.explain import Explanation
    from dispatcher.dr.model import Answer
    from dispatcher.dr.site import Site

_PROTOCOLS = ("openadr-3.1", "openadr-3.0", "openadr-2.0b", "standard-webhook", "pointer", "native")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Explain(click.Command):
    """Lets --after take all file names up to the next option, as well as one each time it is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write ``--after A B`` as ``--after A --after B``; the last name is FILE where none stands elsewhere."""
        takes_none = {name for p in self.params if isinstance(p, click.Option) and p.is_flag for name in p.opts} | {
            "-h",
            "--help",
        }
        out: list[str] = []
        run: list[int] = []  # where in ``out`` the names of the last --after stand
        named = False
        index = 0
        while index < len(args):
            word = args[index]
            index += 1
            if word == "--after":
                run = []
                while index < len(args) and not args[index].startswith("-"):
                    run.append(len(out))
                    out += ["--after", args[index]]
                    index += 1
            elif word.startswith("--") and "=" not in word and word not in takes_none:
                out += [word, *args[index : index + 1]]
                index += 1
            else:
                named = named or not word.startswith("-")
                out.append(word)
        if not named and len(run) > 1:
            del out[run[-1]]
        return super().parse_args(ctx, out)


def _finite(_: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value}: must be a finite number", param=option)
    return value


@click.command("explain", cls=_Explain)
@click.option("--protocol", type=click.Choice(_PROTOCOLS), required=True, help="What the file is written in.")
@click.option("--after", multiple=True, type=_FILE, metavar="FILE...", help="Messages received before, in their order.")
@click.option("--now", "now_text", metavar="TIME", help="When it is received (ISO 8601 with offset); default: now.")
@click.option("--load-w", type=click.FloatRange(0, 1e12), callback=_finite, help="The site's load at receipt, W.")
@click.option("--held-version", metavar="V", help="Version of the event that is held already.")
@click.option("--draw-s", type=click.FloatRange(-1e8, 1e8), callback=_finite, help="What was drawn for a random start, s.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    envvar="GRIDSHIFT_WEBHOOK_SECRET",
    help="Secret of signed webhooks; may be given again.",
)
@click.option("--site-config", type=_FILE, help="The site's terms, JSON or TOML.")
@click.argument("file", type=_FILE)
@json_option
def explain(
    protocol: str,
    after: tuple[Path, ...],
    now_text: str | None,
    load_w: float | None,
    held_version: str | None,
    draw_s: float | None,
    secrets: tuple[str, ...],
    site_config: Path | None,
    file: Path,
    as_json: bool,
) -> None:
    """Say how the demand-response message in FILE is understood; nothing is stored and nothing happens.

    A message that is wrong is an answer as well: its state is "rejected", its error says why, and the exit code is 0. Only what
    is wrong with the command itself ends with exit code 2. A file that holds a list is answered by all its events and by the
    limit that binds over time.
    """
    from dispatcher.clock import SystemClock
    from dispatcher.dr.explain import Given
    from dispatcher.dr.explain import explain as explained
    from dispatcher.dr.site import Site

    given = Given(
        now=time_option(now_text, "--now") or SystemClock().now(),
        site=Site() if site_config is None else _site(site_config),
        load_w=load_w,
        draw_s=draw_s,
        secrets=secrets,
        held_version=held_version,
    )
    found = explained(protocol, file.read_bytes(), given, [path.read_bytes() for path in after])
    if as_json:
        print_json(found.json())
    else:
        click.echo("\n".join(_lines(found)))


def _site(path: Path) -> Site:
    import tomllib

    from dispatcher.api.strict_json import parse
    from dispatcher.dr.site import site_from
    from dispatcher.errors import BadInput

    body = path.read_bytes()
    try:
        data: Any = tomllib.loads(body.decode()) if path.suffix == ".toml" else parse(body)
    except (ValueError, BadInput) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--site-config") from None
    try:
        return site_from(data)
    except BadInput as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--site-config") from None


# --- for people -----------------------------------------------------------------------------------------------------


def _lines(found: Explanation) -> list[str]:
    from dispatcher.render import clean

    lines: list[str] = []
    for answer in found.answers:
        lines += [clean(line) for line in _answer_lines(answer)]
    if found.listing:
        from dispatcher.dr.model import kw

        lines.append("binding:" if found.binding else "nothing binds")
        lines += [f"  {_when(start)} to {_when(end)}  at most {kw(limit_w)}" for start, end, limit_w in found.binding]
    return lines


def _answer_lines(answer: Answer) -> list[str]:
    from dispatcher.dr.model import kw, version_json

    who = f"event {answer.event_id}" if answer.event_id is not None else "message"
    facts = [
        f"from {answer.source}" if answer.source is not None else "",
        f"version {version_json(answer.version)}" if answer.version is not None else "",
        f"priority {answer.priority}" if answer.priority is not None else "",
        f"notice {_span(answer.notice_s)}" if answer.notice_s is not None and answer.notice_s > 0 else "",
        f"for {', '.join(answer.targets)}" if answer.targets else "",
    ]
    lines = [f"{who}: {answer.state}", *(["  " + ", ".join(fact for fact in facts if fact)] if any(facts) else [])]
    if answer.message is not None:
        lines.append(f"  error: {answer.code}: {answer.message}")
    for s in answer.segments:
        danger = ", an emergency" if s.emergency else ""
        text = f"  {_when(s.start)} to {_when(s.end)}  at most {kw(s.limit_w)}{danger}  ({s.reason})"
        lines.append(text + (f", ramp {_span(s.ramp_s)}" if s.ramp_s else ""))
    for signal in answer.signals:
        unit = f" {signal.unit}" if signal.unit else ""
        lines.append(f"  {_when(signal.start)} to {_when(signal.end)}  {signal.kind} {signal.value}{unit}")
    for report in answer.reports_due:
        at = "when we choose" if report.at is None else _when(report.at)
        ids = ", ".join(str(i) for i in report.interval_ids)
        lines.append(f"  report {report.payload_type} due {at}, intervals {ids or '-'}")
    return [*lines, *(f"  note: {warning}" for warning in answer.warnings)]


def _when(at: object) -> str:
    from dispatcher.dr.model import iso

    return "open" if at is None else str(iso(at))  # type: ignore[arg-type]


def _span(seconds: float | None) -> str:
    from dispatcher.render import span

    return span(seconds) or "0s"
