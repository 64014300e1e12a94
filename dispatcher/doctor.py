"""``gridshift doctor``: looks at everything the control plane needs and says in plain words what is wrong and what to do.

It changes nothing but a probe file that it removes again, and decides nothing; what a check cannot see it says it cannot see.
"""

import contextlib
import errno
import importlib.util
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal

import requests

from dispatcher.clock import SystemClock
from dispatcher.config import Config, EventSourceConfig, RegionConfig, load
from dispatcher.config_outside import outside
from dispatcher.config_sections import SIGNALS
from dispatcher.errors import ConfigError, GridshiftError
from dispatcher.status import FLOORS, TOO_LARGE
from policies.sentences import counted
from signals.manners import Manners

Level = Literal["ok", "warn", "fail"]

#: Free space under which a control plane soon stands still, and under which it is worth a word, in bytes.
LOW_SPACE, SOME_SPACE = 200 * 10**6, 2 * 10**9
#: Seconds that a cluster's clock may be off; the Date header has whole seconds.
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 60.0
#: The same for who sends events: seconds count there.
SOURCE_SKEW_S = 2.0
_HTTP_S = (2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, and what to do (empty when nothing)."""

    level: Level
    what: str
    says: str
    remedy: str = ""


def check_config(config: Config) -> Iterator[Finding]:
    """What the file says that is not wrong in itself, and the secrets it points to."""
    name = config.path or "no file, the defaults"
    regions = ", ".join(region.name for region in config.regions) or "none: 'gridshift up' starts a local Ray"
    yield Finding("ok", "config", f"{name}; regions: {regions}")
    for one in outside(config):
        for problem in one.problems():
            yield Finding("fail", "config", problem)
        for file in filter(None, one.files):
            with contextlib.suppress(OSError):
                if Path(file).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                    yield Finding("warn", "config", f"{one.what}: others on this machine can read {file}", f"chmod 600 {file}")
    if config.replay is not None:
        yield Finding(
            "warn",
            "replay",
            f"the clock is a replay from {config.replay.start:%Y-%m-%d %H:%M}Z at {config.replay.speed:g} times the speed",
            "remove [replay] to run live",
        )
    if config.server.public_url == "" and any(not _is_local(region.address) for region in config.regions):
        yield Finding(
            "warn",
            "config",
            f"server.public_url is empty, so jobs on other machines would look for this control plane at {config.public_url()}",
            "set server.public_url to an address that the clusters can reach",
        )


def _is_local(address: str) -> bool:
    return any(f"//{host}" in address for host in ("127.", "localhost", "[::1]"))


def check_data_dir(config: Config) -> Iterator[Finding]:
    """Whether the folder can be written and has room."""
    folder = config.data_dir()
    where = folder
    while not where.exists() and where != where.parent:
        where = where.parent
    try:
        with tempfile.NamedTemporaryFile(dir=where, prefix=".doctor-") as probe:
            probe.write(b"x")
            probe.flush()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = (
            "free some space, or point server.data_dir to a larger disk" if full else "change its owner, or server.data_dir"
        )
        yield Finding("fail", "data", f"{where} cannot be written: {error.strerror}", remedy)
        return
    free = shutil.disk_usage(where).free
    says = f"{folder} is writable{'' if where == folder else ' (made on start)'}; {free / 1e9:.1f} GB free"
    if free < SOME_SPACE:
        level: Level = "fail" if free < LOW_SPACE else "warn"
        yield Finding(level, "data", says, "free some space, or point server.data_dir to a larger disk")
    else:
        yield Finding("ok", "data", says)


def check_database(config: Config) -> Iterator[Finding]:
    """Whether the database answers, has the present schema, can be written, and has the API tokens that are needed."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    from dispatcher.store.engine import database, describe, make_engine, sqlite_path
    from dispatcher.store.migrate import check_revision

    tokens = 0
    try:
        url = database(config.database_url())
    except ConfigError as error:
        yield Finding("fail", "database", str(error))
        return
    where, path = describe(url), sqlite_path(url)
    if path is not None and not path.exists():
        yield Finding("ok", "database", f"{where} is not there yet; it is made on start")
    else:
        engine = make_engine(url, wait_s=2.0, pool_size=1)
        try:
            with engine.execution_options(write=True).connect() as connection, connection.begin() as transaction:
                check_revision(connection, where)
                if path is None and connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on":
                    yield Finding("fail", "database", f"{where} is read-only", "connect to the primary server")
                else:
                    connection.execute(text("UPDATE setting SET value = value WHERE key = 'no such key'"))
                    yield Finding("ok", "database", f"{where} answers, has the present schema and can be written")
                tokens = int(connection.execute(text("SELECT count(*) FROM api_token")).scalar_one())
                transaction.rollback()
        except GridshiftError as error:
            remedy = "it is upgraded on start, or now by 'gridshift db upgrade'" if "db upgrade" in str(error) else ""
            yield Finding(
                "warn" if remedy else "fail", "database", str(error).removesuffix("; run 'gridshift db upgrade'"), remedy
            )
        except (SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            remedy = (
                "if a control plane is busy, ask again" if "locked" in reason else "start it, or correct server.database_url"
            )
            yield Finding("fail", "database", f"{where} cannot be used: {reason}", remedy)
        finally:
            engine.dispose()
    host = config.server.host
    if config.server.is_loopback:
        yield Finding(
            "ok", "access", f"listens on {host} only, {counted(tokens, 'API token')}" if tokens else f"listens on {host} only"
        )
    elif tokens:
        yield Finding("ok", "access", f"listens on {host} with {counted(tokens, 'API token')}")
    else:
        remedy = "gridshift tokens create NAME, or server.host = '127.0.0.1'"
        yield Finding("fail", "access", f"server.host {host} is not loopback and there is no API token", remedy)


def check_port(config: Config, token: str | None = None) -> Iterator[Finding]:
    """Whether the port is free, or held by a control plane already. ``token`` is for its API; None: $GRIDSHIFT_TOKEN."""
    host, port = config.server.host.strip("[]"), config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        yield Finding("ok", "port", f"{host}:{port} is free")
        return
    except OSError as error:
        refusal = error
    ask = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    with contextlib.suppress(requests.RequestException, ValueError):
        token = token or os.environ.get("GRIDSHIFT_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = requests.get(f"http://{ask}:{port}/v1/status", headers=headers, timeout=_HTTP_S)
        body = answer.json()
        if answer.status_code in (200, 401) and isinstance(body, dict) and ("energy_basis" in body or "error" in body):
            yield Finding("ok", "port", f"a gridshift control plane listens on {host}:{port} already")
            yield from _alarms(answer.status_code, body)
            return
    yield Finding(
        "fail", "port", f"cannot listen on {host}:{port}: {refusal.strerror}", "end what uses it, or change server.port"
    )


def _alarms(code: int, status: dict[str, object]) -> Iterator[Finding]:
    """What the control plane that runs wants an operator to know."""
    alarms = status.get("alarms") if code == 200 else None
    if isinstance(alarms, list):
        for alarm in alarms:
            if str(alarm.get("key", "")).startswith("unreachable "):
                remedy = "start that cluster, or correct the region's address; a local Ray comes with 'gridshift up'"
                yield Finding("fail", "alarm", str(alarm["sentence"]), remedy)
                continue
            remedy = "'gridshift fleet' and 'gridshift jobs' show what runs there"
            if alarm.get("key") == TOO_LARGE:
                remedy = "submit it again with less and cancel this one, or give a region what it needs: it waits for that"
            if str(alarm.get("key", "")).startswith(f"{FLOORS} "):
                remedy = "lower floor_gpus or floor_w of [[region.serving]] (or correct gpu_power_w), or give the region more"
            yield Finding("warn", "alarm", str(alarm["sentence"]), remedy)
        if not alarms:
            yield Finding("ok", "alarm", "none stands")
    else:
        yield Finding("warn", "alarm", "that control plane wants an API token to tell its alarms", "set GRIDSHIFT_TOKEN")


def check_control_plane(address: str, token: str | None, now: Callable[[], datetime]) -> Iterator[Finding]:
    """Whether the control plane at ``address`` is there and can work, is of our version, keeps time and takes our API token;
    and what it wants an operator to know."""
    from dispatcher.api.app import our_version
    from dispatcher.client import open_session

    what, token = "control plane", (token or "").strip()
    with open_session(address, token) as http:
        before = now()
        try:
            ready = http.get(f"{address}/readyz", timeout=_HTTP_S, allow_redirects=False)
            after = now()
            status = http.get(f"{address}/v1/status", timeout=_HTTP_S, allow_redirects=False)
        except requests.RequestException as error:
            kind = "did not answer in time" if isinstance(error, requests.Timeout) else "cannot be reached"
            if isinstance(error, requests.exceptions.SSLError):
                kind = "shows a certificate that is not accepted here"
            yield Finding("fail", what, f"{address} {kind}", "start it with 'gridshift serve', or correct --address")
            return
    told, said = _body(ready), _body(status)
    if "ready" not in told or not ("version" in said or "error" in said):
        says = f"{address} answers (HTTP {ready.status_code}), but not as gridshift does"
        yield Finding("fail", what, says, "give the address of the control plane itself, by default port 8700")
        return
    if told["ready"] is True:
        yield Finding("ok", what, f"{address} answers and is ready")
    problems = told.get("problems")
    for problem in problems if isinstance(problems, list) else ():
        yield Finding("fail", what, f"{address}: {problem}", "look at its log, and run 'gridshift doctor' on its machine")
    yield from _skew(what, ready.headers.get("Date"), before, after)
    if status.status_code in (401, 403):
        if token:
            yield Finding("fail", what, f"{address} refuses our API token", "give one that 'gridshift tokens list' there names")
        else:
            yield Finding("fail", what, f"{address} wants an API token", "give --token, or set GRIDSHIFT_TOKEN")
        return
    if status.status_code != 200:
        yield Finding("fail", what, f"{address} does not tell its state: HTTP {status.status_code}", "look at its log")
        return
    theirs, ours = str(said["version"]), our_version()
    accepted = ", takes our API token" if token else ""
    if theirs == ours:
        yield Finding("ok", what, f"version {theirs}{accepted}")
    else:
        yield Finding("warn", what, f"version {theirs}, and this is {ours}{accepted}", "install the same version on both sides")
    yield from _alarms(200, said)


def _body(answer: requests.Response) -> dict[str, Any]:
    """The object that was answered; an empty one for anything else."""
    try:
        value = answer.json()
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def check_region(config: Config, region: RegionConfig, now: Callable[[], datetime]) -> Iterator[Finding]:
    """Whether the cluster answers, takes our token, keeps time and has GPUs."""
    what = f"region {region.name}"
    try:
        token = region.token()
    except ConfigError:  # said under "config"
        return
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    before = now()
    try:
        answer = requests.get(f"{region.address}/api/version", headers=headers, timeout=_HTTP_S, allow_redirects=False)
    except requests.RequestException as error:
        kind = "did not answer in time" if isinstance(error, requests.Timeout) else "cannot be reached"
        yield Finding("fail", what, f"{region.address} {kind}", "start that cluster, or correct the region's address")
        return
    after = now()
    if answer.status_code in (401, 403):
        if token:
            yield Finding(
                "fail", what, f"{region.address} refuses our Ray token", "set the one that the cluster was started with"
            )
        else:
            yield Finding("fail", what, f"{region.address} wants a Ray token", "set token_env or token_file of the region")
        return
    try:
        version = str(answer.json()["ray_version"])
    except (ValueError, KeyError, TypeError):
        says = f"{region.address} answers (HTTP {answer.status_code}), but not as Ray's dashboard does"
        yield Finding("fail", what, says, "give the address of the cluster's dashboard, by default port 8265")
        return
    if "gridshift" in version:
        yield Finding(
            "fail", what, f"{region.address} is a gridshift control plane", "give the address of the Ray cluster itself"
        )
        return
    found, gpus = _gpus(region, token)
    yield Finding("ok", what, f"{region.address} answers: Ray {version}{gpus}{', takes our token' if token else ''}")
    floors = sum(one.floor_gpus for one in region.serving)
    if found is not None and floors > found:
        says = f"floor_gpus of its serving keep {floors} GPUs free and it has {found:g}: no batch job can start there"
        yield Finding("warn", what, says, "lower floor_gpus of [[region.serving]], or add GPUs")
    yield from _skew(what, answer.headers.get("Date"), before, after)


def _gpus(region: RegionConfig, token: str | None) -> tuple[float | None, str]:
    """How many GPUs a cluster has (None: not known), and what is said of them."""
    from dispatcher.clusters.ray_http import RayCluster

    cluster = RayCluster(region.name, region.address, token)
    try:
        found = cluster.info().gpus
    except GridshiftError:
        found = None
    finally:
        cluster.close()
    said = "its GPUs could not be counted" if found is None else counted(found, "GPU")
    return found, f", {said}" + (f", of which batch may use {region.gpus:g}" if region.gpus is not None else "")


def _skew(what: str, date: str | None, before: datetime, after: datetime) -> Iterator[Finding]:
    with contextlib.suppress(ValueError, TypeError):
        theirs = parsedate_to_datetime(date or "")
        # The header has whole seconds: the cluster's clock stood anywhere in [theirs, theirs + 1 s) while we waited.
        ahead = (theirs - after).total_seconds()
        behind = (before - theirs).total_seconds() - 1.0
        off = max(ahead, behind)
        if off > SKEW_WARN_S:
            says = f"its clock is {off:.0f} s {'ahead of' if ahead > behind else 'behind'} ours"
            yield Finding("fail" if off > SKEW_FAIL_S else "warn", what, says, "let both machines take their time from NTP")


def check_feeds(config: Config, region: RegionConfig, now: datetime, manners: Manners | None = None) -> Iterator[Finding]:
    """Each feed of a region, asked once: whether it answers and knows the present. Other regions share the ``manners``."""
    from signals.ingest import Limits, fetch

    if config.replay is not None:
        now = config.replay.start
    limits = Limits(connect_s=3.0, read_s=5.0, total_s=8.0, tries=1)
    manners = manners or Manners()
    for key in SIGNALS:
        chain = region.chain(key)
        if key == "load" and not chain:
            continue  # only a trigger needs it, and configuration asks for it there
        what, usable = f"feed {region.name} {key}", False
        if key == "price" and region.tariff is not None and not region.tariff.tariff(region.name).needs_wholesale:
            yield Finding("ok", what, f"{region.tariff.type} tariff; no feed is needed")
            continue
        if not chain:
            says = f"none is configured, so planning does not know the {key} of {region.name}"
            yield Finding("warn", what, says, f"add a [[region.{key}]]")
            continue
        for spec in chain:
            name = str(spec["feed"])
            result = fetch(
                name,
                spec,
                region=region.name,
                kind=region.signal_kind(key),
                now=now,
                window_start=now - timedelta(hours=2),
                window_end=now + timedelta(hours=24),
                limits=limits,
                manners=manners,
            )
            for warning in result.warnings:
                if "clock" in warning:
                    yield Finding("warn", what, f"{name}: {warning}", "let this machine take its time from NTP")
            until = result.known_until()
            if result.points and key == "price":
                try:
                    config.fx_rate(result.points[0].unit.removesuffix("/MWh"))
                except ConfigError as error:
                    yield Finding("fail", what, f"{name}: {error}")
                    continue
            if until is not None and result.is_fresh(now, 0.0):
                usable = True
                known = f"{name}: known until {until:%Y-%m-%d %H:%M}Z at least"
                if name == "synthetic":
                    yield Finding("warn", what, f"{known}, made up for a first look", f"name a real feed in [[region.{key}]]")
                else:
                    yield Finding("ok", what, known)
            elif result.error is not None:
                remedy = "set the key, or take the feed out" if result.disabled else _feed_remedy(result.error.kind)
                yield Finding("warn", what, f"{name}: {result.error.message}", remedy)
            else:
                last = f"its last ends {until:%Y-%m-%d %H:%M}Z" if until else "it has none at all"
                yield Finding("warn", what, f"{name}: no value for {now:%Y-%m-%d %H:%M}Z; {last}", _feed_remedy("no_data"))
        if not usable:
            yield Finding(
                "fail", what, f"no feed knows the {key} of {region.name} now", "jobs will not be placed by it until one does"
            )


def _feed_remedy(kind: str) -> str:
    return {
        "access": "check the file, or the network, the feed's key and its address",
        "no_data": "wait until it is published, or check the zone and the file's dates",
        "truncated": "ask again; if it stays so, the feed has changed",
    }.get(kind, "check its options; the source may have changed its format")


def check_serving(region: RegionConfig) -> Iterator[Finding]:
    """Each serving of a region, read once: whether its metrics tell what it was promised."""
    from dispatcher.serving.metrics import MetricsError, MetricsReader

    for one in region.serving:
        what, reader = f"serving {region.name} {one.name}", MetricsReader(one, os.environ)
        try:
            readings = reader.read()
        except MetricsError as error:
            yield Finding(
                "fail", what, str(error), "start the server, or correct url, match and the token of [[region.serving]]"
            )
            continue
        finally:
            reader.close()
        if one.loads():
            *readings, load = readings
            if load.wrong:
                yield Finding("warn", what, f"load: {load.wrong}", "correct match, preset, load_gauge or load_counter")
            else:
                yield Finding("ok", what, "load: is read")
        for slo, said in zip(one.slos, readings, strict=True):
            if said.wrong:
                remedy = "correct match, preset or the metric's name; a server may tell of none before its first request"
                yield Finding("warn", what, f"{slo.name}: {said.wrong}", remedy)
            else:
                yield Finding("ok", what, f"{slo.name}: is read")


def check_event_source(source: EventSourceConfig, now: Callable[[], datetime]) -> Iterator[Finding]:
    """Whether an OpenADR sender takes our credentials, has our programs (in 3) and keeps time."""
    from dispatcher.dr.ven2_client import Vtn2Client
    from dispatcher.dr.ven2_messages import query_registration
    from dispatcher.dr.vtn_client import Limits, VtnClient, VtnError

    what = f"event source {source.name}"
    if not source.verify_tls:
        yield Finding("warn", what, "whoever answers at its url is believed (verify_tls = false)", "set ca_file instead")
    limits = Limits(connect_s=2.0, read_s=4.0, total_s=8.0)
    try:
        client = (Vtn2Client if source.protocol == "openadr-2.0b" else VtnClient)(source, now=now, limits=limits)
    except ConfigError as error:
        if "client_secret" not in str(error):  # said under "config"
            yield Finding("fail", what, str(error))
        return
    programs: tuple[dict[str, Any], ...] = ()
    try:
        if isinstance(client, Vtn2Client):
            client.ask("EiRegisterParty", query_registration("doctor"))
        else:
            programs = client.all("/programs").items
    except VtnError as error:
        yield Finding("fail", what, f"{source.url}: {error}", "correct its url and credentials, or ask whoever runs it")
        return
    finally:
        client.close()
    names = {text for program in programs for text in (program.get("id"), program.get("programName"))}
    missing = [name for name in source.programs if name not in names]
    if missing:
        yield Finding("fail", what, f"it has no program {', '.join(missing)} for us", "correct programs, or ask for access")
    elif source.protocol == "openadr-2.0b":
        yield Finding("ok", what, f"{source.url} answers")
    else:
        yield Finding("ok", what, f"{source.url} answers: {len(programs)} program{'s' if len(programs) != 1 else ''}")
    offset = client.offset_s
    if offset is not None and abs(offset) > SOURCE_SKEW_S:
        says = f"its clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours"
        level: Level = "fail" if abs(offset) > source.max_skew_s else "warn"
        yield Finding(level, what, says, "let both machines take their time from NTP")


def check_gpus() -> Iterator[Finding]:
    """The GPUs of this machine, for information: jobs run where the clusters are."""
    if importlib.util.find_spec("pynvml") is None:
        yield Finding("ok", "gpus here", "not looked at: nvidia-ml-py is not installed (pip install 'gridshift[gpu]')")
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Finding("ok", "gpus here", f"none: {error}")
        return
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = ", ".join(_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        yield Finding("ok", "gpus here", f"{len(handles)}: {names}" if handles else "none")
        for i, handle in enumerate(handles):
            try:
                pynvml.nvmlDeviceGetPowerUsage(handle)
            except pynvml.NVMLError as error:
                yield Finding(
                    "warn", "gpus here", f"GPU {i} does not tell its power: {error}", "its energy can only be modelled"
                )
    except pynvml.NVMLError as error:
        yield Finding("warn", "gpus here", f"NVML answers, but not on the GPUs: {error}", "see nvidia-smi and the driver")
    finally:
        pynvml.nvmlShutdown()


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def examine(config: Config, address: str | None = None, token: str | None = None) -> list[Finding]:
    """All checks, those that wait for others side by side; findings in a fixed order. With ``address`` the control plane there
    is looked at too; ``token`` is for its API."""
    clock = SystemClock()
    now = clock.now()
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: check_config(config),
        lambda: check_data_dir(config),
        lambda: check_database(config),
        lambda: check_port(config, token),
    ]
    if address:
        checks.append(lambda: check_control_plane(address, token, clock.now))
    manners = Manners()
    for region in config.regions:
        checks.append(lambda region=region: check_region(config, region, clock.now))  # type: ignore[misc]
        checks.append(lambda region=region: check_feeds(config, region, now, manners))  # type: ignore[misc]
        checks.append(lambda region=region: check_serving(region))  # type: ignore[misc]
    for source in config.event_sources:
        if source.protocol.startswith("openadr-"):
            checks.append(lambda source=source: check_event_source(source, clock.now))  # type: ignore[misc]
    checks.append(check_gpus)
    with ThreadPoolExecutor(max_workers=16) as pool:
        found = [finding for findings in pool.map(lambda check: list(check()), checks) for finding in findings]
    return list(dict.fromkeys(found))  # the control plane that listens here may be the one at the address


def main(config_path: Path | None, as_json: bool, address: str | None = None, token: str | None = None) -> int:
    """Print the findings; 1 when something fails, else 0. ``address`` and ``token`` are as in ``examine``."""
    try:
        findings = examine(load(config_path, os.environ), address, token)
    except ConfigError as error:
        findings = [Finding("fail", "config", line) for line in str(error).splitlines()]
        if "gridshift init" not in findings[-1].says:  # once, not below each of them
            last = findings[-1]
            findings[-1] = replace(
                last, remedy="correct what is named; 'gridshift init FILE' writes an example of every setting"
            )
        if address:
            findings += check_control_plane(address, token, SystemClock().now)
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [asdict(finding) for finding in findings]}, ensure_ascii=False))
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            remedy = f"\n{'':{width + 8}}-> {finding.remedy}" if finding.remedy else ""
            print(f"{finding.level:<4}  {finding.what:<{width}}  {finding.says}{remedy}")
        worst = "something must be done" if failed else "nothing stands in the way"
        print(f"\n{worst}", file=sys.stderr)
    return 1 if failed else 0
