"""The list of runs over HTTP: pages, tags and notes, delete and undo, many runs and the table as files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import Brake, FakeEngine
from fake_server import FakeServer, Serve
from test_api import decode, get

from app.cli import main
from app.run_list import CSV_COLUMNS
from ddtree.trace_file import TraceError, load_trace, load_traces


def patch(server: FakeServer, run_id: str, **body: Any) -> httpx.Response:
    return httpx.patch(f"{server.url}/api/runs/{run_id}", json=body)


def ids(server: FakeServer, **params: Any) -> list[str]:
    return [run["run_id"] for run in get(server, "/api/runs", **params)["runs"]]


def test_a_row_carries_settings_figures_tags_and_notes(serve: Serve) -> None:
    server = serve()
    run_id = decode(server, "rivers", tokens=5, temperature=0.5, budget=9)
    (row,) = get(server, "/api/runs")["runs"]
    assert (row["drafter"], row["budget"], row["temperature"]) == ("ngram", 9, 0.5)
    assert (row["tau"], row["tokens_per_second"]) == (pytest.approx(5 / 3), None)
    assert (row["tags"], row["notes"], row["forked_from"]) == ([], "", None)
    edited = patch(server, run_id, tags=["a", " b c ", "a", " "], notes="=1+1")
    assert edited.status_code == 200 and edited.json()["tags"] == ["a", "b c"]
    assert patch(server, run_id, tags=["new"]).json()["notes"] == "=1+1"
    assert ids(server, search="tag:new") == ids(server, search="river 1+1") == [run_id]
    assert ids(server, search="lake") == []


def test_sorted_pages_follow_each_other(serve: Serve) -> None:
    server = serve()
    runs = [
        decode(server, prompt, tokens=tokens) for prompt, tokens in [("b", 2), ("C", 6), ("a", 4), ("a", 8)]
    ]
    b, c, a, a2 = runs
    assert ids(server, sort="prompt", order="asc") == [a, a2, b, c]
    assert ids(server, sort="steps") == [a2, c, a, b]
    seen, after = [], {}
    while True:
        page = get(server, "/api/runs", sort="prompt", order="asc", limit=1, **after)
        seen += [run["run_id"] for run in page["runs"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == [a, a2, b, c]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"sort": "colour"}, "sort"),
        ({"order": "up"}, "order"),
        ({"after": "nowhere"}, "after"),
        ({"limit": 0}, "limit"),
        ({"search": "x" * 401}, "search"),
    ],
)
def test_a_bad_question_is_named(serve: Serve, params: dict[str, Any], field: str) -> None:
    answer = httpx.get(f"{serve().url}/api/runs", params=params)
    assert answer.status_code == 422 and answer.json()["field"] == field
    assert "cannot be" in answer.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"tags": [""]},
        {"tags": ["a,b"]},
        {"tags": ["x" * 65]},
        {"tags": ["a"] * 33},
        {"notes": 5},
        {"name": "x"},
    ],
)
def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(serve: Serve, body: dict[str, Any]) -> None:
    server = serve()
    run_id = decode(server)
    answer = patch(server, run_id, **body)
    assert answer.status_code == 422 and answer.json()["code"] == "bad_value"
    run = get(server, f"/api/runs/{run_id}")
    assert (run["tags"], run["notes"]) == ([], "")
    assert patch(server, "nothing", tags=[]).status_code == 404
    assert patch(server, run_id, notes="x" * 20_001).status_code == 422
    assert httpx.patch(f"{server.url}/api/runs/{run_id}", content=b" " * 2**20).status_code == 413


def test_delete_can_be_taken_back(serve: Serve) -> None:
    server = serve()
    run_id = decode(server)
    exported = httpx.get(f"{server.url}/api/runs/{run_id}/trace").content
    restore = f"{server.url}/api/runs/{run_id}/restore"
    assert httpx.post(restore).status_code == 404
    assert httpx.delete(f"{server.url}/api/runs/{run_id}").status_code == 204
    assert httpx.delete(f"{server.url}/api/runs/{run_id}").status_code == 404
    assert ids(server) == []
    assert httpx.get(f"{server.url}/api/runs/{run_id}/trace").status_code == 404
    assert httpx.post(restore).json()["run_id"] == run_id
    assert ids(server) == [run_id]
    assert httpx.get(f"{server.url}/api/runs/{run_id}/trace").content == exported


def test_several_runs_are_one_file_that_check_and_import_take(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    runs = [decode(server, prompt) for prompt in ("one", "two")]
    answer = httpx.get(f"{server.url}/api/runs/export", params={"ids": ",".join(runs)})
    assert 'filename="ddtree-2-runs.json"' in answer.headers["content-disposition"]
    traces = load_traces(answer.content)
    assert [trace.prompt.text for trace in traces] == ["one", "two"]
    alone = [httpx.get(f"{server.url}/api/runs/{run_id}/trace").text for run_id in runs]
    assert answer.text == f"[{','.join(alone)}]"
    file = tmp_path / "runs.json"
    file.write_bytes(answer.content)
    assert main(["check", str(file)]) in (0, 1)  # made-up steps; that it is read is the point
    assert "of 2 runs" in "".join(capsys.readouterr())
    imported = httpx.post(f"{server.url}/api/traces", content=answer.content)
    assert imported.status_code == 201 and imported.json()["runs"] == 2
    assert [run["prompt"] for run in get(server, "/api/runs")["runs"]] == ["two", "one", "two", "one"]


def test_a_fault_in_a_list_of_traces_is_named_with_its_place(serve: Serve) -> None:
    server = serve()
    trace = httpx.get(f"{server.url}/api/runs/{decode(server)}/trace").json()
    broken = json.loads(json.dumps(trace))
    broken["steps"][1]["tree"]["parents"] = [-1, 2, 1]
    with pytest.raises(TraceError, match=r"\[1\]\.steps\[1\]\.tree\.parents\[1\]"):
        load_traces(json.dumps([trace, broken]).encode())
    with pytest.raises(TraceError, match=r"\[0\]: not a trace"):
        load_traces(b"[5]")
    with pytest.raises(TraceError, match="not a trace"):
        load_trace(json.dumps([trace]).encode())
    before = len(ids(server))
    assert httpx.post(f"{server.url}/api/traces", content=json.dumps([trace, broken])).status_code == 422
    assert len(ids(server)) == before


@pytest.mark.parametrize(
    ("given", "status"), [("", 422), (",".join(map(str, range(201))), 422), ("none", 404)]
)
def test_an_export_of_nothing_of_too_many_or_of_none_is_refused(
    serve: Serve, given: str, status: int
) -> None:
    assert httpx.get(f"{serve().url}/api/runs/export", params={"ids": given}).status_code == status


def test_the_table_is_csv_that_no_spreadsheet_calculates(serve: Serve) -> None:
    server = serve()
    evil = [
        decode(server, prompt) for prompt in ("=1+1", "+1", "-1", "@x", 'say "hi", twice\nand go', "\t=1")
    ]
    assert patch(server, evil[0], tags=["=a", "b"], notes="-2").status_code == 200
    answer = httpx.get(f"{server.url}/api/runs.csv", params={"sort": "date", "order": "asc"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["run_id"] for row in rows] == evil
    assert [row["prompt"] for row in rows] == [
        "'=1+1", "'+1", "'-1", "'@x", 'say "hi", twice\nand go', "'\t=1",
    ]  # fmt: skip
    assert (rows[0]["tags"], rows[0]["notes"]) == ("'=a; b", "'-2")
    assert (rows[0]["steps"], rows[0]["tau"], rows[0]["tokens_per_second"]) == ("3", "2.0", "")
    for row in rows:
        for cell in row.values():
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    some = httpx.get(f"{server.url}/api/runs.csv", params={"ids": ",".join(evil[:2])}).text
    assert len(list(csv.reader(io.StringIO(some, newline="")))) == 3


def test_a_live_run_is_listed_and_not_deleted(serve: Serve) -> None:
    brake = Brake(step=1)
    server = serve(FakeEngine(at=brake))
    with server.client() as client:
        client.ready()
        run_id = client.start(settings={"max_new_tokens": 10})
        client.until("step")
        (row,) = get(server, "/api/runs")["runs"]
        assert (row["state"], row["steps"], row["tau"]) == ("running", 1, 2.0)
        assert httpx.delete(f"{server.url}/api/runs/{run_id}").status_code == 409
        brake.release()
        client.until("finished")
