"""RayCluster against a server that answers as we like: what counts as Ray's answer, and what does not."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dispatcher.clusters import RayStatus, Submission, ray_http
from dispatcher.clusters.long_text import LongText
from dispatcher.clusters.ray_http import RayCluster, last_words, parse_gpus, parse_status, submit_body
from dispatcher.errors import ClusterAccessDenied, ClusterUnreachable, LaunchRefused
from tests.helpers import free_port, log_of

SECRET = "very-secret-token"
JOB = {"type": "SUBMISSION", "submission_id": "j-1", "status": "RUNNING", "entrypoint": "x", "message": None}
SUBMISSION = Submission("j-1", "echo", {}, {"a": "b"}, entrypoint_num_gpus=1)
Reply = tuple[int, str] | tuple[int, str, dict[str, str]]


class Server:
    """Answers each "VERB /path" with what ``replies`` holds for it, and remembers what it was asked."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                key = f"{self.command} {self.path}"
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((key, dict(self.headers.items()), body))
                reply = outer.replies.get(key, (404, "<html>not found</html>", {"Content-Type": "text/html"}))
                if callable(reply):
                    reply(self)
                    return
                headers = {"Content-Type": "text/plain", **(reply[2] if len(reply) == 3 else {})}
                data = reply[1].encode()
                self.send_response(reply[0])
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.httpd.server_port}"
        self.thread = threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def json(self, key: str, body: object, status: int = 200) -> None:
        self.replies[key] = (status, json.dumps(body), {"Content-Type": "application/json"})

    def keys(self) -> list[str]:
        return [key for key, _, _ in self.asked]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.httpd.shutdown()
    made.thread.join()
    made.httpd.server_close()


@pytest.fixture
def cluster(server: Server) -> Iterator[RayCluster]:
    made = RayCluster("north", server.address, SECRET, timeout_s=1.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    "reply",
    [
        (404, "<html>404 page not found</html>", {"Content-Type": "text/html"}),
        (404, "404: Not Found"),
        (404, "Job other-1 does not exist"),
        (404, '{"error": "Job j-1 does not exist"}'),
        (200, "OK"),
        (200, "<html>log in</html>", {"Content-Type": "text/html"}),
        (200, "{}"),
        (200, "[]"),
        (200, json.dumps({**JOB, "submission_id": "j-2"})),
        (200, json.dumps({"submission_id": "j-1", "status": "RUNNING"})),
        (500, "Traceback"),
        (502, "bad gateway"),
        (301, "", {"Location": "https://elsewhere/"}),
    ],
)
def test_only_rays_own_answer_counts(server: Server, cluster: RayCluster, reply: Reply) -> None:
    server.replies["GET /api/jobs/j-1"] = reply
    with pytest.raises(ClusterUnreachable, match="not Ray's"):
        cluster.statuses(["j-1"])


def test_rays_404_means_unknown(server: Server, cluster: RayCluster) -> None:
    server.replies["GET /api/jobs/j-1"] = (404, "Job j-1 does not exist")
    assert cluster.statuses(["j-1"]) == {"j-1": None}


def test_a_missing_job_in_a_long_list_is_asked_for_itself(server: Server, cluster: RayCluster) -> None:
    ids = [f"j-{n}" for n in range(1, 21)]
    listed = [{**JOB, "submission_id": sid} for sid in ids[:-1]]
    server.json("GET /api/jobs/", [*listed, {**JOB, "submission_id": None, "type": "DRIVER"}])
    with pytest.raises(ClusterUnreachable):
        cluster.statuses(ids)
    server.replies["GET /api/jobs/j-20"] = (404, "Job j-20 does not exist")
    found = cluster.statuses(ids)
    assert found.pop("j-20") is None
    assert all(status and status.status is RayStatus.RUNNING for status in found.values())


@pytest.mark.parametrize("count", [3, 20])
def test_a_status_that_nobody_here_knows_hides_no_other(server: Server, cluster: RayCluster, count: int) -> None:
    jobs = [{**JOB, "submission_id": f"j-{n}"} for n in range(count)]
    jobs[1]["status"] = "EXPLODED"
    server.json("GET /api/jobs/", [*jobs, {**JOB, "submission_id": "somebody-elses", "status": 7}])
    for job in jobs:
        server.json(f"GET /api/jobs/{job['submission_id']}", job)
    found = cluster.statuses([f"j-{n}" for n in range(count)])
    assert len(found) == count - 1 and "j-1" not in found
    assert all(status is not None and status.status is RayStatus.RUNNING for status in found.values())


@pytest.mark.parametrize("body", [{"jobs": []}, "x", [{"hello": 1}], [5]])
def test_a_list_of_another_shape_is_no_list(server: Server, cluster: RayCluster, body: object) -> None:
    server.json("GET /api/jobs/", body)
    with pytest.raises(ClusterUnreachable, match="not Ray's"):
        cluster.statuses([f"j-{n}" for n in range(20)])


@pytest.mark.parametrize("status", [401, 403])
def test_a_wanted_token_is_said_plainly(server: Server, cluster: RayCluster, status: int) -> None:
    server.replies["GET /api/version"] = (status, "Unauthorized")
    with pytest.raises(ClusterAccessDenied, match="does not accept our token") as caught:
        cluster.info()
    assert SECRET not in str(caught.value)
    bare = RayCluster("north", server.address, None, timeout_s=1.0)
    with pytest.raises(ClusterAccessDenied, match="wants a token, and none is configured"):
        bare.info()
    bare.close()


def test_the_token_goes_in_headers_and_nowhere_else(
    server: Server, cluster: RayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.json("GET /api/version", {"ray_version": "2.60.0", "session_name": "s1"})
    assert cluster.info().session == "s1"
    headers = server.asked[0][1]
    assert headers["Authorization"] == headers["X-Ray-Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in caplog.text


def test_a_redirect_is_not_followed(server: Server, cluster: RayCluster) -> None:
    server.replies["GET /api/version"] = (302, "", {"Location": f"{server.address}/elsewhere"})
    with pytest.raises(ClusterUnreachable, match="redirect"):
        cluster.info()
    assert server.keys() == ["GET /api/version"]


def test_gpus_are_remembered_for_a_while(server: Server, cluster: RayCluster) -> None:
    server.json("GET /api/version", {"ray_version": "2.60.0", "session_name": "s1"})
    nodes = [{"state": "ALIVE", "resources_total": {"GPU": 4.0}}, {"state": "DEAD", "resources_total": {"GPU": 8.0}}]
    server.json("GET /api/v0/nodes?limit=10000", {"data": {"result": {"result": nodes}}})
    assert [cluster.info().gpus for _ in range(3)] == [4.0] * 3
    assert server.keys().count("GET /api/v0/nodes?limit=10000") == 1


def test_gpus_that_cannot_be_read_are_unknown_not_zero(server: Server, cluster: RayCluster) -> None:
    server.json("GET /api/version", {"ray_version": "2.60.0", "session_name": "s1"})
    assert cluster.info().gpus is None
    assert parse_gpus({"data": {"result": {"result": []}}}) is None
    assert parse_gpus({"data": {"result": {"result": [{"state": "ALIVE", "resources_total": {"CPU": 2}}]}}}) == 0.0


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        ((400, "Traceback (most recent call last):\n  File x\nTypeError: bad thing\n"), LaunchRefused, "job: bad thing$"),
        ((413, "Maximum request body size 10 exceeded"), LaunchRefused, "Maximum request body size"),
        (
            (
                500,
                "Traceback (most recent call last):\n  File\nRuntimeError: Request failed with status code 400: "
                "Traceback (most recent call last):\n  File y\nValueError: Invalid label: `a b`.\n.\n",
            ),
            LaunchRefused,
            "Invalid label: `a b`$",
        ),
        (
            (
                500,
                "Traceback (most recent call last):\n  File\nRuntimeError: Request failed with status code 500: "
                "Traceback (most recent call last):\n  File y\n    raise HTTPRequestEntityTooLarge(self._client_max_size)\n"
                "aiohttp.web_exceptions.HTTPRequestEntityTooLarge: Request Entity Too Large\n.\n",
            ),
            LaunchRefused,
            r"Ray takes no body above 1 MiB, and this one has 115 bytes \(metadata 10, entrypoint 6",
        ),
        (
            (500, "Traceback (most recent call last):\n  File\nRuntimeError: Request failed with status code 500: oh.\n"),
            ClusterUnreachable,
            "status code 500: oh$",
        ),
        ((500, "Request Entity Too Large, a proxy says"), ClusterUnreachable, "a proxy says"),
        ((500, "No available agent to submit job, please try again later."), ClusterUnreachable, "No available agent"),
        ((400, "Bad Request: this proxy does not like it"), ClusterUnreachable, "does not like it"),
        ((404, "nope"), ClusterUnreachable, "not Ray's"),
        ((400, "<html>bad</html>", {"Content-Type": "text/html"}), ClusterUnreachable, "not Ray's"),
        ((200, "{}"), ClusterUnreachable, "does not name the submission"),
        ((503, "try later"), ClusterUnreachable, "503"),
    ],
)
def test_answers_to_a_submission(server: Server, cluster: RayCluster, reply: Reply, kind: type[Exception], words: str) -> None:
    server.replies["POST /api/jobs/"] = reply
    with pytest.raises(kind, match=words) as caught:
        cluster.submit(SUBMISSION, {}, maybe_sent=False)
    assert type(caught.value) is kind
    assert "Traceback" not in str(caught.value)


def test_already_there_is_success(server: Server, cluster: RayCluster) -> None:
    text = (
        "Traceback (most recent call last):\nRuntimeError: Request failed with status code 400: Traceback "
        "(most recent call last):\nValueError: Job with submission_id j-1 already exists. Please use a different one.\n."
    )
    server.replies["POST /api/jobs/"] = (500, text)
    with pytest.raises(LaunchRefused, match="j-1 that is not this one"):
        cluster.submit(SUBMISSION, {}, maybe_sent=False)  # never sent before: it is somebody else's
    server.replies["GET /api/jobs/j-1"] = (404, "Job j-1 does not exist")
    cluster.submit(SUBMISSION, {}, maybe_sent=True)
    assert json.loads(server.asked[-1][2]) == {
        "submission_id": "j-1",
        "entrypoint": "echo",
        "runtime_env": {},
        "metadata": {"a": "b"},
        "entrypoint_num_gpus": 1,
    }


def test_a_submission_that_may_have_been_sent_is_asked_for_first(server: Server, cluster: RayCluster) -> None:
    server.json("GET /api/jobs/j-1", JOB)
    cluster.submit(SUBMISSION, {"p.zip": Path("/nonexistent")}, maybe_sent=True)
    assert server.keys() == ["GET /api/jobs/j-1"]


def test_a_package_is_sent_only_where_it_is_missing(server: Server, cluster: RayCluster, tmp_path: Path) -> None:
    file = tmp_path / "p.zip"
    file.write_bytes(b"zip" * 1000)
    server.json("POST /api/jobs/", {"submission_id": "j-1", "job_id": "j-1"})
    server.replies["GET /api/packages/gcs/p.zip"] = (404, "Package gcs://p.zip does not exist")
    server.replies["PUT /api/packages/gcs/p.zip"] = (200, "")
    cluster.submit(SUBMISSION, {"p.zip": file}, maybe_sent=False)
    assert [body for key, _, body in server.asked if key.startswith("PUT")] == [b"zip" * 1000]
    server.replies["GET /api/packages/gcs/p.zip"] = (200, "")
    cluster.submit(SUBMISSION, {"p.zip": file}, maybe_sent=False)
    assert server.keys()[-2:] == ["GET /api/packages/gcs/p.zip", "POST /api/jobs/"]
    server.replies["GET /api/packages/gcs/p.zip"] = (404, "no route")
    with pytest.raises(ClusterUnreachable, match="neither a yes nor a no"):
        cluster.submit(SUBMISSION, {"p.zip": file}, maybe_sent=False)
    server.replies["GET /api/packages/gcs/p.zip"] = (404, "Package gcs://p.zip does not exist")
    server.replies["PUT /api/packages/gcs/p.zip"] = (413, "Maximum request body size 5 exceeded.")
    with pytest.raises(LaunchRefused, match=r"refused package p.zip \(3000 bytes\): Maximum"):
        cluster.submit(SUBMISSION, {"p.zip": file}, maybe_sent=False)


def test_no_connection_was_surely_not_sent() -> None:
    cluster = RayCluster("north", f"http://127.0.0.1:{free_port()}", None, timeout_s=1.0)
    with pytest.raises(ClusterUnreachable, match="no connection") as caught:
        cluster.submit(SUBMISSION, {}, maybe_sent=False)
    assert caught.value.maybe_sent is False


def test_a_cut_connection_may_have_been_sent(server: Server, cluster: RayCluster) -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    server.replies["POST /api/jobs/"] = cut
    with pytest.raises(ClusterUnreachable, match="did not answer") as caught:
        cluster.submit(SUBMISSION, {}, maybe_sent=False)
    assert caught.value.maybe_sent is True
    assert server.keys() == ["POST /api/jobs/"]


def test_an_answer_that_drips_is_given_up(server: Server, cluster: RayCluster) -> None:
    done = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        try:
            while not done.wait(0.02):  # it would take twenty minutes
                handler.wfile.write(b" " * 16)
        except OSError:
            return

    server.replies["GET /api/version"] = drip
    with pytest.raises(ClusterUnreachable, match="in time"):
        cluster.info()
    done.set()


def test_an_answer_that_stops_halfway_is_given_up_once(server: Server, cluster: RayCluster) -> None:
    done = threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.wfile.write(b"x")
        done.wait(10)

    server.replies["GET /api/version"] = stall
    with pytest.raises(ClusterUnreachable, match="in time"):
        cluster.info()
    done.set()
    assert server.keys() == ["GET /api/version"]


def test_a_question_is_asked_again_on_a_connection_that_was_closed(server: Server, cluster: RayCluster) -> None:
    tries = []

    def once(handler: BaseHTTPRequestHandler) -> None:
        tries.append(1)
        server.json("GET /api/jobs/j-1", JOB)
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    server.replies["GET /api/jobs/j-1"] = once
    status = cluster.statuses(["j-1"])["j-1"]
    assert status is not None
    assert status.status is RayStatus.RUNNING
    assert tries == [1]


def test_stop_delete_and_logs(server: Server, cluster: RayCluster) -> None:
    server.json("POST /api/jobs/j-1/stop", {"stopped": False})
    server.json("DELETE /api/jobs/j-1", {"deleted": True})
    server.json("GET /api/jobs/j-1/logs", {"logs": "hé\n"})
    cluster.stop("j-1")
    cluster.delete("j-1")
    assert log_of(cluster, "j-1") == "hé\n"
    server.replies["POST /api/jobs/j-1/stop"] = (404, "nope")
    with pytest.raises(ClusterUnreachable):
        cluster.stop("j-1")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 65536])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_long_text_is_the_same_in_pieces_of_any_size(size: int, ascii_only: bool) -> None:
    whole = 'a "quoted" \\ line\n\ttab é 😀 \x00 \u2028 end\\'
    data = json.dumps({"logs": whole, "more": 1}, ensure_ascii=ascii_only).encode()
    text = LongText("logs")
    pieces = [text.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(pieces) == whole
    assert text.ended


def test_half_a_character_in_a_long_text_is_marked() -> None:
    text = LongText("logs")
    assert text.feed(b'{"logs": "a\\ud83d b\\ud83d"}') == "a\ufffd b\ufffd"
    assert text.ended


@pytest.mark.parametrize("body", [b'{"log": "x"}', b"[1, 2]" + b" " * 300, b'{"logs": null}' + b" " * 300, b"x" * 400])
def test_what_is_no_log_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="'logs'"):
        LongText("logs").feed(body)


def test_a_log_without_an_end_and_an_endless_answer_are_not_rays(
    server: Server, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.replies["GET /api/jobs/j-1/logs"] = (200, '{"logs": "cut o')
    with pytest.raises(ClusterUnreachable, match="no end"):
        log_of(cluster, "j-1")
    monkeypatch.setattr(ray_http, "MAX_ANSWER_BYTES", 1 << 20)
    server.json("GET /api/version", {"ray_version": "2.50.0", "more": "x" * (2 << 20)})
    with pytest.raises(ClusterUnreachable, match="more than 1 MiB"):
        cluster.info()


def test_a_status_keeps_rays_details() -> None:
    status = parse_status(
        {**JOB, "status": "FAILED", "driver_exit_code": 3, "start_time": 1000, "end_time": 2500, "error_type": "E"}
    )
    assert status is not None
    assert (status.exit_code, status.error_type) == (3, "E")
    assert status.started_at is not None
    assert status.ended_at is not None
    assert (status.ended_at - status.started_at).total_seconds() == 1.5
    assert parse_status({**JOB, "end_time": "soon"}) is None


def test_absent_fields_stay_off_the_wire() -> None:
    assert set(submit_body(Submission("a-1", "x", {}, {}))) == {"submission_id", "entrypoint", "runtime_env", "metadata"}
    assert last_words("") == "no reason given"
    assert len(last_words("x" * 1000)) == 300
