"""The wheel is complete: installed in an environment of its own, it serves the page and loads the kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel; the dependencies are this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*wheel, str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(
        subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    )
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(built)]
    subprocess.run(install, check=True)
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Run in an empty folder, so that nothing of the checkout is found by chance."""
    folder = tmp_path_factory.mktemp("elsewhere")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {"cwd": folder, "env": {**env, "XDG_DATA_HOME": str(folder)}}


def test_the_kernels_and_the_library_come_from_the_wheel(python: Path, elsewhere: dict[str, object]) -> None:
    code = (
        "import ddtree, ddtree._kernels, torch; "
        "rows = torch.log(torch.tensor([[.7, .3]])), torch.tensor([[10, 11]]); "
        "tree = ddtree.build_ddtree_tree_from_topk(*rows, 2); "
        "print(tree.token_ids.tolist(), ddtree.__file__, ddtree._kernels.__file__)"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, **elsewhere)
    assert done.stdout.startswith("[10, 11]")
    assert str(ROOT) not in done.stdout


@pytest.fixture
def served(python: Path, elsewhere: dict[str, object]) -> Iterator[str]:
    command = [python, "-m", "app.cli", "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **elsewhere
    ) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found.group()
                    break
            else:
                pytest.fail("the server did not start:\n" + "".join(lines))
        finally:
            process.terminate()


def test_the_page_and_its_files_come_from_the_wheel(served: str) -> None:
    with urllib.request.urlopen(served, timeout=10) as page:
        html = page.read().decode()
    assert 'data-testid="prompt"' in html
    links = set(re.findall(r'(?:src|href)="(/[^"]+)"', html))
    assert any("plotly" in link for link in links) or "plotly" in html
    for link in links:
        with urllib.request.urlopen(served + link, timeout=20) as file:
            assert file.status == 200, link
            assert file.read(), link
