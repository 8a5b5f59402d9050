"""The native pass on several workers under two sanitizers: one worker's bits, no race, no stray access."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from test_threads import RACE, ROOT

from ddtree import _kernels

AVX512 = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512"
FLAGS = {"forward_avx2": "-mavx2 -mfma", "forward_avx512": AVX512}
SOURCES = [
    "forward",
    "forward_avx2",
    "forward_avx512",
    "matrix",
    "team",
    "product_amx",
    "product_pairs",
    "instruction_set",
]


@pytest.mark.skipif(not _kernels.can_run_forward(), reason="needs AVX2 and FMA")
@pytest.mark.parametrize("sanitizer", ["thread", pytest.param("address", marks=pytest.mark.proof)])
def test_workers_agree_without_a_race(sanitizer: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "g++")
    common = f"-std=c++20 -O1 -g -Wno-psabi -Icsrc -Icsrc/include -pthread -fsanitize={sanitizer}".split()
    objects = []
    for name in SOURCES:
        made = str(tmp_path / f"{name}.o")
        flags = FLAGS.get(name, "").split()
        source = f"csrc/cpu/{name}.cpp"
        subprocess.run([compiler, *common, *flags, "-c", source, "-o", made], cwd=ROOT, check=True)
        objects.append(made)
    program = str(tmp_path / "forward")
    subprocess.run(
        [compiler, *common, "tests/csrc/forward.cpp", *objects, "-o", program], cwd=ROOT, check=True
    )
    environment = {
        **os.environ,
        "TSAN_OPTIONS": f"halt_on_error=1:exitcode={RACE}",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    ran = subprocess.run([program, "12"], env=environment, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "12 passes\n"
