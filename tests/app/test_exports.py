"""A run's stages over HTTP, for Perfetto."""

from __future__ import annotations

import httpx
from fake_server import Serve
from test_api import decode

from ddtree.chrome_trace import step_events
from ddtree.trace_file import load_trace


def test_the_stages_are_the_stored_runs_own(serve: Serve) -> None:
    server = serve()
    run_id = decode(server, tokens=20)
    answer = httpx.get(f"{server.url}/api/runs/{run_id}/perfetto")
    assert f'filename="ddtree-{run_id}.perfetto.json"' in answer.headers["content-disposition"]
    found = answer.json()
    assert found["displayTimeUnit"] == "ms"
    named, events = found["traceEvents"][:3], found["traceEvents"][3:]
    assert named[0]["args"]["name"] == f"{run_id} on fake"
    steps = load_trace(httpx.get(f"{server.url}/api/runs/{run_id}/trace").content).steps
    assert events == list(step_events(steps)) and len(events) == 10 * 8
    assert events[0] | {"args": None} == {
        "name": "step 0", "cat": "step", "ph": "X", "ts": 0, "dur": 700, "pid": 1, "tid": 1, "args": None,
    }  # fmt: skip
    assert httpx.get(f"{server.url}/api/runs/none/perfetto").status_code == 404
