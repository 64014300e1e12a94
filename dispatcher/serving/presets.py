"""Which metrics tell what of a server, by their own names and units."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """A histogram of ``per_s`` units a second, a gauge, or two counters: of requests that failed, and of all (where ``good``
    is set, of those that did not fail)."""

    histogram: str = ""
    per_s: float = 1.0
    gauge: str = ""
    bad: str = ""
    total: str = ""
    good: str = ""


def _seconds(name: str) -> Measure:
    return Measure(histogram=name)


#: What a server has to do now: the sum of these gauges, or of the requests that these counters count each second.
LOADS: Mapping[str, tuple[Measure, ...]] = {
    "vllm": (Measure(gauge="vllm:num_requests_running"), Measure(gauge="vllm:num_requests_waiting")),
    "sglang": (Measure(gauge="sglang:num_running_reqs"), Measure(gauge="sglang:num_queue_reqs")),
    "triton": (Measure(total="nv_inference_request_success"),),
    "ray-serve": (
        Measure(gauge="ray_serve_replica_processing_queries"),
        Measure(gauge="ray_serve_deployment_queued_queries"),
    ),
}

PRESETS: Mapping[str, Mapping[str, Measure]] = {
    # https://docs.vllm.ai "Production Metrics", V1 engine; it counts no failed requests
    "vllm": {
        "ttft": _seconds("vllm:time_to_first_token_seconds"),
        "inter_token": _seconds("vllm:inter_token_latency_seconds"),
        "e2e": _seconds("vllm:e2e_request_latency_seconds"),
        "queue": Measure(gauge="vllm:num_requests_waiting"),
    },
    # https://docs.sglang.io "Production Metrics" (with --enable-metrics)
    "sglang": {
        "ttft": _seconds("sglang:time_to_first_token_seconds"),
        "inter_token": _seconds("sglang:inter_token_latency_seconds"),
        "e2e": _seconds("sglang:e2e_request_latency_seconds"),
        "queue": Measure(gauge="sglang:num_queue_reqs"),
    },
    # Triton's user guide, "Metrics"; its latencies are sums, and the histogram of first responses is off unless asked for, so
    # that it is left to be named
    "triton": {
        "queue": Measure(gauge="nv_inference_pending_request_count"),
        "error_rate": Measure(bad="nv_inference_request_failure", good="nv_inference_request_success"),
    },
    # Ray 2.60, serve/_private/request_ingress_metrics.py and router.py; Ray puts ray_ before its names
    "ray-serve": {
        "e2e": Measure(histogram="ray_serve_http_request_latency_ms", per_s=1000.0),
        "queue": Measure(gauge="ray_serve_deployment_queued_queries"),
        "error_rate": Measure(bad="ray_serve_num_http_error_requests", total="ray_serve_num_http_requests"),
    },
}
