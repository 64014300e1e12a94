"""The knobs over real HTTP: an operator's own endpoint, and a stub that answers exactly as Ray's dashboard does."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dispatcher.serving.knobs import ConcurrencyKnob, Deployment, KnobError, RayServeKnob

Answer = tuple[int, Any]


class Stub:
    """An HTTP server whose answers a test gives."""

    def __init__(self, answer: Callable[[str, str, Any], Answer]) -> None:
        self.asked: list[tuple[str, str, Any, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
                status, said = answer(self.command, self.path, body)
                text = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_PUT = do_POST = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def stub() -> Iterator[Callable[..., Stub]]:
    made: list[Stub] = []

    def make(answer: Callable[[str, str, Any], Answer]) -> Stub:
        made.append(Stub(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_limit_is_put_and_read_back(stub: Callable[..., Stub]) -> None:
    server = stub(lambda method, path, body: (200, {"max_concurrency": body["max_concurrency"]}))
    knob = ConcurrencyKnob(f"{server.url}/limit", "hush")
    knob.put(64)
    assert server.asked == [("PUT", "/limit", {"max_concurrency": 64}, "Bearer hush")]
    knob.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {"max_concurrency": 32}), "holds max_concurrency 32 where 64 was asked for"),
        ((200, {"max_concurrency": True}), "holds max_concurrency True where 64"),
        ((200, "ok"), "does not answer with the max_concurrency that holds"),
        ((200, [1]), "does not answer with the max_concurrency that holds"),
        ((405, "no such method"), "answers 405 to max_concurrency 64: no such method"),
    ],
)
def test_a_limit_that_does_not_hold_is_an_error(stub: Callable[..., Stub], answer: Answer, said: str) -> None:
    knob = ConcurrencyKnob(stub(lambda *_: answer).url, None)
    with pytest.raises(KnobError, match=said):
        knob.put(64)


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(KnobError, match=r"cannot be asked \(\w+\)"):
        ConcurrencyKnob("http://127.0.0.1:1", None).put(1)


class Serve:
    """Ray Serve 2.60 behind its dashboard: serve_head.py's answers, as far as they are asked for."""

    def __init__(self) -> None:
        self.target, self.enabled = 3, True

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if (method, path) == ("GET", "/api/serve/applications/"):
            replicas = [{"replica_id": str(at), "state": "RUNNING", "pid": 1, "start_time_s": 1.0} for at in range(3)]
            replicas[0]["state"] = "STARTING"
            model = {
                "name": "Model", "status": "HEALTHY", "status_trigger": "CONFIG_UPDATE_COMPLETED", "message": "",
                "deployment_config": {"name": "Model", "num_replicas": 3}, "target_num_replicas": self.target,
                "required_resources": {"CPU": 1.0, "GPU": 2.0}, "replicas": replicas, "recent_dead_replicas": [],
            }  # fmt: skip
            llm = {
                "name": "llm", "route_prefix": "/", "status": "RUNNING", "message": "", "source": "declarative",
                "deployments": {"Model": model}, "external_scaler_enabled": self.enabled,
            }  # fmt: skip
            return 200, {"controller_info": {}, "proxy_location": "Disabled", "applications": {"llm": llm}}
        if method == "POST" and path == "/api/v1/applications/llm/deployments/Model/scale":
            if not self.enabled:
                return 412, {"error": "Cannot update replicas for deployment 'Model' in application 'llm'."}
            self.target = body["target_num_replicas"]
            return 200, {"message": "Scaling request received. Deployment will get scaled asynchronously."}
        if method == "POST":
            return 404, {"error": "Application or Deployment not found"}
        return 404, "404: Not Found"


def test_replicas_are_read_and_scaled_as_ray_serve_has_it(stub: Callable[..., Stub]) -> None:
    serve = Serve()
    server = stub(serve.answer)
    knob = RayServeKnob(server.url, "hush", "llm", "Model")
    assert knob.read() == Deployment(3, 2, 2.0)
    knob.scale(1)
    assert knob.read() == Deployment(1, 2, 2.0)
    scaled = ("POST", "/api/v1/applications/llm/deployments/Model/scale", {"target_num_replicas": 1}, "Bearer hush")
    assert scaled in server.asked
    knob.close()


def test_what_ray_serve_refuses_is_told_with_its_own_words(stub: Callable[..., Stub]) -> None:
    serve = Serve()
    url = stub(serve.answer).url
    for application, deployment, said in [
        ("gone", "Model", "there is no Serve application 'gone' at .*; known are: llm"),
        ("llm", "gone", "llm has no deployment 'gone'; known are: Model"),
    ]:
        with pytest.raises(KnobError, match=said):
            RayServeKnob(url, None, application, deployment).read()
    with pytest.raises(KnobError, match="Ray Serve answers 404 when asked for 2 replicas: Application or Deployment not found"):
        RayServeKnob(url, None, "a/b", "Model").scale(2)
    serve.enabled = False
    knob = RayServeKnob(url, None, "llm", "Model")
    with pytest.raises(KnobError, match="takes no external scaling; deploy it with external_scaler_enabled: true"):
        knob.read()
    with pytest.raises(KnobError, match="answers 412 when asked for 2 replicas: Cannot update replicas"):
        knob.scale(2)


@pytest.mark.parametrize(
    "answer", [(200, "<html>"), (200, []), (200, {"applications": 3}), (501, "Serve dependencies are not installed.")]
)
def test_what_is_no_ray_dashboard_is_told(stub: Callable[..., Stub], answer: Answer) -> None:
    with pytest.raises(KnobError, match=r"does not answer as Ray's dashboard does|answers 501 when asked"):
        RayServeKnob(stub(lambda *_: answer).url, None, "llm", "Model").read()
