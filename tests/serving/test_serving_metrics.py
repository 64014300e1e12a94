"""What a server's metrics say of its promises: read from a real page and from a real server that answers as Prometheus does."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from dispatcher.config import Config, load
from dispatcher.config_serving import ServingConfig, parse_matchers
from dispatcher.doctor import check_serving
from dispatcher.errors import ConfigError
from dispatcher.serving.metrics import MAX_BYTES, Counted, MetricsError, MetricsReader

PAGE = """\
# HELP vllm:time_to_first_token_seconds TTFT
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.1",model_name="llama"}} {fast}
vllm:time_to_first_token_seconds_bucket{{le="0.5",model_name="llama"}} {good}
vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="llama"}} {total}
vllm:time_to_first_token_seconds_count{{model_name="llama"}} {total}
vllm:time_to_first_token_seconds_sum{{model_name="llama"}} 12.5
vllm:time_to_first_token_seconds_bucket{{le="0.5",model_name="other"}} 7
vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="other"}} 9
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="llama"}} {waiting}
"""


class Page:
    """A server's pages, as a test sets them."""

    def __init__(self) -> None:
        self.answer: Callable[[str], tuple[int, bytes]] = lambda path: (404, b"")
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization")))
                status, body = outer.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def shows(self, text: str) -> None:
        self.answer = lambda path: (200, text.encode())

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.close()


def config(page: Page, **more: Any) -> ServingConfig:
    slos = [
        {"metric": "ttft", "percentile": 0.99, "limit": 0.5},
        {"metric": "queue", "limit": 10},
    ]
    given = {"name": "chat", "preset": "vllm", "source": "metrics", "url": f"{page.url}/metrics", "slo": slos}
    return ServingConfig.model_validate({**given, **more})


class Now:
    """Monotonic seconds that a test moves."""

    s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def reader_of() -> Iterator[Callable[[ServingConfig], MetricsReader]]:
    made: list[MetricsReader] = []

    def make(config: ServingConfig, now: Now | None = None) -> MetricsReader:
        made.append(MetricsReader(config, {"KEY": "secret"}, mono=now or Now()))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_requests_within_the_limit_are_counted_from_the_first_look_on(page: Page, reader_of: Any) -> None:
    reader = reader_of(config(page, match='model_name="llama"', token_env="KEY"))
    page.shows(PAGE.format(fast=5, good=900, total=1000, waiting=3))
    assert reader.read() == [Counted(0.0, 0.0), Counted(value=3.0)], "what was before the first look is nobody's"
    page.shows(PAGE.format(fast=5, good=990, total=1100, waiting=4))
    assert reader.read() == [Counted(90.0, 100.0), Counted(value=4.0)]
    # the server starts anew
    page.shows(PAGE.format(fast=0, good=2, total=3, waiting=0))
    assert reader.read()[0] == Counted(92.0, 103.0)
    assert page.asked[0] == ("/metrics", "Bearer secret")


def test_replicas_come_and_go_without_requests_coming_or_going(page: Page, reader_of: Any) -> None:
    now = Now()
    reader = reader_of(config(page), now)  # both models
    page.shows(PAGE.format(fast=0, good=900, total=1000, waiting=0))
    assert reader.read()[0] == Counted(0.0, 0.0)
    alone = "\n".join(line for line in PAGE.split("\n") if "other" not in line)
    page.shows(alone.format(fast=0, good=901, total=1001, waiting=0))
    assert reader.read()[0] == Counted(1.0, 1.0)
    page.shows(PAGE.format(fast=0, good=901, total=1001, waiting=0))
    assert reader.read()[0] == Counted(1.0, 1.0), "the other is back and has served nobody since"
    third = 'vllm:time_to_first_token_seconds_bucket{{le="0.5",model_name="new"}} 1\n'
    third += 'vllm:time_to_first_token_seconds_bucket{{le="+Inf",model_name="new"}} 4\n'
    page.shows((PAGE + third).format(fast=0, good=901, total=1001, waiting=0))
    assert reader.read()[0] == Counted(2.0, 5.0)


def test_milliseconds_and_counters_of_ray_serve(page: Page, reader_of: Any) -> None:
    slos = [{"metric": "e2e", "percentile": 0.95, "limit": 0.2}, {"metric": "error_rate", "limit": 0.01}]
    reader = reader_of(config(page, preset="ray-serve", slo=slos))
    text = """\
ray_serve_http_request_latency_ms_bucket{{application="a",le="200.0"}} {good}
ray_serve_http_request_latency_ms_bucket{{application="a",le="1000.0"}} {total}
ray_serve_http_request_latency_ms_bucket{{application="a",le="+Inf"}} {total}
ray_serve_num_http_requests_total{{application="a"}} {total}
{failed}"""
    page.shows(text.format(good=5, total=10, failed=""))
    assert reader.read() == [Counted(0.0, 0.0), Counted(0.0, 0.0)], "no failures are told before the first one"
    page.shows(text.format(good=8, total=20, failed='ray_serve_num_http_error_requests_total{error_code="500"} 2\n'))
    assert reader.read() == [Counted(3.0, 10.0), Counted(8.0, 10.0)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((500, b""), "answers 500"),
        ((302, b""), "answers 302"),
        ((200, b"<html>log in</html>\n{"), "no page of metrics"),
        ((200, b"\xff\xfe"), "no page of metrics"),
        ((200, b"x" * (MAX_BYTES + 1)), "more than 8 MiB"),
    ],
)
def test_what_cannot_be_read_is_said(page: Page, reader_of: Any, answer: tuple[int, bytes], said: str) -> None:
    page.answer = lambda path: answer
    with pytest.raises(MetricsError, match=said):
        reader_of(config(page)).read()


def test_a_server_that_is_away_is_said(page: Page, reader_of: Any) -> None:
    with pytest.raises(MetricsError, match="cannot be asked"):
        reader_of(config(page, url="http://127.0.0.1:1/metrics")).read()


def test_a_series_that_is_not_there_is_not_zero(page: Page, reader_of: Any) -> None:
    page.shows("vllm:num_requests_waiting NaN\n")
    first, second = reader_of(config(page)).read()
    assert first.wrong == "there is no series vllm:time_to_first_token_seconds_bucket (that matches)" and first.total is None
    assert second.wrong == "vllm:num_requests_waiting is not a number"


def test_failures_that_are_no_number_count_for_nothing_afterwards(page: Page, reader_of: Any) -> None:
    slos = [{"metric": "error_rate", "limit": 0.01, "counter_bad": "bad", "counter_all": "all"}]
    reader = reader_of(config(page, slo=slos))
    page.shows("bad 1\nall 10\n")
    reader.read()
    page.shows("bad NaN\nall 20\n")
    assert reader.read()[0].wrong == "bad is not a number"
    page.shows("bad 2\nall 30\n")
    assert reader.read() == [Counted(19.0, 20.0)]


def test_a_server_that_trickles_is_not_waited_for(page: Page, reader_of: Any) -> None:
    begun, now = threading.Event(), Now()

    def trickle(self: BaseHTTPRequestHandler) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not begun.wait(0.02):
                self.wfile.write(b"# x\n")
                now.s += 1.0

    page.server.RequestHandlerClass.do_GET = trickle  # type: ignore[attr-defined]
    try:
        with pytest.raises(MetricsError, match="not done after 3 s"):
            reader_of(config(page), now).read()
    finally:
        begun.set()


def test_a_limit_below_all_buckets_tells_which_there_are(page: Page, reader_of: Any) -> None:
    slos = [{"metric": "ttft", "percentile": 0.99, "limit": 0.05}]
    page.shows(PAGE.format(fast=5, good=900, total=1000, waiting=3))
    (told,) = reader_of(config(page, slo=slos, match='model_name="llama"')).read()
    assert "has no bucket up to 0.05 s, but 0.1, 0.5, inf s" in told.wrong


def prometheus(page: Page, series: dict[str, list[tuple[dict[str, str], float, float]]]) -> None:
    """Answer instant queries of (labels, value, scraped at) at the moment 1000."""

    def answer(path: str) -> tuple[int, bytes]:
        query = parse_qs(urlsplit(path).query)["query"][0]
        inner = re.fullmatch(r"timestamp\((.*)\)", query)
        name = (inner[1] if inner else query).split("{")[0]
        result = [
            {"metric": labels if inner else {"__name__": name, **labels}, "value": [1000.0, str(at if inner else value)]}
            for labels, value, at in series.get(name, ())
        ]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    page.answer = answer


def test_a_prometheus_server_tells_how_old_its_series_are(page: Page, reader_of: Any) -> None:
    reader = reader_of(config(page, source="prometheus", url=page.url, match='model_name="llama"'))
    name = "vllm:time_to_first_token_seconds_bucket"
    waiting = {"vllm:num_requests_waiting": [({"model_name": "llama"}, 2.0, 998.0)]}
    prometheus(page, {name: [({"le": "0.5"}, 10.0, 997.0), ({"le": "+Inf"}, 12.0, 997.0)], **waiting})
    assert reader.read() == [Counted(0.0, 0.0, age_s=3.0), Counted(value=2.0, age_s=2.0)]
    prometheus(page, {name: [({"le": "0.5"}, 11.0, 999.5), ({"le": "+Inf"}, 14.0, 999.5)], **waiting})
    assert reader.read()[0] == Counted(1.0, 2.0, age_s=0.5)
    assert '{model_name="llama"}' in parse_qs(urlsplit(page.asked[0][0]).query)["query"][0]
    page.answer = lambda path: (400, json.dumps({"status": "error", "error": "parse error"}).encode())
    with pytest.raises(MetricsError, match=r"Prometheus refuses .* parse error"):
        reader.read()
    page.answer = lambda path: (200, b"{}")
    with pytest.raises(MetricsError, match="is it one"):
        reader.read()


def test_the_doctor_reads_each_serving_once(page: Page) -> None:
    page.shows(PAGE.format(fast=5, good=900, total=1000, waiting=3).replace("num_requests_waiting", "num_requests_running"))
    serving = config(page).model_dump(by_alias=True, exclude_defaults=True)
    made = Config.model_validate({"region": [{"name": "north", "address": "http://127.0.0.1:1", "serving": [serving]}]})
    first, second = check_serving(made.regions[0])
    assert (first.level, first.what, first.says) == ("ok", "serving north chat", "ttft p99 <= 0.5 s: is read")
    assert second.level == "warn" and "there is no series vllm:num_requests_waiting" in second.says
    page.answer = lambda path: (503, b"")
    (down,) = check_serving(made.regions[0])
    assert down.level == "fail" and "answers 503" in down.says


# --- the configuration --------------------------------------------------------------------------------------------


def test_matchers_are_those_of_promql() -> None:
    assert parse_matchers('a="x", b!="y\\"z",c=~"1|2"') == (("a", "=", "x"), ("b", "!=", 'y"z'), ("c", "=~", "1|2"))
    assert parse_matchers("") == ()
    for wrong in ("a=x", 'a="x" b="y"', '{a="x"}', 'a=~"("', 'a="x'):
        with pytest.raises(ValueError, match="match"):
            parse_matchers(wrong)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slo": []}, "at least 1 item"),
        ({"slo": [{"metric": "ttft", "limit": 1}]}, "ttft needs percentile"),
        ({"slo": [{"metric": "queue", "limit": 1, "percentile": 0.9}]}, "percentile = 0.9 is for ttft, inter_token, e2e"),
        ({"slo": [{"metric": "error_rate", "limit": 2, "counter_bad": "a", "counter_all": "b"}]}, "a share of requests"),
        (
            {"slo": [{"metric": "error_rate", "limit": 0.1}]},
            "the preset vllm has none for it; name .* by counter_bad and counter_all",
        ),
        ({"preset": ""}, "slo ttft: there is no preset; name the server's own metric by histogram"),
        ({"slo": [{"metric": "queue", "limit": 1, "histogram": "x"}]}, "histogram is not for queue, which is read from gauge"),
        ({"slo": [{"metric": "ttft", "limit": 1, "percentile": 0.9, "histogram": "a{}"}]}, "is not the name of a metric"),
        ({"match": "model=llama"}, "must be label matchers"),
        ({"url": "ftp://x"}, "must be a URL"),
        ({"url": "http://a:b@x/metrics"}, "token_env or token_file"),
        ({"source": "prometheus", "url": "http://x?query=1"}, "the Prometheus server's address alone"),
        ({"stale_s": 3, "scrape_s": 2}, "more than two times scrape_s"),
        ({"token_env": "A", "token_file": "b"}, "not both"),
    ],
)
def test_a_wrong_serving_is_named(page: Page, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(page, **changes)


def test_what_only_its_region_tells_is_named(tmp_path: Path) -> None:
    serving = '[[region.serving]]\nname = "chat"\nsource = "metrics"\nurl = "http://chat/metrics"\nbranch = "rack-2"\n'
    slo = '[[region.serving.slo]]\nmetric = "queue"\nlimit = 4\ngauge = "waiting"\n'
    path = tmp_path / "gridshift.toml"
    region = '[[region]]\nname = "north"\naddress = "http://127.0.0.1:1"\n[[region.branch]]\nname = "rack-1"\n'
    path.write_text(region + (serving + slo) * 2, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    said = str(caught.value)
    assert "'chat' is used by serving[0] of this region already; names must differ" in said
    assert said.count("'rack-2'") == 2 and "rack-1" in said
