import inspect
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.client import Client, ClientError, GridshiftApiError, JobCancelled, JobFailed, RemoteError, RemoteTraceback
from dispatcher.function_runner import FAILED
from tests.client.fake_api import FakeApi


def run_job(api: FakeApi, job_id: str, folder: Path, *, edit: Callable[[Path], None] | None = None, **env: str) -> Any:
    """Do with a job what a cluster does: unpack its working_dir, run its entrypoint there; end it as it went."""
    job = api.jobs[job_id]
    name = job["runtime_env"]["working_dir"].removeprefix("gcs://")
    with zipfile.ZipFile(io.BytesIO(api.packages[name])) as archive:
        archive.extractall(folder)
    if edit is not None:
        edit(folder)
    assert job["entrypoint"] == "python gridshift_run.py"
    ours = {"GRIDSHIFT_URL": api.address, "GRIDSHIFT_JOB_TOKEN": "t", "GRIDSHIFT_ATTEMPT": "1", "GRIDSHIFT_JOB_ID": job_id}
    # Not this repository's own dispatcher: what the package brings must do.
    done = subprocess.run(
        [sys.executable, "gridshift_run.py"],
        cwd=folder,
        env={**os.environ, **ours, "GRIDSHIFT_CHECKPOINT_DIR": str(folder / "ckpt"), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    api.logs[job_id] = done.stdout + done.stderr
    result = api.results.pop("self", None)
    api.finish(job_id, "succeeded" if done.returncode == 0 else "failed", f"exit code {done.returncode}", result)
    return done


def define() -> dict[str, Callable[..., Any]]:
    """Functions as a script or notebook has them: of ``__main__``, so that they travel by value."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        """
class Mine(Exception):
    pass
class Trainer:
    def __init__(self, base): self.base = base
    def total(self, x): return self.base + x
def add(a, *, b=1): return a + b
def fails(x): raise Mine(f"no {x}")
def fails_deep(x): return fails(x)
def lock():
    import threading
    return threading.Lock()
def odd():
    from odd_module import Odd
    raise Odd(1, 2)
def leaves():
    import sys
    print("saved, leaving")
    sys.exit(0)
def dies():
    import os
    print("last words", flush=True)
    os._exit(3)
def big(n): return b"x" * n
def inside():
    from dispatcher.client import attempt, checkpoint_dir, checkpoint_requested, __file__ as f
    return attempt(), checkpoint_dir().is_dir(), checkpoint_requested(), f
def uses_local():
    import mine
    return mine.VALUE
""",
        names,
    )
    return names


NAMES = define()


@pytest.mark.real
def test_a_value_comes_back(api: FakeApi, client: Client, tmp_path: Path) -> None:
    function = client.flexible(deadline="8h", num_gpus=1, pausable="checkpoint")(NAMES["add"])
    assert function(1, b=1) == 2 and function.__name__ == "add"
    job = function.remote(40, b=2)
    sent = api.jobs[job.id]
    assert sent["metadata"] == {"gridshift.deadline": "8h", "gridshift.pausable": "checkpoint"}
    assert sent["entrypoint_num_gpus"] == 1
    assert job.status() == "queued"
    with pytest.raises(TimeoutError):
        job.result(timeout=0.1)
    assert run_job(api, job.id, tmp_path).returncode == 0
    assert job.result(timeout=5) == 42
    assert function.options(num_gpus=2).remote(1)["entrypoint_num_gpus"] == 2


@pytest.mark.real
def test_an_exception_comes_back_with_its_remote_traceback(api: FakeApi, client: Client, tmp_path: Path) -> None:
    job = client.flexible()(NAMES["fails_deep"]).remote(7)
    assert run_job(api, job.id, tmp_path).returncode == 1
    with pytest.raises(NAMES["Mine"], match="no 7") as caught:  # the very class of the caller
        job.result(timeout=5)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    shown = "".join(traceback.format_exception(caught.value))
    assert "in fails_deep" in shown and "in fails\n" in shown and "gridshift_run.py" not in shown
    assert "Mine: no 7" in job.logs()
    assert job.logs().splitlines()[-1] == f"{FAILED}Mine: no 7", "the control plane finds it there"


def test_an_argument_that_submit_does_not_have_is_told_with_the_nearest_that_it_has(api: FakeApi, client: Client) -> None:
    for call in (
        lambda: client.submit("true", deadlin="8h"),  # type: ignore[call-arg]
        lambda: client.flexible(deadlin="8h")(NAMES["add"]),
        lambda: client.flexible()(NAMES["add"]).options(deadlin="8h"),
    ):
        with pytest.raises(TypeError, match=r"submit\(\) has no argument 'deadlin'; did you mean 'deadline'\?"):
            call()
    with pytest.raises(TypeError, match="has no argument 'xyzzy'; it has entrypoint, deadline, "):
        client.submit("true", xyzzy=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no argument 'entrypoint'"):
        client.flexible(entrypoint="x")(NAMES["add"])
    assert api.jobs == {} and "deadline" in inspect.signature(client.submit).parameters


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "args", "kind", "said"),
    [
        ("lock", (), "UnpicklableResult", "returned a lock that cannot be pickled"),
        ("odd", (), "Odd", "odd 12"),
        ("big", (3_000_000,), "ResultTooLarge", "the result has 3.0 MB, more than the control plane takes"),
        ("uses_local", (), "ModuleNotFoundError", "No module named 'mine'"),
    ],
)
def test_what_cannot_travel_is_told_in_words(
    api: FakeApi, client: Client, tmp_path: Path, name: str, args: tuple[Any, ...], kind: str, said: str
) -> None:
    def edit(folder: Path) -> None:
        (folder / "odd_module.py").write_text(
            "class Odd(Exception):\n    def __init__(self, a, b): super().__init__(f'odd {a}{b}')\n"
        )

    job = client.flexible()(NAMES[name]).remote(*args)
    assert run_job(api, job.id, tmp_path, edit=edit).returncode == 1
    with pytest.raises((RemoteError, ModuleNotFoundError), match=said) as caught:
        job.result(timeout=5)
    if isinstance(caught.value, RemoteError):
        assert str(caught.value).startswith(kind)
    assert isinstance(caught.value.__cause__, RemoteTraceback)


@pytest.mark.real
def test_another_python_is_refused_before_the_pickle_is_opened(api: FakeApi, client: Client, tmp_path: Path) -> None:
    def edit(folder: Path) -> None:
        facts = json.loads((folder / "gridshift_fn.json").read_text())
        (folder / "gridshift_fn.json").write_text(json.dumps({**facts, "python": "3.8"}))
        (folder / "gridshift_fn.pkl").write_bytes(b"not for you")

    job = client.flexible()(NAMES["add"]).remote(1)
    assert run_job(api, job.id, tmp_path, edit=edit).returncode == 1
    with pytest.raises(RemoteError, match=r"add was pickled by Python 3\.8, but this cluster runs Python 3\.\d+; submit from"):
        job.result(timeout=5)


@pytest.mark.real
def test_a_module_that_the_cluster_lacks_is_told(api: FakeApi, client: Client, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "only_here.py").write_text("def f(): return 5\n")
    sys.path.insert(0, str(here))
    try:
        from only_here import f  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(here))
    job = client.flexible()(f).remote()
    run_job(api, job.id, tmp_path / "away")
    with pytest.raises(RemoteError, match=r"only_here\.f cannot be loaded on the cluster: .*must be in working_dir"):
        job.result(timeout=5)
    job = client.flexible(working_dir=here)(f).remote()
    run_job(api, job.id, tmp_path / "with")
    assert job.result(timeout=5) == 5


@pytest.mark.real
def test_a_job_that_leaves_no_result(api: FakeApi, client: Client, tmp_path: Path) -> None:
    died = client.flexible()(NAMES["dies"]).remote()
    assert run_job(api, died.id, tmp_path / "1").returncode == 3
    with pytest.raises(JobFailed, match=r"(?s)failed: exit code 3.*last words"):
        died.result(timeout=5)
    left = client.flexible()(NAMES["leaves"]).remote()
    assert run_job(api, left.id, tmp_path / "2").returncode == 0
    with pytest.raises(JobFailed, match=r"(?s)left no result.*saved, leaving"):
        left.result(timeout=5)


def test_a_cancelled_job(client: Client) -> None:
    job = client.flexible()(NAMES["add"]).remote(1)
    job.cancel()
    with pytest.raises(JobCancelled, match="cancelled before it started"):
        job.result(timeout=5)


@pytest.mark.real
def test_the_result_waits_for_a_control_plane_that_is_away(api: FakeApi, client: Client, tmp_path: Path) -> None:
    job = client.flexible()(NAMES["add"]).remote(1)
    calls: list[bytes] = []

    def unready(body: bytes) -> tuple[int, Any]:
        calls.append(body)
        if len(calls) == 1:
            return 503, b"starting"
        if len(calls) == 2:  # from now on nobody listens for two seconds
            threading.Thread(target=go_away).start()
            return 503, b"going"
        api.results["self"] = body
        return 204, None

    back = threading.Event()

    def go_away() -> None:
        api.stop()
        threading.Event().wait(2.0)
        api.start()
        back.set()

    api.answers["PUT", "/v1/self/result"] = unready
    done = run_job(api, job.id, tmp_path)
    assert done.returncode == 0 and back.is_set()
    assert "the control plane is away" in done.stderr and job.result(timeout=5) == 2


@pytest.mark.real
@pytest.mark.parametrize("status", [401, 409])
def test_a_refused_result_ends_the_job_badly(api: FakeApi, client: Client, tmp_path: Path, status: int) -> None:
    api.answers["PUT", "/v1/self/result"] = lambda _: (status, b"not the current attempt")
    job = client.flexible()(NAMES["add"]).remote(1)
    done = run_job(api, job.id, tmp_path)
    assert done.returncode == 1 and f"refused the result (HTTP {status}): not the current attempt" in done.stderr


@pytest.mark.real
def test_giving_up_is_bounded(api: FakeApi, client: Client, tmp_path: Path) -> None:
    job = client.flexible()(NAMES["add"]).remote(1)
    done = run_job(api, job.id, tmp_path, GRIDSHIFT_URL="http://127.0.0.1:9", GRIDSHIFT_RESULT_RETRY_S="0.5")
    assert done.returncode == 1 and "could not be delivered within 0.5 s" in done.stderr


@pytest.mark.real
def test_helpers_are_there_without_an_installation(api: FakeApi, client: Client, tmp_path: Path) -> None:
    job = client.flexible()(NAMES["inside"]).remote()
    run_job(api, job.id, tmp_path)
    number, is_dir, requested, file = job.result(timeout=5)
    assert (number, is_dir, requested) == (1, True, False) and Path(file).parents[1] == tmp_path


@pytest.mark.real
def test_bound_methods_and_functions_that_know_the_client(api: FakeApi, tmp_path: Path) -> None:
    client = Client(api.address, "s3cret")
    trainer = NAMES["Trainer"](10)
    job = client.flexible()(trainer.total).remote(5)
    scope: dict[str, Any] = {"__name__": "__main__", "client": client}
    exec(
        "@client.flexible()\ndef f(n): return 1 if n < 2 else n * f(n - 1)\n"
        "class K:\n    @client.flexible()\n    def m(self, x): return x * 2\n",
        scope,
    )
    jobs = [job, scope["f"].remote(4), scope["K"]().m.remote(4)]
    for i, each in enumerate(jobs):
        run_job(api, each.id, tmp_path / str(i))
    assert [each.result(timeout=5) for each in jobs] == [15, 24, 8]
    assert all(b"s3cret" not in package for package in api.packages.values())


@pytest.mark.real
def test_a_working_dir_of_the_user_travels_along(api: FakeApi, client: Client, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "dispatcher").mkdir(parents=True)
    (work / "mine.py").write_text("VALUE = 7\n")
    (work / "dispatcher" / "__init__.py").write_text("THEIRS = True\n")
    function = client.flexible(working_dir=work, runtime_env={"env_vars": {"A": "b"}})(NAMES["uses_local"])
    job = function.remote()
    assert job["runtime_env"]["env_vars"] == {"A": "b"}
    run_job(api, job.id, tmp_path / "run")
    assert job.result(timeout=5) == 7
    assert not (tmp_path / "run" / "dispatcher" / "client.py").exists()  # a package of their own name stays theirs


def test_what_cannot_be_submitted(api: FakeApi, client: Client) -> None:
    with pytest.raises(ClientError, match="its arguments cannot be pickled"):
        client.flexible()(NAMES["add"]).remote(threading.Lock())
    with pytest.raises(GridshiftApiError, match="needs a local folder"):
        client.flexible(working_dir="s3://b/c.zip")(NAMES["add"]).remote(1)
    assert api.jobs == {}


def test_a_pickle_of_the_other_cloudpickle_opens() -> None:
    from dispatcher.client import _Unpickler

    payload = pickle.dumps({"a": 1})
    assert _Unpickler(io.BytesIO(payload)).load() == {"a": 1}
    import ray.cloudpickle

    opened = _Unpickler(io.BytesIO(ray.cloudpickle.dumps(NAMES["add"]))).load()
    assert opened(1) == 2 and type(opened) is type(define)
