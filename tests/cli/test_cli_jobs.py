import io
import json
import threading
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from dispatcher.cli import FLEXIBILITY
from dispatcher.render import job_view, savings_view
from tests.cli.conftest import Run
from tests.client.fake_api import FakeApi
from tests.helpers import free_port, wait_until


def test_submit_sends_every_flag_under_its_own_name(api: FakeApi, run: Run) -> None:
    args = [part for name in FLEXIBILITY for part in (f"--{name}", f"v-{name}")]
    dashed = [part.replace("_", "-") if part.startswith("--") else part for part in args]
    for number, flags in enumerate((args, dashed)):
        result = run("submit", f"--id=j{number}", *flags, "--", "python", "a b.py", "--deadline", "x")
        assert result.exit_code == 0, result.stderr
        assert result.stdout == f"j{number}\n" and result.stderr == "queued: waits\n"
        assert api.jobs[f"j{number}"]["metadata"] == {f"gridshift.{name}": f"v-{name}" for name in FLEXIBILITY}
        assert api.jobs[f"j{number}"]["entrypoint"] == "python 'a b.py' --deadline x"


def test_submit_without_flags_is_bare_and_a_single_word_is_a_shell_line(api: FakeApi, run: Run) -> None:
    result = run("submit", "--json", "--", "cd x && python y.py")
    job = json.loads(result.stdout)
    sent = api.jobs[job["id"]]
    assert sent["entrypoint"] == "cd x && python y.py" and "metadata" not in sent and "runtime_env" not in sent


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_is_wrong_with_a_job_that_was_taken_is_told_on_stderr(api: FakeApi, run: Run, flags: tuple[str, ...]) -> None:
    warning = "can never start as things are: it needs 8 GPUs"
    api.answers["POST", "/v1/jobs"] = lambda body: (201, {"id": "j", "state": "queued", "reason": warning, "warning": warning})
    result = run("submit", "--gpus", "8", *flags, "--", "true")
    assert result.exit_code == 0 and f"warning: job j {warning}\n" in result.stderr and result.stderr.count(warning) == 1
    assert (json.loads(result.stdout)["id"] if flags else result.stdout.strip()) == "j"


def test_submit_resources_environment_and_folder(api: FakeApi, run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("x")
    (tmp_path / "big.bin").write_text("y")
    result = run(
        *("submit", "--id", "j", "--num-gpus", "0.5", "--num-cpus", "2", "--memory", "1000"),
        *("--resource", "nvme=1", "--label", "gpu=H100", "--metadata", "owner=me", "--working-dir", str(tmp_path)),
        *("--exclude", "*.bin", "--env", "A=b=c", "--runtime-env-json", '{"env_vars": {"Z": "1"}, "pip": ["x"]}', "--", "true"),
    )
    assert result.exit_code == 0, result.stderr
    sent = api.jobs["j"]
    (package,) = api.packages
    assert sent["runtime_env"] == {"env_vars": {"Z": "1", "A": "b=c"}, "pip": ["x"], "working_dir": f"gcs://{package}"}
    assert (sent["entrypoint_num_gpus"], sent["entrypoint_num_cpus"], sent["entrypoint_memory"]) == (0.5, 2, 1000)
    assert (sent["entrypoint_resources"], sent["entrypoint_label_selector"]) == ({"nvme": 1}, {"gpu": "H100"})
    assert sent["metadata"] == {"owner": "me"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["submit", "--deadline", "yesterday", "--", "true"], "gridshift.deadline: 'yesterday': give a time to come\n"),
        (["submit", "--working-dir", "/nowhere/at/all", "--", "true"], "working_dir: '/nowhere/at/all': must be an existing"),
        (["submit", "--metadata", "gridshift.tier=x", "--tier", "y", "--", "true"], "tier: 'y': is given twice"),
        (["submit", "--env", "A", "--", "true"], "'A' must be KEY=VALUE"),
        (["submit", "--resource", "a=b", "--", "true"], "'b' is not a number"),
        (["submit", "--runtime-env-json", "{", "--", "true"], "not JSON"),
        (["submit", "--runtime-env-json", '{"pip": [], "pip": ["x"]}', "--", "true"], "'pip': this key is given twice"),
        (["submit", "--runtime-env-json", "[]", "--", "true"], "must be a JSON object"),
        (["submit"], "Missing argument"),
        (["submit", "--no-such-flag", "--", "true"], "No such option"),
        (["--address", "x", "jobs"], "No such option"),
        (["jobs", "list", "--address", "localhost:8700"], "give a URL such as"),
        (["jobs", "logs", "-f", "--json", "x"], "leave --follow out"),
    ],
)
def test_bad_input_is_exit_2_on_stderr(api: FakeApi, run: Run, args: list[str], said: str) -> None:
    result = run(*args)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == "" and api.jobs == {}


def test_failures_are_exit_1_on_stderr(api: FakeApi, run: Run) -> None:
    for args in (["jobs", "show", "nope"], ["jobs", "resume", "nope"], ["plan"], ["events", "cancel", "nope"]):
        result = run(*args)
        assert (result.exit_code, result.stdout) == (1, "") and result.stderr.startswith("gridshift: "), args
    api.token = "t"
    assert "a token is needed" in run("jobs").stderr
    assert run("jobs", "list", "--token", "t").exit_code == 0
    assert run("jobs", "list", "--token", "t\n").exit_code == 0
    refused = run("jobs", "list", "--token", "secret\nsecret")
    assert refused.exit_code == 2 and "token" in refused.stderr and "secret" not in refused.stderr
    nobody = f"http://127.0.0.1:{free_port()}"
    result = run("jobs", "list", "--address", nobody)
    assert result.exit_code == 1 and f"{nobody} does not answer" in result.stderr


def test_list_show_and_events(api: FakeApi, run: Run) -> None:
    assert run("jobs").stdout == "no jobs\n"
    run("submit", "--id", "j1", "--", "echo [red]\x1b[31m")
    api.jobs["j1"] |= {
        "region": "north",
        "state": "running",
        "reason": "runs [bold]\x1b[2J",
        "warning": "cannot end by its deadline 2026-01-02 02:04Z",
        "late_s": 5460.0,
        "deadline_met": False,
        "deadline_at": "2026-01-02T03:04:00+01:00",
        "runtime_s": 5400.0,
        "cost": 0.0,
        "cost_currency": "EUR",
        "attempts": [
            {
                "attempt": 1,
                "region": "north",
                "submission_id": "j1-1",
                "launched_at": "2026-01-01T00:00:00Z",
                "started_at": None,
                "ended_at": None,
                "outcome": None,
                "message": "",
            }
        ],
    }
    listed = run("jobs", "list").stdout
    assert "j1" in listed and "running" in listed and "01-02 02:04" in listed and "runs [bold]" in listed
    assert "\x1b" not in listed  # neither colours where there is no terminal, nor what the owner wrote
    assert json.loads(run("jobs", "--json").stdout) == {"jobs": [api.jobs["j1"]], "next_cursor": None, "alarms": None}
    shown = run("jobs", "show", "j1").stdout
    assert "cannot end by its deadline" in shown and "1h 31m" in shown
    assert [line.split() for line in shown.splitlines() if "deadline met" in line] == [["deadline", "met", "no"]]
    assert "1h 30m" in shown and "0.000 EUR" in shown and "lives" in shown and "\x1b" not in shown
    assert json.loads(run("jobs", "show", "j1", "--json").stdout) == api.jobs["j1"]
    assert "asked for" in run("jobs", "events", "j1").stdout
    assert json.loads(run("jobs", "events", "--json", "j1").stdout)["events"][0]["kind"] == "submitted"


def test_pages(api: FakeApi, run: Run) -> None:
    for i in range(3):
        run("submit", "--id", f"j{i}", "--", "true")
    first = run("jobs", "list", "--limit", "2")
    assert "more: --cursor 2" in first.stderr and "j2" not in first.stdout
    assert "j2" in run("jobs", "list", "--limit", "2", "--cursor", "2").stdout
    assert run("jobs", "list", "--state", "failed").stdout == "no jobs\n"


def test_a_log_that_is_empty_says_why_on_stderr(api: FakeApi, run: Run) -> None:
    run("submit", "--id", "j", "--", "true")
    for flags in ((), ("--json",)):
        result = run("jobs", "logs", "j", *flags)
        assert result.exit_code == 0 and result.stderr == "job j has not begun: queued: waits\n"
        assert result.stdout == ('{"id": "j", "logs": ""}\n' if flags else "")
    api.jobs["j"] |= {"state": "succeeded", "reason": "finished in north", "started_at": "2026-01-01T00:00:00Z"}
    result = run("jobs", "logs", "-f", "j")
    assert (result.stdout, result.stderr) == ("", "job j has written nothing: succeeded: finished in north\n")
    api.logs["j"] = "line\n"
    result = run("jobs", "logs", "j")
    assert (result.stdout, result.stderr) == ("line\n", "")


def test_ended_jobs_are_deleted_and_others_are_not(api: FakeApi, run: Run) -> None:
    for job_id in ("a", "b", "c"):
        run("submit", "--id", job_id, "--", "true")
    result = run("jobs", "delete", "a")
    assert result.exit_code == 1 and "non-terminal state (queued)" in result.stderr and "a" in api.jobs
    run("jobs", "cancel", "a", "b")
    assert run("jobs", "delete", "a").stdout == "job a: deleted\n"
    assert json.loads(run("jobs", "delete", "b", "--json").stdout) == {"deleted": ["b"]} and list(api.jobs) == ["c"]


def test_steering(api: FakeApi, run: Run) -> None:
    for i in range(2):
        run("submit", "--id", f"j{i}", "--", "true")
    assert run("jobs", "pause", "j0", "j1").stdout == "job j0: queued: waits\njob j1: queued: waits\n"
    assert json.loads(run("jobs", "resume", "--json", "j0").stdout)["held"] is False
    result = run("jobs", "resume", "j0")
    assert result.exit_code == 1 and result.stderr == "gridshift: job j0 is not held\n"
    run("jobs", "pause", "j1")
    assert "asked for it to run now" in run("jobs", "run-now", "j1").stdout
    assert api.jobs["j1"]["run_now"] is True and api.jobs["j1"]["held"] is False
    assert "whatever power costs, as its owner asked" in run("jobs", "show", "j1").stdout
    assert "cancelled" in run("jobs", "cancel", "j0").stdout


def test_logs(api: FakeApi, run: Run) -> None:
    run("submit", "--id", "j", "--", "true")
    api.logs["j"] = "one\ntwo"
    assert run("jobs", "logs", "j").stdout == "one\ntwo"
    assert json.loads(run("jobs", "logs", "--json", "j").stdout) == {"id": "j", "logs": "one\ntwo"}


def play(api: FakeApi, job_id: str, end: str) -> threading.Thread:
    """Let a job write, change its reason, and end, each when the one before was seen."""

    def asked(path: str) -> int:
        return len([r for r in api.requests if r[1] == path])

    def script() -> None:
        wait_until(lambda: job_id in api.jobs and asked(f"/v1/jobs/{job_id}/logs") >= 1, 20, "the first look")
        api.logs[job_id] = "one\n"
        api.jobs[job_id] |= {"state": "running", "reason": "runs in north"}
        seen = asked(f"/v1/jobs/{job_id}/logs")
        wait_until(lambda: asked(f"/v1/jobs/{job_id}/logs") > seen, 20, "another look")
        api.logs[job_id] = "one\ntwo\n"
        api.finish(job_id, end, "exit code 0" if end == "succeeded" else "exit code 1")

    thread = threading.Thread(target=script)
    thread.start()
    return thread


@pytest.mark.parametrize(("end", "code"), [("succeeded", 0), ("failed", 1)])
def test_submit_and_wait_follows_the_log(api: FakeApi, run: Run, end: str, code: int) -> None:
    thread = play(api, "j", end)
    result = run("submit", "--id", "j", "--wait", "--", "true")
    thread.join()
    assert (result.exit_code, result.stdout) == (code, "one\ntwo\n")
    assert "job j: running: runs in north" in result.stderr and f"job j: {end}: exit code {code}" in result.stderr


def test_wait_with_json_keeps_stdout_for_the_object(api: FakeApi, run: Run) -> None:
    thread = play(api, "j", "succeeded")
    result = run("submit", "--id", "j", "--wait", "--json", "--", "true")
    thread.join()
    assert json.loads(result.stdout)["state"] == "succeeded" and "\ntwo\n" in result.stderr


def test_logs_follow_ends_with_the_job(api: FakeApi, run: Run) -> None:
    run("submit", "--id", "j", "--", "true")
    thread = play(api, "j", "failed")
    result = run("jobs", "logs", "-f", "j")
    thread.join()
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")


ENDED_JOB = {
    "id": "j1", "state": "cancelled", "reason": "its owner cancelled it", "gpus": 0.0, "remaining_s": 0.0, "runtime_s": 60.0,
    "planned_start_at": "2026-01-01T12:45:00Z", "planned_region": "local", "cost": 0.000055, "cost_currency": "EUR",
    "energy_kwh": 0.00123, "energy_basis": "modelled", "carbon_kg": -0.0,
}  # fmt: skip


def test_an_ended_job_has_no_plan_and_no_rest_and_small_amounts_say_something() -> None:
    told = shown(job_view(ENDED_JOB))
    assert "12:45" not in told and "remaining" not in told
    lines = {line.split("  ")[0]: line for line in told.splitlines()}
    assert lines["GPUs"].split() == ["GPUs", "0"]
    assert "0.000055 EUR" in told and "0.0012 kWh (modelled" in told and "0.000 kg" in told and "-0" not in lines["carbon"]
    capped = [{"gpu": at, "limit_w": 350.0, "reason": "evening peak: 350 W", "simulated": at == 1} for at in range(2)]
    assert "GPU 0, SIMULATED GPU 1: evening peak: 350 W" in shown(job_view({**ENDED_JOB, "caps": capped}))
    waits = shown(job_view({**ENDED_JOB, "state": "queued", "remaining_s": 60.0}))
    assert "01-01 12:45 in local" in waits and "remaining" in waits


def test_a_long_message_leaves_an_attempts_times_alone() -> None:
    attempt = {"attempt": 1, "region": "local", "launched_at": "2026-01-01T12:45:00Z", "started_at": "2026-01-01T12:46:00Z",
               "ended_at": "2026-01-01T12:47:00Z", "outcome": "failed",
               "message": "the driver said a lot of things. " * 12}  # fmt: skip
    told = shown(job_view({**ENDED_JOB, "attempts": [attempt]}))
    row = next(line for line in told.splitlines() if line.startswith("1 "))
    assert row.split()[:9] == ["1", "local", "01-01", "12:45", "01-01", "12:46", "01-01", "12:47", "failed"]
    assert " ".join(told.split()).count("lot of") == 12, "all of it is there"


def test_savings_say_small_sums_and_what_their_energy_rests_on() -> None:
    savings = {
        "energy_basis": "simulated", "energy_bases": {"simulated": 3, "modelled": 1}, "currency": "EUR", "caveats": [],
        "totals": {"jobs": 4, "energy_kwh": 0.0042, "cost": 0.0002, "cost_run_now": 0.0002 - 1e-12, "carbon_kg": 1.0,
                   "carbon_kg_run_now": 1.0, "deadline_misses": 0},
    }  # fmt: skip
    told = shown(savings_view(savings))
    assert "0.0042 kWh (mixed: 3 simulated, 1 modelled)" in told
    cost = next(line for line in told.splitlines() if line.startswith("cost"))
    assert cost.split() == ["cost", "0.00020", "EUR", "0.00020", "EUR", "0.00", "EUR", "(0%)"]


def shown(view: RenderableType) -> str:
    """As a pipe gets it, 160 columns wide."""
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(view)
    return out.getvalue()
