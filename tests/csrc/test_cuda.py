"""The CUDA sources compile for every architecture without a warning, and the module that has them loads and
passes the kernels' tests whether there is a GPU or not. Skipped where there is no nvcc.

The build is kept in build/cuda; nvcc takes about two minutes of two cores when the sources have changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nanobind
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "cuda"
NVCC = os.environ.get("CUDACXX") or shutil.which("nvcc")

pytestmark = [
    pytest.mark.skipif(NVCC is None, reason="no nvcc: the CUDA sources were not compiled"),
    pytest.mark.timeout(1800),
]

WITH_THE_MODULE = """
import importlib.util, sys
import ddtree
spec = importlib.util.spec_from_file_location("ddtree._kernels", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["ddtree._kernels"] = ddtree._kernels = module
"""


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def module() -> Path:
    """The module with CUDA, built for all architectures; any warning of nvcc is an error."""
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "DDTREE_CUDA": "ON",
        "nanobind_DIR": nanobind.cmake_dir(),
        "Python_EXECUTABLE": sys.executable,
    }
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert cmake, "no cmake: install it"
    run(cmake, "-S", ROOT, "-B", FOLDER, *(f"-D{name}={value}" for name, value in settings.items()))
    printed = run(cmake, "--build", FOLDER, "--parallel", "2")
    assert "warning" not in printed.lower(), printed
    (built,) = FOLDER.glob("_kernels*.so")
    return built


def test_it_says_what_it_was_built_for(module: Path) -> None:
    code = (
        WITH_THE_MODULE
        + "from ddtree.launch import describe_kernels; print(*describe_kernels(), sep=chr(10))"
    )
    lines = run(sys.executable, "-c", code, module).splitlines()
    assert lines[1].startswith("kernels: CUDA for sm_80, sm_90, sm_100 and")


def test_it_passes_the_kernels_tests(module: Path) -> None:
    names = ("tree", "retrieve", "sampling", "sampling_batch", "padded", "launch", "ops")
    files = [f"tests/ddtree/test_{name}.py" for name in names]
    code = WITH_THE_MODULE + "import pytest; sys.exit(pytest.main(['-p', 'no:cacheprovider', *sys.argv[2:]]))"
    run(sys.executable, "-c", code, module, *files)
