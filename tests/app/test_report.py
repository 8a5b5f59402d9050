"""The report's parts: which modules it carries, how they name each other, where a run is found."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from test_runs import made_run

from app.cli import main
from app.report import ORIGINAL, modules, report
from app.resources import resource_dir
from app.runs import RunStore
from ddtree.trace import Trace
from ddtree.trace_file import load_trace


def made_trace(prompt: str = "p") -> Trace:
    head, steps, summary = made_run(5, prompt)
    return head.model_copy(update={"steps": steps, "summary": summary})


def test_every_import_of_a_carried_module_is_carried() -> None:
    carried = modules(resource_dir("static"))
    assert {"main.js", "core/api.js", ORIGINAL + "core/api.js", "report/embedded.js"} <= set(carried)
    assert "embedded" in carried["core/socket.js"] and "WebSocket" not in carried["core/socket.js"]
    for name, text in carried.items():
        imported = re.findall(r'(?m)(?:\bfrom\s+|^import\s+)"([^"\n]+\.js)"', text)
        assert set(imported) <= set(carried), name
        assert "import(" not in text, name


def test_the_file_carries_the_trace_and_nothing_of_it_as_markup() -> None:
    evil = "</script><b id='evil'>&amp;\u2028"
    trace = made_trace(evil)
    page = report(trace, "run-1")
    assert evil not in page
    (data,) = re.findall(r'<script type="application/json" id="report-trace">(.*?)</script>', page)
    assert load_trace(data.encode()) == trace
    assert "default-src 'none'" in page
    assert not re.findall(
        r'(?:src|href)="(?!data:|#)[^"]+"', page.split("<body", 1)[1].split("<script", 1)[0]
    )
    (imports,) = re.findall(r'<script type="importmap">(.*?)</script>', page)
    urls = json.loads(imports)["imports"]
    main_js = base64.b64decode(urls["main.js"].partition(",")[2]).decode()
    assert '"core/socket.js"' in main_js


def test_a_run_is_found_by_file_and_by_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "run.json", tmp_path / "report.html"
    file.write_text(made_trace().to_json(), encoding="utf-8")
    assert main(["report", str(file), "-o", str(out)]) == 0
    assert "5 steps of run run" in capsys.readouterr().out and out.stat().st_size > 10**6
    store = RunStore(tmp_path)
    (run_id,) = store.import_traces([made_trace()])
    assert (
        main(["report", run_id, "-o", str(out), "--data", str(tmp_path)]) == 0
    )  # a server may be serving it
    store.close()
    assert run_id in out.read_text(encoding="utf-8")


def test_what_cannot_be_reported_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    RunStore(tmp_path / "data").close()
    (tmp_path / "empty").mkdir()
    for arguments, reason in [
        (["nothing", "--data", str(tmp_path / "data")], "nothing is neither a file nor a run stored in"),
        (["nothing", "--data", str(tmp_path / "empty")], "name its --data folder"),
        ([str(broken)], "not a trace"),
    ]:
        assert main(["report", *arguments, "-o", str(tmp_path / "x.html")]) == 2
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists() and list((tmp_path / "empty").iterdir()) == []
    broken.write_text(made_trace().to_json())
    assert main(["report", str(broken), "-o", str(tmp_path / "no" / "x.html")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
