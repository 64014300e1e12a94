"""Replicas of a real Ray Serve application: fewer while there is little to do, all of them again at risk."""

from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.config import Config
from dispatcher.serving.knobs import KnobError, RayServeKnob
from dispatcher.serving.tuning import ServingTuning
from dispatcher.serving.watch import ServingStatus, source_of
from dispatcher.store.memory import MemoryStore
from policies.serving import Batch, Level, Risk
from tests.helpers import wait_until
from tests.power.test_power_loop import START
from tests.real.harness import ray_clusters

pytestmark = pytest.mark.real
MET, AT_RISK = Risk("met", 0.0, 0.0, "queue is met"), Risk("at_risk", 2.0, 2.0, "queue is at risk")


def deploy(address: str, *, external: bool) -> None:
    app = {
        "name": "llm",
        "route_prefix": "/",
        "import_path": "scaled_app:app",
        "runtime_env": {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
        "external_scaler_enabled": external,
        "deployments": [{"name": "Model", "num_replicas": 3}],
    }
    answer = requests.put(
        f"{address}/api/serve/applications/", json={"proxy_location": "Disabled", "applications": [app]}, timeout=60
    )
    assert answer.status_code == 200, answer.text


def test_a_real_application_is_scaled_down_and_up_again_and_says_so_itself(short_tmp: Path) -> None:
    pytest.importorskip("ray.serve", reason="ray[serve] is not installed", exc_type=ImportError)
    with ray_clusters(short_tmp, "north") as rays:
        address = rays["north"].address
        with pytest.raises(KnobError, match="there is no Serve application 'llm'"):
            RayServeKnob(address, None, "llm", "Model").read()
        deploy(address, external=True)

        def replicas() -> tuple[int, int]:
            """Wanted and running, by Serve's own API and not by ours."""
            details = requests.get(f"{address}/api/serve/applications/", timeout=10).json()["applications"]["llm"]
            model = details["deployments"].get("Model", {"target_num_replicas": 0, "replicas": []})
            return model["target_num_replicas"], sum(one["state"] == "RUNNING" for one in model["replicas"])

        wait_until(lambda: replicas() == (3, 3), 90, "the application")
        tuning: dict[str, Any] = {"replicas": True, "application": "llm", "deployment": "Model", "max_replicas": 3}
        chat = {
            "name": "chat", "preset": "ray-serve", "source": "metrics", "url": "http://chat/metrics", "load_per_gpu": 10.0,
            "max_gpus": 3, "slo": [{"metric": "queue", "limit": 10}], "tuning": {**tuning, "replicas_down_s": 60},
        }  # fmt: skip
        s, risk, store = 0.0, MET, MemoryStore()
        turned = ServingTuning(
            Config.model_validate({"region": [{"name": "north", "address": address, "serving": [chat]}]}),
            lambda now: [ServingStatus("north", "chat", Level.CALM, now, "", False, (risk,), Batch(0, 0, 0, 0), "")],
            lambda region, name, span: 4.0,
            store,
            mono=lambda: s,
        )
        turned.turn_all()
        for at in (0.0, 300.0, 361.0):
            s = at
            turned.look(START)
        turned.turn_all()
        assert replicas()[0] == 1
        wait_until(lambda: replicas() == (1, 1), 60, "two replicas to end")
        risk, s = AT_RISK, 362.0
        turned.look(START)
        turned.turn_all()
        assert replicas()[0] == 3
        wait_until(lambda: replicas() == (3, 3), 60, "all replicas")
        assert list(turned.alarms(START)) == []
        said = [one.sentence for one in store.grid_event_changes(source_of("north"), "chat")]
        assert len(said) == 2 and said[1].startswith("it has 3 replicas instead of 1: queue is at risk")
        turned.close()

        deploy(address, external=False)
        knob = RayServeKnob(address, None, "llm", "Model")
        with pytest.raises(KnobError, match="takes no external scaling"):
            knob.read()
        with pytest.raises(KnobError, match=r"answers 412 when asked for 2 replicas: .*external_scaler_enabled"):
            knob.scale(2)
