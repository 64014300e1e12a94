"""Brings the agents onto each region's cluster: one Ray job that keeps an actor on every node, with our package shipped along.

It submits, and looks whether the job lives; what agents do stands in dispatcher.agent, and this process never joins a cluster.
The submission is noted before it is sent, so that neither a restart of ours nor one of the cluster's makes a second one.
"""

import hashlib
import importlib.util
import io
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from dispatcher import agent, client
from dispatcher.agent import ray_actor
from dispatcher.api.auth import is_loopback
from dispatcher.clusters import RayStatus, Submission
from dispatcher.errors import ClusterUnreachable, GridshiftError, LaunchRefused
from dispatcher.packages import PackageStore
from dispatcher.regions import Region
from dispatcher.store import Store

log = logging.getLogger(__name__)

#: Metadata that marks our job on a cluster: it is nobody's work, and its load is no load.
ROLE, ROLE_AGENTS = "gridshift.role", "agents"
#: Wall seconds between two looks at a region's agents.
LOOK_S = 10.0
#: Wall seconds before a job that ended is followed by the next: doubled each time, up to the longest.
AGAIN_S, AGAIN_MOST_S = 10.0, 600.0
#: A job that lived for so long, wall seconds, did not fail at its start.
LIVED_S = 300.0
#: Answers "no such job" in a row before it is believed.
MISSING_TIMES = 2
#: Numbers that are tried in one go where somebody has used them.
NUMBERS_AT_ONCE = 20
#: What a deployment is made of that the cluster refused, or that was stopped on purpose.
REFUSED, WITHDRAWN = "refused", "withdrawn"
#: Imported by its own name, and not run as a script, so that workers find the actor's class.
ENTRYPOINT = (
    "$(command -v python || command -v python3) -c 'from dispatcher.agent.ray_actor import main; raise SystemExit(main())'"
)


def package_files() -> dict[str, bytes]:
    """What is shipped: the agent and the two libraries that it needs, as names and contents."""
    files = {"dispatcher/__init__.py": b""}
    for path in sorted(Path(agent.__file__).parent.glob("*.py")):
        files[f"dispatcher/agent/{path.name}"] = path.read_bytes()
    pynvml = importlib.util.find_spec("pynvml")
    if pynvml is not None and pynvml.origin is not None:
        files["pynvml.py"] = Path(pynvml.origin).read_bytes()
    else:
        log.warning("nvidia-ml-py is not installed here, so agents use what their nodes have: pip install nvidia-ml-py")
    websockets = importlib.util.find_spec("websockets")
    assert websockets is not None and websockets.origin is not None  # the server extra brings it
    root = Path(websockets.origin).parent
    # Its compiled part is for one Python and machine only, and it does without.
    for path in sorted(root.rglob("*.py")):
        files[f"websockets/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    return files


def store_agent_package(packages: PackageStore) -> str:
    """Put the package into the store (the same contents give the same name) and return its name."""
    entries = client.package_entries(None, (), package_files())
    name = client.package_name(entries)
    if not packages.verify(name):
        buffer = io.BytesIO()
        client.write_package(entries, buffer)
        packages.put(name, buffer.getvalue())
    return name


@dataclass(frozen=True, slots=True)
class Deployment:
    """The agents' job of a region as it was last sent. ``made_of`` tells a deployment from one with other code, address or
    token; ``sent`` is True once the cluster has taken it; ``stamp`` is when it was made, unix s."""

    number: int
    made_of: str
    stamp: float
    sent: bool

    @property
    def submission_id(self) -> str:
        """Its id on the cluster."""
        return f"gridshift-agents-{self.number}"


class AgentDeployer:
    """The agents' job of one region; ``deploy`` is a loop's function. ``wanted`` says whether the region has use for agents."""

    def __init__(
        self,
        region: Region,
        store: Store,
        packages: PackageStore,
        package: str,
        *,
        url: str,
        token: str,
        version: str,
        enabled: bool = True,
        protect_foreign: bool = True,
        wanted: Callable[[], bool] = lambda: True,
        wall: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._region, self._store, self._packages, self._package = region, store, packages, package
        self._url, self._token, self._version = url, token, version
        self._protect_foreign = protect_foreign
        self._enabled, self._wanted, self._wall, self._epoch = enabled, wanted, wall, epoch
        what = f"{package} {url} {region.name} {token}" + ("" if protect_foreign else " all work is capped")
        self._made_of = hashlib.sha256(what.encode()).hexdigest()[:16]
        self._missing = 0
        self._again_s, self._not_before = AGAIN_S, float("-inf")
        self._seen_alive_since: float | None = None
        #: Why there are no agents where there should be, as a sentence; None when all is well or none are wanted.
        self.trouble: str | None = None

    @property
    def _key(self) -> str:
        return f"agents.job {self._region.name}"

    def deploy(self, _: datetime) -> None:
        """Look after the region's agents: submit their job where it is wanted and does not live."""
        held = self._held()
        if not self._enabled:
            self._withdraw(held)
            return
        if not self._region.reachable() or (held is None and not self._wanted()):
            return
        if self._cannot_be_reached():
            return
        try:
            if held is not None and held.made_of == self._made_of and not self._has_ended(held):
                if held.sent:
                    return
                self._send(held, maybe_sent=True)
            elif self._wall() >= self._not_before:
                number, after = (1, 0.0) if held is None else (held.number + 1, held.stamp + 1.0)
                # Later than the one before, whatever the clock says: of two deployments the later one's agents stay.
                self._send(Deployment(number, self._made_of, max(self._epoch(), after), False), maybe_sent=False)
        except ClusterUnreachable as error:
            self._say(f"agents could not be sent to {self._region.name}: {error}")

    def _held(self) -> Deployment | None:
        text = self._store.setting(self._key)
        try:
            return None if text is None else Deployment(**json.loads(text))
        except (ValueError, TypeError):
            log.warning("the note about the agents of %s is damaged; they are sent anew", self._region.name)
            return None

    def _noted(self, deployment: Deployment) -> Deployment:
        """The deployment, once it is durably noted."""
        self._store.set_setting(self._key, json.dumps(asdict(deployment))).result()
        return deployment

    def _has_ended(self, held: Deployment) -> bool:
        """Whether the job that was sent is over. Unknown is not over."""
        status = self._region.cluster.statuses([held.submission_id]).get(held.submission_id)
        if status is None:
            self._missing += 1
            return held.sent and self._missing >= MISSING_TIMES  # its cluster was started anew
        self._missing = 0
        if status.status in (RayStatus.PENDING, RayStatus.RUNNING):
            self._note_alive(held)
            return False
        if self._seen_alive_since is not None or self._not_before == float("-inf"):
            self._note_end(status.message or status.status)
        return True

    def _note_alive(self, held: Deployment) -> None:
        now = self._wall()
        if self._seen_alive_since is None:
            self._seen_alive_since = now
        if now - self._seen_alive_since >= LIVED_S:
            self._again_s = AGAIN_S
        self._say(None)
        if not held.sent:
            self._noted(replace(held, sent=True))

    def _note_end(self, why: str) -> None:
        self._say(f"the agents' job in {self._region.name} ended ({why[:300]}); it is sent again in {self._again_s:g} s")
        self._not_before = self._wall() + self._again_s
        self._again_s = min(2 * self._again_s, AGAIN_MOST_S)
        self._seen_alive_since = None

    def _send(self, deployment: Deployment, *, maybe_sent: bool) -> None:
        """Submit, under the next number where somebody has used this one (a control plane with another database)."""
        packages = {self._package: self._packages.path(self._package)}
        for number in range(deployment.number, deployment.number + NUMBERS_AT_ONCE):
            deployment = self._noted(replace(deployment, number=number, sent=False))
            try:
                self._region.cluster.submit(self._submission(deployment), packages, maybe_sent=maybe_sent)
            except LaunchRefused as error:
                self._noted(replace(deployment, made_of=REFUSED, sent=True))
                sid = deployment.submission_id
                if self._region.cluster.statuses([sid]).get(sid) is None:
                    self._note_end(f"it was refused: {error}")
                    return
                continue
            self._noted(replace(deployment, sent=True))
            self._missing, self._not_before, self._seen_alive_since = 0, float("-inf"), None
            self._say(None)
            log.info("agents were sent to %s as %s", self._region.name, deployment.submission_id)
            return

    def _submission(self, deployment: Deployment) -> Submission:
        env = {
            ray_actor.URL: self._url,
            ray_actor.REGION: self._region.name,
            ray_actor.TOKEN: self._token,
            ray_actor.STAMP: repr(deployment.stamp),
            ray_actor.VERSION: self._version,
            ray_actor.PROTECT_FOREIGN: "1" if self._protect_foreign else "0",
            "RAY_JOB_STOP_WAIT_TIME_S": "30",
        }
        return Submission(
            submission_id=deployment.submission_id,
            entrypoint=ENTRYPOINT,
            runtime_env={"working_dir": f"gcs://{self._package}", "env_vars": env},
            metadata={ROLE: ROLE_AGENTS, "job_name": "gridshift agents"},
        )

    def _withdraw(self, held: Deployment | None) -> None:
        """``deploy = "off"``: a job that was sent is stopped, once, and its agents end in order."""
        self.trouble = None
        if held is None or held.made_of == WITHDRAWN or not self._region.reachable():
            return
        try:
            self._region.cluster.stop(held.submission_id)
        except GridshiftError as error:
            log.warning("the agents of %s could not be stopped: %s", self._region.name, error)
            return
        self._noted(replace(held, made_of=WITHDRAWN, sent=True))

    def _cannot_be_reached(self) -> bool:
        """Whether agents over there could never call us: an address that means their own machine."""
        ours, theirs = (urlsplit(url).hostname or "" for url in (self._url, self._region.config.address))
        if not is_loopback(ours) or is_loopback(theirs):
            return False
        self._say(
            f"agents in {self._region.name} could not reach this control plane at {self._url}: set server.public_url to an "
            "address that the cluster's nodes can reach"
        )
        return True

    def _say(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble


def has_gpus(region: Region) -> bool:
    """Whether the region's cluster told of GPUs at the last look."""
    picture, _, _ = region.picture()
    return picture is not None and (picture.info.gpus or 0.0) > 0.0


def troubles(deployers: Mapping[str, AgentDeployer]) -> list[tuple[str, str | None, str]]:
    """(key, region, sentence) for every region whose agents are not where they should be."""
    return [(f"agents {name}", name, one.trouble) for name, one in deployers.items() if one.trouble is not None]
