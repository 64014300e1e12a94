"""Agents on a Ray cluster: the entrypoint of the job that keeps one detached actor on each node, and that actor.

It is shipped to the cluster with the rest of this package, and runs there under whatever Ray the cluster has. The keeper only
makes actors; they go on without it, and Ray starts one again whose process dies.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import guard
from .node import FolderBusy, Settings, default_state_dir
from .runner import Agent
from .service import set_up_log

log = logging.getLogger("gridshift.agent")

#: Ray's namespace of the actors.
NAMESPACE = "gridshift"
#: The node label that names a node's branch.
BRANCH_LABEL = "gridshift.branch"
#: Variables of the job's environment, which its actors inherit.
URL, REGION, TOKEN = "GRIDSHIFT_AGENT_URL", "GRIDSHIFT_AGENT_REGION", "GRIDSHIFT_AGENT_TOKEN"
#: When this deployment was made: of two, the later one's actors stay.
STAMP = "GRIDSHIFT_AGENT_STAMP"
VERSION = "GRIDSHIFT_AGENT_VERSION"
#: "0" where work of no job of ours may be capped like any other.
PROTECT_FOREIGN = "GRIDSHIFT_AGENT_PROTECT_FOREIGN"
#: Seconds between two looks for new nodes, and between two questions to every actor.
LOOK_S, ASK_S = 1.0, 30.0
#: Seconds that actors have to answer; one that is being started again does not.
ANSWER_S = 10.0
#: Seconds of a look that are spent on answers: those that come later are taken by a later look, for new nodes wait meanwhile.
LISTEN_S = 0.2
#: Seconds between two tries to take over the state folder from an agent that is just ending.
BUSY_AGAIN_S = 1.0


def actor_name(node_id: str) -> str:
    """The name of a node's actor."""
    return f"gridshift-agent-{node_id}"


class NodeAgent:
    """The actor: an agent in a process that Ray keeps alive. Making it never fails, for Ray would give it up for good."""

    def __init__(self, node_id: str, branch: str | None) -> None:
        set_up_log()
        environ = os.environ
        self._settings = Settings(
            server=environ[URL],
            region=environ[REGION],
            token=environ.get(TOKEN),
            state_dir=default_state_dir(),
            node_id=node_id,
            hostname=socket.gethostname(),
            branch=branch,
            ray_node_id=node_id,
            version=environ.get(VERSION),
            protect_foreign=environ.get(PROTECT_FOREIGN, "1") != "0",
        )
        self._agent: Agent | None = None
        self._trouble: str | None = "starting"
        self._stopping = threading.Event()
        threading.Thread(target=self._start, name="start", daemon=True).start()

    def _start(self) -> None:
        while not self._stopping.is_set():
            try:
                self._agent = Agent(self._settings).start()
                guard.start(self._settings.state_dir)  # Ray may be stopped here, and nobody else gives limits back then
                self._trouble = None
                return
            except FolderBusy as error:  # the one before us is still ending, or the machine has an agent of its own
                self._say(str(error))
            except Exception as error:  # noqa: BLE001 - told, and tried again
                self._say(f"{type(error).__name__}: {error}")
            self._stopping.wait(BUSY_AGAIN_S)

    def _say(self, why: str) -> None:
        if why != self._trouble:
            log.warning("the agent cannot start: %s", why)
        self._trouble = why

    def about(self) -> dict[str, Any]:
        """Which deployment it is of, its process, and what keeps it from working (None: nothing)."""
        agent = self._agent
        trouble = self._trouble if agent is None else agent.channel.trouble
        return {"stamp": stamp(os.environ), "pid": os.getpid(), "trouble": trouble}

    def stop(self) -> None:
        """End the agent in order."""
        self._stopping.set()
        if self._agent is not None:
            self._agent.stop()


def stamp(environ: Mapping[str, str]) -> float:
    """When this deployment was made, unix s; 0 where it does not say."""
    try:
        return float(environ.get(STAMP, "0"))
    except ValueError:
        return 0.0


@dataclass(frozen=True)
class RayNode:
    """A node that is alive: its id and its branch."""

    node_id: str
    branch: str | None


def live_nodes(told: list[dict[str, Any]]) -> list[RayNode]:
    """The nodes alive in what ray.nodes() tells."""
    return [
        RayNode(str(node["NodeID"]), (node.get("Labels") or {}).get(BRANCH_LABEL) or None)
        for node in told
        if node.get("Alive") and node.get("NodeID")
    ]


class Replaced(Exception):
    """A later deployment has taken over."""


class Keeper:
    """Makes an actor on each node that has none, and replaces those of earlier deployments. ``ray`` is the module."""

    def __init__(self, ray: Any, own_stamp: float, mono: Callable[[], float] = time.monotonic) -> None:
        self._ray, self._stamp, self._mono = ray, own_stamp, mono
        self._actors: dict[str, Any] = {}
        self._troubles: dict[str, str | None] = {}
        self._asked_s = float("-inf")
        #: Questions that were not answered yet: the actor's node and handle, and when it was asked.
        self._open: dict[Any, tuple[str, Any, float]] = {}

    def look(self) -> None:
        """One look at the cluster. Raises Replaced when the actors of a later deployment are there."""
        nodes = {node.node_id: node for node in live_nodes(self._ray.nodes())}
        for node_id in self._actors.keys() - nodes.keys():
            self._forget(node_id)
        adopted = {}
        for node in nodes.values():
            if node.node_id not in self._actors:
                try:
                    adopted[node.node_id] = self._ray.get_actor(actor_name(node.node_id), namespace=NAMESPACE)
                except ValueError:
                    self._make(node)
        self._actors.update(adopted)
        if self._mono() - self._asked_s >= ASK_S:
            self._asked_s = self._mono()
            adopted = dict(self._actors)
        self._ask(adopted, nodes)

    def _make(self, node: RayNode) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = self._ray.remote(NodeAgent).options(
            name=actor_name(node.node_id),
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=4,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False),
        )
        try:
            self._actors[node.node_id] = actor.remote(node.node_id, node.branch)
            print(f"agent on node {node.node_id}" + (f", branch {node.branch}" if node.branch else ""), flush=True)
        except ValueError as error:  # somebody was faster
            log.warning("no agent was made on node %s: %s", node.node_id, error)

    def _ask(self, actors: Mapping[str, Any], nodes: Mapping[str, RayNode]) -> None:
        """Ask actors which deployment they are of; make those anew that are dead or of an earlier one."""
        now = self._mono()
        self._open |= {handle.about.remote(): (node_id, handle, now) for node_id, handle in actors.items()}
        waiting = list(self._open)
        done, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=LISTEN_S) if waiting else ([], [])
        answered = [(reference, *self._open.pop(reference)[:2]) for reference in done]
        self._open = {reference: one for reference, one in self._open.items() if now - one[2] < ANSWER_S}
        for reference, node_id, handle in answered:
            if self._actors.get(node_id) is not handle or node_id not in nodes:
                continue  # of one that was replaced, or whose node is gone
            try:
                about = self._ray.get(reference)
                theirs = float(about["stamp"])
                self._tell(node_id, about.get("trouble"))
            except self._ray.exceptions.RayActorError as error:
                if is_dead_for_good(self._ray, handle, error):
                    log.warning("the agent of node %s is gone and is made anew: %s", node_id, error)
                    self._replace(nodes[node_id])
                continue
            if theirs > self._stamp:
                raise Replaced(f"agents of a later deployment are on node {node_id}")
            if theirs < self._stamp:
                self._replace(nodes[node_id])

    def _tell(self, node_id: str, trouble: str | None) -> None:
        """Say in the job's log what keeps an agent from its work, when that changes."""
        if trouble != self._troubles.get(node_id):
            print(f"agent on node {node_id}: {trouble or 'works'}", flush=True)
        self._troubles[node_id] = trouble

    def _replace(self, node: RayNode) -> None:
        """A new one in place of the old, whose limits it takes up. Its name is free once Ray has seen it end: next look."""
        handle = self._actors.pop(node.node_id)
        try:
            self._ray.kill(handle, no_restart=True)
        except (ValueError, self._ray.exceptions.RayError) as error:
            log.info("the old agent of node %s: %s", node.node_id, error)

    def _forget(self, node_id: str) -> None:
        """A node that is gone needs no actor, and Ray would wait for it for ever."""
        handle = self._actors.pop(node_id)
        try:
            self._ray.kill(handle, no_restart=True)
        except (ValueError, self._ray.exceptions.RayError) as error:
            log.info("the agent of the node %s that is gone: %s", node_id, error)

    def end_all(self) -> None:
        """End every agent in order: this deployment was stopped on purpose."""
        ending = [handle.stop.remote() for handle in self._actors.values()]
        if ending:
            self._ray.wait(ending, num_returns=len(ending), timeout=ANSWER_S)
        for node_id in list(self._actors):
            self._forget(node_id)


def is_dead_for_good(ray: Any, handle: Any, error: Exception) -> bool:
    """Whether an actor that did not answer will not come back by itself: Ray says unavailable of one that it starts again."""
    unavailable = getattr(ray.exceptions, "ActorUnavailableError", None)
    return unavailable is None or not isinstance(error, unavailable)


def main() -> int:
    """The job's entrypoint: keep an agent on every node until the job is stopped or a later one takes over."""
    import ray

    set_up_log()
    ray.init(namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    keeper = Keeper(ray, stamp(os.environ))
    print(f"keeping agents of region {os.environ.get(REGION)} at {os.environ.get(URL)}", flush=True)
    while not stopped.is_set():
        try:
            keeper.look()
        except Replaced as error:
            print(f"{error}; this one ends", flush=True)
            return 0
        except Exception:
            log.exception("a look at the cluster went wrong; it is tried again")
        stopped.wait(LOOK_S)
    print("stopped: agents end in order", flush=True)
    keeper.end_all()
    return 0
