import ast
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import dispatcher.client
from dispatcher.client import Client, ClientError, GridshiftApiError, NotReachable
from tests.client.fake_api import FakeApi, error
from tests.helpers import free_port


def test_submit_sends_the_metadata_keys_as_strings(api: FakeApi, client: Client) -> None:
    job = client.submit(
        ["python", "a b.py"],
        deadline=timedelta(hours=8),
        earliest=datetime(2026, 1, 2, 3, tzinfo=UTC),
        runtime=5400,
        pausable=False,
        regions=["north", "south"],
        gpu_types={"H100": 1, "A100": 0.45},
        max_price=0.0,
        num_gpus=2,
        num_cpus=1,
        resources={"x": 1},
        label_selector={"gpu": "H100"},
        metadata={"owner": "me"},
        submission_id="my-job",
    )
    sent = api.jobs["my-job"]
    assert job.id == "my-job" and job.state == "queued" and job["reason"] == "waits"
    assert sent["entrypoint"] == "python 'a b.py'"
    assert sent["metadata"] == {
        "owner": "me",
        "gridshift.deadline": "28800",
        "gridshift.earliest": "2026-01-02T03:00:00+00:00",
        "gridshift.runtime": "5400",
        "gridshift.pausable": "no",
        "gridshift.regions": "north,south",
        "gridshift.gpu_types": "H100:1,A100:0.45",
        "gridshift.max_price": "0.0",
    }
    assert (sent["entrypoint_num_gpus"], sent["entrypoint_num_cpus"]) == (2, 1)
    assert (sent["entrypoint_resources"], sent["entrypoint_label_selector"]) == ({"x": 1}, {"gpu": "H100"})
    assert "runtime_env" not in sent and "entrypoint_memory" not in sent


def test_a_job_without_wishes_has_no_metadata_and_an_id_of_ours(api: FakeApi, client: Client) -> None:
    job = client.submit("true")
    assert job.id.startswith("gs-") and len(job.id) == 15
    assert set(api.jobs[job.id]) >= {"entrypoint", "submission_id"} and "metadata" not in api.jobs[job.id]


def test_problems_are_told_with_field_value_and_remedy(client: Client) -> None:
    with pytest.raises(GridshiftApiError) as caught:
        client.submit("true", deadline="yesterday")
    assert caught.value.status == 422
    assert caught.value.problems == [{"field": "gridshift.deadline", "value": "yesterday", "remedy": "give a time to come"}]
    assert "gridshift.deadline: 'yesterday': give a time to come" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"deadline": "8h", "metadata": {"gridshift.deadline": "9h"}}, "deadline"),
        ({"working_dir": "/nowhere/at/all"}, "working_dir"),
        ({"working_dir": "a", "runtime_env": {"working_dir": "b"}}, "working_dir"),
        ({"runtime_env": {"py_modules": ["./mine"]}}, "runtime_env.py_modules"),
    ],
)
def test_what_the_client_itself_refuses_is_never_sent(api: FakeApi, client: Client, arguments: dict, field: str) -> None:
    with pytest.raises(GridshiftApiError) as caught:
        client.submit("true", **arguments)
    assert [p["field"] for p in caught.value.problems] == [field]
    assert api.requests == []


def test_a_lost_answer_does_not_make_a_second_job(api: FakeApi, client: Client) -> None:
    api.drop_answers = 1
    job = client.submit("true")
    assert list(api.jobs) == [job.id]
    assert [r[:2] for r in api.requests] == [("POST", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", f"/v1/jobs/{job.id}")]


def test_an_id_that_was_taken_before_is_an_error(client: Client) -> None:
    client.submit("true", submission_id="a")
    with pytest.raises(GridshiftApiError, match="exists already"):
        client.submit("true", submission_id="a")


def test_list_goes_through_the_pages_as_needed(api: FakeApi, client: Client) -> None:
    for i in range(205):
        api.jobs[f"j{i}"] = {"id": f"j{i}", "state": "queued"}
    assert [job.id for job in client.list()] == [f"j{i}" for i in range(205)]
    assert len(api.requests) == 3
    assert len(list(client.list(limit=101))) == 101
    assert list(client.list(state="failed")) == []


def test_cancel_pause_resume_logs_events(api: FakeApi, client: Client) -> None:
    job = client.submit("true")
    api.logs[job.id] = "one\ntwo\n"
    job.pause()
    assert job["held"] is True
    job.resume()
    with pytest.raises(GridshiftApiError, match="is not held"):
        client.resume(job.id)
    assert job.logs() == "one\ntwo\n"
    assert [e["kind"] for e in job.events()] == ["submitted"]
    job.cancel()
    assert job.wait(timeout=1) == "cancelled" and job.ended


def test_wait_times_out_with_the_reason(client: Client) -> None:
    job = client.submit("true")
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.2 s; it is queued: waits"):
        client.wait(job, timeout=0.2)


def test_wait_rides_out_a_restart_of_the_control_plane(api: FakeApi, client: Client) -> None:
    import threading

    job = client.submit("true")
    api.stop()

    def back() -> None:
        api.finish(job.id, "succeeded")
        api.start()

    timer = threading.Timer(0.5, back)
    timer.start()
    assert client.wait(job, timeout=20).state == "succeeded"
    timer.join()


def test_not_reachable_says_where_and_what() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(NotReachable, match=f"gridshift at {address} does not answer"):
        Client(address).submit("true")


def test_the_token_is_sent_and_stays_home(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.token = "s3cret"
    with pytest.raises(GridshiftApiError, match="a token is needed") as caught:
        next(Client(api.address).list(), None)
    assert caught.value.status == 401
    client = Client(api.address, "s3cret")
    assert list(client.list()) == []
    assert b"s3cret" not in pickle.dumps(client) and "s3cret" not in repr(client)
    monkeypatch.setenv("GRIDSHIFT_ADDRESS", api.address)
    monkeypatch.setenv("GRIDSHIFT_TOKEN", "s3cret")
    assert list(pickle.loads(pickle.dumps(client)).list()) == []


def test_what_surrounds_a_token_does_not_matter(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.token = "s3cret"
    assert list(Client(api.address, token=" s3cret\n").list()) == []
    monkeypatch.setenv("GRIDSHIFT_TOKEN", "s3cret\r\n")
    assert list(Client(api.address).list()) == []


@pytest.mark.parametrize("token", ["s3cret\ns3cret", "s3cret\x00", "s3cret\x7f1", "s3cret\u20ac", "s3cret\udcff", "s3\x85cret"])
def test_a_token_that_cannot_be_sent_is_named_and_not_told(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClientError, match=r"^bad input\ntoken: '\(not shown\)': has characters") as caught:
        Client("http://127.0.0.1:1", token=token)
    assert "cret" not in str(caught.value) and caught.value.__context__ is None
    if "\x00" in token:
        return  # no environment holds it
    monkeypatch.setenv("GRIDSHIFT_TOKEN", token)
    with pytest.raises(ClientError, match=r"^bad input\nGRIDSHIFT_TOKEN: '\(not shown\)'"):
        Client("http://127.0.0.1:1")


def test_other_servers_and_wrong_addresses_are_recognised(api: FakeApi, client: Client) -> None:
    api.answers["GET", "/v1/jobs/x"] = lambda _: (200, b"<html>")
    with pytest.raises(ClientError, match="is that gridshift"):
        client.get("x")
    api.answers["GET", "/v1/jobs/y"] = lambda _: (500, b"Internal")
    with pytest.raises(GridshiftApiError, match="HTTP 500: Internal"):
        client.get("y")
    api.answers["GET", "/v1/jobs/z"] = lambda _: error(503, "the database is locked")
    with pytest.raises(GridshiftApiError, match="the database is locked"):
        client.get("z")
    with pytest.raises(GridshiftApiError, match="give a URL such as"):
        Client("localhost:8700")


def test_the_shipped_files_are_python_3_9_and_stand_alone() -> None:
    for name, allowed in (("client.py", {"requests"}), ("function_runner.py", set())):
        source = Path(dispatcher.client.__file__).with_name(name).read_text(encoding="utf-8")
        tree = ast.parse(source, feature_version=(3, 9))
        imported = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        imported |= {(n.module or "").split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        import sys

        assert imported - set(sys.stdlib_module_names) == allowed
