"""From the body of a submission (Ray's fields) to a Job, or to every problem with it. Stores nothing.

It knows Ray's request and our limits; what the ``gridshift.*`` metadata means is policies.flexibility's.
"""

import math
import re
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dispatcher.api.services import Services
from dispatcher.api.strict_json import parse_object
from dispatcher.clusters import Submission
from dispatcher.clusters.ray_http import body_size, submit_body
from dispatcher.config import Config
from dispatcher.errors import BadInput
from dispatcher.launch import GUARDED
from dispatcher.packages import package_names
from dispatcher.store import Job, Request
from policies.fit import never_fits
from policies.flexibility import FlexibilityDefaults, FlexibilityError, deadline_warning, parse_flexibility
from policies.world import Flexibility, JobState

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_ID_RULE = "1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit"
#: Linux hands no longer argument to ``sh -c``, and a guard may be put before it.
MAX_ENTRYPOINT = 131_071 - len(GUARDED)
#: Ray takes no submission above 1 MiB (1,048,576 bytes); the rest is left to what is added at the launch.
MAX_RAY_BYTES = 1_000_000
#: As Ray gets it, escaped and spaced, a submission has at most so many bytes for each that came in.
_GROWS = 5
_MAX_QUANTITY = 1e6
_KNOWN = frozenset(
    {
        "entrypoint",
        "submission_id",
        "job_id",
        "runtime_env",
        "metadata",
        "entrypoint_num_cpus",
        "entrypoint_num_gpus",
        "entrypoint_memory",
        "entrypoint_resources",
        "entrypoint_label_selector",
    }
)

Problem = tuple[str, object, str]


def new_job_id() -> str:
    """A fresh job id."""
    return f"gs-{secrets.token_hex(6)}"


def job_from_body(body: bytes, services: Services, now: datetime) -> Job:
    """The job that a body asks for, not stored yet. Raises BadInput with every problem at once."""
    fields = {key: value for key, value in parse_object(body).items() if value is not None}
    problems: list[Problem] = [
        (name, fields[name], "no such field; known are " + ", ".join(sorted(_KNOWN))) for name in fields if name not in _KNOWN
    ]
    job_id = _job_id(fields, problems)
    request = _request(fields, problems)
    if problems:
        raise BadInput(problems)
    if len(body) * _GROWS > MAX_RAY_BYTES:
        _check_size(request)
    _check_packages(request.runtime_env, services)
    flex = _flexibility(request, services.config, now)
    never = never_fits(flex, services.region_views(), default_region(services.config))
    warning = deadline_warning(flex, now)
    return Job(
        id=job_id or new_job_id(),
        request=request,
        flex=flex,
        state=JobState.QUEUED,
        state_since=now,
        submitted_at=now,
        reason=never or ("submitted" if warning is None else f"submitted; warning: it {warning}"),
    )


def default_region(config: Config) -> str:
    """Where a job without wishes goes; empty without a region."""
    return config.planning.default_region or (config.regions[0].name if config.regions else "")


def _flexibility(request: Request, config: Config, now: datetime) -> Flexibility:
    planning, names = config.planning, [region.name for region in config.regions]
    home = default_region(config)
    defaults = FlexibilityDefaults(
        runtime_s=planning.default_runtime_s,
        gpu_power_w=planning.default_gpu_power_w,
        cpu_power_w=planning.default_cpu_power_w,
        tier=config.region(home).default_tier if home else "",
    )
    try:
        return parse_flexibility(
            request.metadata, now=now, gpus_requested=request.entrypoint_num_gpus, regions=names, defaults=defaults
        )
    except FlexibilityError as error:
        raise BadInput([(problem.field, problem.value, problem.remedy) for problem in error.problems]) from None


def _job_id(fields: Mapping[str, Any], problems: list[Problem]) -> str | None:
    given = {name: fields[name] for name in ("submission_id", "job_id") if name in fields}
    for name, value in given.items():
        if not isinstance(value, str) or not JOB_ID.fullmatch(value):
            problems.append((name, value, f"must be {_ID_RULE}"))
    if len(set(map(str, given.values()))) > 1:
        problems.append(("job_id", fields["job_id"], "is the old name of submission_id; leave it out or make them equal"))
    return next((value for value in given.values() if isinstance(value, str)), None)


def _request(fields: Mapping[str, Any], problems: list[Problem]) -> Request:
    entrypoint = fields.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        problems.append(("entrypoint", entrypoint, "must be the command to run, such as 'python train.py'"))
    elif len(entrypoint.encode("utf-8", "replace")) > MAX_ENTRYPOINT:
        problems.append(("entrypoint", entrypoint, f"must be at most {MAX_ENTRYPOINT} bytes long"))
    memory = fields.get("entrypoint_memory")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or not 0 <= memory < 1 << 63):
        problems.append(("entrypoint_memory", memory, "must be a whole number of bytes"))
    runtime_env = fields.get("runtime_env", {})
    if not isinstance(runtime_env, dict):
        problems.append(("runtime_env", runtime_env, "must be an object"))
    else:
        problems += _runtime_env_problems(runtime_env)
    return Request(
        entrypoint=entrypoint if isinstance(entrypoint, str) else "",
        runtime_env=runtime_env,
        metadata=_strings("metadata", fields.get("metadata", {}), problems),
        entrypoint_num_cpus=_quantity("entrypoint_num_cpus", fields.get("entrypoint_num_cpus"), problems),
        entrypoint_num_gpus=_quantity("entrypoint_num_gpus", fields.get("entrypoint_num_gpus"), problems),
        entrypoint_memory=memory,
        entrypoint_resources=_quantities("entrypoint_resources", fields.get("entrypoint_resources"), problems),
        entrypoint_label_selector=_strings("entrypoint_label_selector", fields.get("entrypoint_label_selector"), problems),
    )


def _runtime_env_problems(runtime_env: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the parts of a runtime_env that are read here; the rest is the cluster's to judge."""
    problems: list[Problem] = []
    if not _are_strings(runtime_env.get("env_vars") or {}):
        problems.append(("runtime_env.env_vars", "...", "must map names to strings"))
    working_dir = runtime_env.get("working_dir")
    if working_dir is not None and not isinstance(working_dir, str):
        problems.append(("runtime_env.working_dir", working_dir, "must be the URI of a package, as text"))
    for name in ("py_modules", "java_jars"):
        listed = runtime_env.get(name)
        if listed is not None and not (isinstance(listed, list) and all(isinstance(one, str) for one in listed)):
            problems.append((f"runtime_env.{name}", listed, "must be a list of URIs of packages, as text"))
    return problems


def _are_strings(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _strings(name: str, value: Any, problems: list[Problem]) -> Any:
    if value is None or _are_strings(value):
        return value
    if not isinstance(value, dict):
        problems.append((name, value, "must be an object with strings as values"))
        return None
    for key, item in value.items():
        if not isinstance(item, str):
            problems.append((f"{name}.{key}", item, "must be a string; put it in quotes"))
    return None


def _quantity(name: str, value: Any, problems: list[Problem]) -> float | None:
    """A number of CPUs, GPUs or of another resource; kept an int when it came as one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_QUANTITY:
        problems.append((name, value, "must be a number, not negative"))
        return None
    return value if math.isfinite(value) else None


def _quantities(name: str, value: Any, problems: list[Problem]) -> dict[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        problems.append((name, value, "must be an object with numbers as values"))
        return None
    checked = {key: _quantity(f"{name}.{key}", item, problems) for key, item in value.items()}
    return {key: item for key, item in checked.items() if item is not None}


def _check_size(request: Request) -> None:
    """Refuse a job that is too large for every Ray there is: none could ever be given it."""
    submission = Submission(
        "",
        request.entrypoint,
        request.runtime_env,
        request.metadata or {},
        entrypoint_resources=request.entrypoint_resources,
        entrypoint_label_selector=request.entrypoint_label_selector,
    )
    total, fields = body_size(submit_body(submission))
    if total <= MAX_RAY_BYTES:
        return
    remedy = (
        f"Ray takes no submission above 1 MiB; keep all its fields together below {MAX_RAY_BYTES:,} bytes of JSON (now "
        f"{total:,}) and put what is large into a file of the working_dir or where the job can read it"
    )
    raise BadInput([(name, f"{size:,} bytes", remedy) for name, size in fields.items()])


def _check_packages(runtime_env: Mapping[str, Any], services: Services) -> None:
    """Refuse a job whose packages are not held: no region could ever be given them."""
    missing = [name for name in package_names(runtime_env) if not services.packages.exists(name)]
    if missing:
        raise BadInput(
            [
                ("runtime_env", f"gcs://{name}", "this package is not held here; upload it first (Ray's client does)")
                for name in missing
            ]
        )
