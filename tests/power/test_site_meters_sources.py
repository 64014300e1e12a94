"""Sources of readings: a real HTTP server that answers as Prometheus does, and real files."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from dispatcher.config import MeterConfig
from dispatcher.power.meter_sources import CsvTail, MeterProblem, Prometheus, parse_prometheus

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


class FakePrometheus:
    """Answers /api/v1/query with what a test says, byte for byte as Prometheus writes it."""

    def __init__(self) -> None:
        self.status, self.body = 200, vector("41250.5")
        self.asked: list[tuple[str, dict[str, list[str]], str | None]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                fake.asked.append((parts.path, parse_qs(parts.query), self.headers.get("Authorization")))
                body = fake.body.encode()
                self.send_response(fake.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def vector(*values: str, seconds: float = AT.timestamp()) -> str:
    series = ",".join(f'{{"metric":{{"pdu":"{i}"}},"value":[{seconds:.3f},"{value}"]}}' for i, value in enumerate(values))
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{series}]}}}}'


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    yield fake
    fake.close()


def config(url: str, **fields: Any) -> MeterConfig:
    return MeterConfig(**{"name": "m", "source": "prometheus", "url": url, "query": "sum(pdu_power_watts)", **fields})


def test_an_instant_query_at_the_time_asked_for(prometheus: FakePrometheus) -> None:
    said = Prometheus({}).read(config(prometheus.url), AT)
    assert (said.at, said.value) == (AT, 41250.5)
    path, params, authorization = prometheus.asked[0]
    assert path == "/api/v1/query" and authorization is None
    assert params["query"] == ["sum(pdu_power_watts)"] and float(params["time"][0]) == AT.timestamp()


def test_a_token_goes_into_a_header(prometheus: FakePrometheus) -> None:
    Prometheus({"PROM": "hush"}).read(config(prometheus.url + "/prefix", token_env="PROM"), AT)
    assert prometheus.asked[0][0] == "/prefix/api/v1/query" and prometheus.asked[0][2] == "Bearer hush"
    with pytest.raises(MeterProblem, match="the environment variable PROM is not set"):
        Prometheus({}).read(config(prometheus.url, token_env="PROM"), AT)


def test_a_scalar_is_a_value_too() -> None:
    body = b'{"status":"success","data":{"resultType":"scalar","result":[1772366400,"1e3"]}}'
    assert parse_prometheus(body).value == 1000.0


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "1e308"])
def test_what_is_no_number_is_no_reading(prometheus: FakePrometheus, text: str) -> None:
    prometheus.body = vector(text)
    with pytest.raises(MeterProblem, match="which is no reading"):
        Prometheus({}).read(config(prometheus.url), AT)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, vector(), "has no value now"),
        (200, vector("1", "2"), "gives 2 series; make it one"),
        (200, '{"status":"success","data":{"resultType":"matrix","result":[]}}', "gives a matrix; an instant vector"),
        (200, '{"status":"success","data":{"resultType":"string","result":[1772366400,"x"]}}', "gives a string"),
        (
            200,
            '{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"1"}]}]}}',
            "gives a histogram",
        ),
        (200, vector("12 W"), "is not a time and a number"),
        (200, "<html>login</html>", "is not JSON; is url a Prometheus server?"),
        (200, "[]", "is url a Prometheus server?"),
        (
            400,
            '{"status":"error","errorType":"bad_data","error":"1:5: parse error: unclosed left parenthesis"}',
            "refuses the query (bad_data): 1:5: parse error",
        ),
        (422, '{"status":"error","errorType":"execution","error":"many-to-many matching"}', "refuses the query (execution)"),
        (404, "404 page not found", "url must be the server's address alone"),
        (401, "", "answers 401: not allowed"),
        (503, '{"status":"error","errorType":"timeout","error":"query timed out"}', "answers 503"),
    ],
)
def test_everything_else_is_a_gap_with_a_reason(prometheus: FakePrometheus, status: int, body: str, told: str) -> None:
    prometheus.status, prometheus.body = status, body
    with pytest.raises(MeterProblem) as caught:
        Prometheus({}).read(config(prometheus.url), AT)
    assert told in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(MeterProblem, match="cannot be reached"):
        Prometheus({}).read(config("http://127.0.0.1:9"), AT)


def test_a_failing_server_is_left_alone_but_not_for_long(prometheus: FakePrometheus) -> None:
    prometheus.status = 500
    source = Prometheus({})
    for _ in range(5):
        with pytest.raises(MeterProblem, match="answers 500"):
            source.read(config(prometheus.url), AT)
    with pytest.raises(MeterProblem, match="is left alone until"):
        source.read(config(prometheus.url), AT)
    assert len(prometheus.asked) == 5
    manners = next(iter(source._manners.values()))
    manners.leave_alone(prometheus.url.removeprefix("http://"), 3600.0, "asked for peace")
    prometheus.status = 200
    assert source.read(config(prometheus.url), AT).value == 41250.5, "an hour without the site's meter is too long"


# --- files --------------------------------------------------------------------------------------------------------


class Log:
    """A meter's logger: appends rows, one a minute."""

    def __init__(self, path: Path, header: str = "time,value") -> None:
        self.path, self.minute = path, 0
        path.write_text(header + "\n" if header else "")

    def add(self, *values: object) -> None:
        with self.path.open("a") as file:
            for value in values:
                file.write(f"{(AT + timedelta(minutes=self.minute)).isoformat()},{value}\n")
                self.minute += 1


def tail(path: Path, **fields: Any) -> CsvTail:
    return CsvTail(MeterConfig(**{"name": "m", "source": "csv", "path": str(path), **fields}))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "meter.csv")


def values(follower: CsvTail) -> list[float]:
    return [said.value for said in follower.read()]


def test_a_file_that_grows(log: Log) -> None:
    follower = tail(log.path)
    assert values(follower) == []
    log.add(1, 2)
    said = follower.read()
    assert [(one.at, one.value) for one in said] == [(AT, 1.0), (AT + timedelta(minutes=1), 2.0)]
    log.add(3)
    assert values(follower) == [3.0] and values(follower) == []
    follower.close()


def test_a_line_that_is_half_written_waits_for_its_rest(log: Log) -> None:
    follower = tail(log.path)
    with log.path.open("a") as file:
        file.write(f"{AT.isoformat()},12")
    assert values(follower) == []
    with log.path.open("a") as file:
        file.write("34\n")
    assert values(follower) == [1234.0]
    follower.close()


def test_a_rotated_file_is_read_to_its_end_first(log: Log, tmp_path: Path) -> None:
    follower = tail(log.path)
    log.add(1)
    assert values(follower) == [1.0]
    log.add(2)
    log.path.rename(tmp_path / "meter.csv.1")
    successor = Log(log.path)
    successor.add(3)
    assert values(follower) == [2.0, 3.0]
    follower.close()


def test_between_two_files_of_a_rotation_the_old_one_still_counts(log: Log, tmp_path: Path) -> None:
    follower = tail(log.path)
    log.add(1)
    assert values(follower) == [1.0]
    log.add(2)
    log.path.rename(tmp_path / "old")
    assert values(follower) == [2.0]
    with pytest.raises(MeterProblem, match="No such file"):
        follower.read()
    Log(log.path).add(3)
    assert values(follower) == [3.0]
    follower.close()


@pytest.mark.parametrize("rows", [(7,), (7, 8, 9, 10, 11, 12)])
def test_a_file_that_was_cut_is_read_from_its_start(log: Log, rows: tuple[int, ...]) -> None:
    follower = tail(log.path)
    log.add(1, 2, 3)
    assert values(follower) == [1.0, 2.0, 3.0]
    log.path.write_text("time,value\n")  # the same file, shorter, or longer again by the next look
    log.add(*rows)
    assert values(follower) == [float(row) for row in rows]
    follower.close()


def test_of_a_long_file_only_the_end_is_read(log: Log) -> None:
    log.add(*range(1000))
    follower = tail(log.path)
    follower.chunk_bytes = 500
    got = values(follower)
    assert 10 < len(got) < 20 and got[-1] == 999.0
    log.add(1000)
    assert values(follower) == [1000.0]
    follower.close()


def test_rows_without_a_reading_are_told_and_left_out(log: Log) -> None:
    log.add(1, "", "NaN", "inf", "-1e308", "n/a", 0)
    with log.path.open("a") as file:
        file.write("2026-03-01 12:00,5\n2026-03-01T13:00Z\n\n")
    follower = tail(log.path)
    assert values(follower) == [1.0, 0.0]
    told = " ".join(follower.problems)
    assert len(follower.problems) == 7
    for words in ("no value", "no finite number", "too large", "n/a", "must be a time with an offset", "too few columns"):
        assert words in told
    follower.close()


def test_columns_by_name_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("\ufeffid;Zeit;Leistung\n1;2026-03-01T13:00:00+01:00;12,5\n2;1772366460;13,5\n", encoding="utf-8")
    follower = tail(path, time_column="Zeit", value_column="Leistung")
    assert [(one.at, one.value) for one in follower.read()] == [(AT, 12.5), (AT + timedelta(minutes=1), 13.5)]
    follower.close()


def test_a_file_without_the_columns_says_which_it_has(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("when,kw\n")
    follower = tail(path)
    with pytest.raises(MeterProblem, match="has no column 'time' in its first line; columns there: when, kw"):
        follower.read()
    path.write_text(f"time,value\n{AT.isoformat()},5\n")
    assert values(follower) == [5.0]
    follower.close()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MeterProblem, match="cannot be read: No such file"):
        tail(tmp_path / "none.csv").read()


def test_wire_samples_are_valid_json() -> None:
    assert json.loads(vector("1", "2"))["data"]["resultType"] == "vector"
