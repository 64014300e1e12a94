"""Reports of events for people, on a terminal."""

from typing import TYPE_CHECKING, Any

from dispatcher.render import Json, cell, clean, facts, number, table, when
from dispatcher.verification.wording import percent, span
from policies.sentences import kw

if TYPE_CHECKING:
    from rich.console import RenderableType


def report_view(report: Json) -> "RenderableType":
    """One event's report: the verdict first, then what it rests on."""
    from rich.console import Group
    from rich.text import Text

    colour = {"met": "bold green", "nothing owed": "bold"}.get(report["verdict"], "bold red")
    window = report["facts"]["window"]
    asked = f"{when(window['start'], seconds=True)} to {when(window['end'], seconds=True)} UTC"
    head = Text.assemble((clean(report["verdict"]), colour), f"  {clean(report['headline'])}")
    event = ("event", f"{report['facts']['event_id']} from {report['facts']['source']}, {report['facts']['region']}")
    if not report["owed"]:
        money = [] if report["settlement"] is None else [_money(report["settlement"])]
        notes = [Text(f"note: {clean(line)}", style="dim") for line in report["caveats"]]
        return Group(head, facts([event, ("was to be", asked)]), *money, *notes)
    parts: list[RenderableType] = [
        head,
        facts(
            [
                event,
                ("measured", f"{asked}; {percent(report['coverage'])} covered, by: {report['metered']['basis']}"),
                ("baseline", f"{report['baseline']['method']} ({report['baseline']['source']})"),
                *_figures(report),
            ]
        ),
        _owed(report),
    ]
    if report["compliance"]:
        parts.append(_compliance(report))
    if report["jobs"]:
        parts.append(_jobs(report))
    if report["settlement"] is not None:
        parts.append(_money(report["settlement"]))
    refused = [f"not possible: {clean(name)}: {clean(why)}" for name, why in report["refused"]]
    return Group(*parts, *(Text(f"note: {clean(line)}", style="dim") for line in (*report["caveats"], *refused)))


def _figures(report: Json) -> list[tuple[str, Any]]:
    made, after, kept = report["delivered"], report["aftermath"], report["tracking"]
    found: list[tuple[str, Any]] = []
    if made is not None:
        energy = made["energy_kwh"]["value"]
        told = f"{kw(made['mean_w']['value'])} mean, {number(energy, 3, 'kWh') or 'unknown'}"
        if made["committed_kwh"]:
            whose = "implied by the limit" if made["committed_by_limit"] else "committed"
            told += f" of {number(made['committed_kwh'], 3, 'kWh')} {whose} ({percent(made['performance'])})"
        found.append(("delivered", told))
    if kept["first_s"] is not None:
        found.append(("at the target after", f"{span(kept['first_s'])} (meter slots {span(kept['resolution_s'])})"))
    if kept["over_cap_kwh"] is not None:
        found.append(("above the limit", f"{number(kept['over_cap_kwh'], 3, 'kWh')}, at most {kw(kept['worst_excess_w'])}"))
    if after is not None and after["snapback"] is not None:
        found.append(("afterwards", f"{percent(after['snapback'])} above the baseline at most"))
    for key, name in (("net_event_kwh", "net with rebound"), ("net_day_kwh", "net over the day")):
        if report[key] is not None:
            figure = report[key]
            found.append((name, f"{number(figure['value'], 3, 'kWh') or 'unknown'} ({percent(figure['coverage'])} known)"))
    return found


def _owed(report: Json) -> "RenderableType":
    made = table("owed from", "to", "judged from", "limit", "commitment", right=["limit", "commitment"])
    for one in report["owed"]:
        made.add_row(
            cell(when(one["start"], seconds=True)),
            cell(when(one["end"], seconds=True)),
            cell(when(one["hold_at"], seconds=True)),
            cell(None if one["limit_w"] is None else kw(one["limit_w"])),
            cell(None if one["committed_w"] is None else kw(one["committed_w"])),
        )
    return made


def _compliance(report: Json) -> "RenderableType":
    made = table("means of", "windows", "measured", "within", "worst", "", right=["windows", "measured", "within", "worst"])
    for one in report["compliance"]:
        told = (
            (None, None, None, None)
            if one["reason"]
            else (one["windows"], one["measured"], one["within"], one["worst_excess_w"])
        )
        worst = None if told[3] is None else f"{kw(told[3])} over" if told[3] > 0 else "not over"
        made.add_row(span(one["window_s"]), *(cell(part) for part in told[:3]), cell(worst), cell(one["reason"]))
    return made


def _jobs(report: Json) -> "RenderableType":
    made = table("tier", "jobs", "work not done", "mean delay", "deadlines missed", right=["jobs", "deadlines missed"])
    for one in report["jobs"]:
        made.add_row(
            cell(one["tier"]),
            cell(one["jobs"]),
            cell(percent(one["lost_throughput"])),
            cell(None if one["delay_mean_s"] is None else span(round(one["delay_mean_s"]))),
            cell(one["deadline_misses"]),
        )
    return made


def _money(settlement: Json) -> "RenderableType":
    money = settlement["currency"]
    made = table(settlement["programme"], "quantity", f"{money} a unit", money, right=["quantity", f"{money} a unit", money])
    for line in settlement["lines"]:
        quantity = None if line["quantity"] is None else number(line["quantity"], 2, line["unit"])
        made.add_row(
            cell(line["name"]), cell(quantity or "unknown"), cell(number(line["rate"], 2)), cell(number(line["amount"], 2))
        )
    total = number(settlement["total"], 2) if settlement["total"] is not None else "unknown"
    made.add_row("total, estimated", "", "", cell(total))
    return made


def flexibility_view(answer: Json) -> "RenderableType":
    """What each place could give: now by how long, and ahead for the longest of these times."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for region in answer["regions"]:
        for place in region["now"]:
            parts += [*_place_now(region["region"], place), Text()]
        if region["ahead"] is None:
            parts.append(Text(f"{clean(region['region'])}, next 24 h: not known: {clean(region['ahead_missing'])}"))
        else:
            parts += [Text(f"{clean(region['region'])}, next 24 h as planned", style="bold"), _ahead(region["ahead"])]
    parts.append(
        Text("Power at the meter, within what the owners of jobs allow; caps act first, pauses give besides.", style="dim")
    )
    return Group(*parts)


def _place_now(region: str, place: Json) -> "list[RenderableType]":
    from rich.text import Text

    name = f"{region} / {place['branch']}" if place["branch"] else region
    drawn = f"draws {kw(place['draw_w'])} ({place['basis']})" if place["draw_w"] is not None else "draw unknown"
    told = f"{name}, now: {drawn}" + (f": {place['reason']}" if place["reason"] else "")
    right = ["caps", "pauses besides", "together", "stays"]
    made = table("for", "caps", "pauses besides", "together", "stays", "pauses take", right=right)
    for one in place["sheds"]:
        left = None if place["draw_w"] is None else kw(max(0.0, place["draw_w"] - one["total_w"]))
        takes = None if one["within_s"] is None else span(one["within_s"])
        row = (span(one["for_s"]), kw(one["caps_w"]), kw(one["pauses_w"]), kw(one["total_w"]), left, takes)
        made.add_row(*(cell(part) for part in row))
    found: list[RenderableType] = [Text(clean(told), style="bold"), made]
    if (stays := place["stays"]) is not None:
        said = [
            ("flex-0", "flex_0_w"),
            ("others at their lowest", "floor_w"),
            ("at rest", "at_rest_w"),
            ("no job's", "other_w"),
        ]
        listed = ", ".join(f"{what} {kw(stays[key])}" for what, key in said)
        found.append(Text(f"whatever is asked stays: {listed}", style="dim"))
    return [*found, *(Text(f"note: {clean(line)}", style="dim") for line in place["notes"])]


def _ahead(slots: list[Json]) -> "RenderableType":
    """By the hour at most: the first slot of each."""
    lengths = [f"{span(one['for_s'])}" for one in slots[0]["sheds"]]
    made = table("from", "planned", *lengths, right=["planned", *lengths])
    hour = None
    for slot in slots:
        if slot["start"][:13] == hour:
            continue
        hour = slot["start"][:13]
        made.add_row(cell(when(slot["start"])), cell(kw(slot["draw_w"])), *(cell(kw(one["total_w"])) for one in slot["sheds"]))
    return made
