"""The kernels' headers on real threads: equal to the serial executor, and every synchronisation is needed.

A few threads are teams of one each, as CPU workers are; 32 and more are warps, as on a GPU. Builds the
standalone program (executors.cpp) under ThreadSanitizer and under AddressSanitizer and drives it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITES = {
    int(number): name
    for name, number in re.findall(
        r"^\s+(kSite\w+) = (\d+),", (ROOT / "csrc/include/ddtree/executor.h").read_text(), re.MULTILINE
    )
}
RACE = 66
DIFFERENT = 1
FEW = 0  # 2 to 5 threads, drawn for each case
STUCK = -14  # SIGALRM: workers wait for each other
SECONDS_UNTIL_STUCK = 4


def build(sanitizers: str, level: str, into: Path) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler: install g++"
    program = into / "executors"
    flags = f"-std=c++20 {level} -g -Wall -Wextra -Werror -Wno-psabi -ffp-contract=off -pthread".split()
    includes = ["-Icsrc/include", "-Itests/csrc"]
    source = "tests/csrc/executors.cpp"
    command = [compiler, *flags, f"-fsanitize={sanitizers}", *includes, source, "-o", str(program)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="session")
def racing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("thread", "-O1", tmp_path_factory.mktemp("tsan"))


@pytest.fixture(scope="session")
def addressing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("address", "-O0", tmp_path_factory.mktemp("asan"))


def run(program: Path, *arguments: str | int) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TSAN_OPTIONS": f"halt_on_error=1:exitcode={RACE}",
        "ASAN_OPTIONS": "detect_leaks=0",  # leaks cannot be looked for where ptrace is not allowed
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)


def names_passing(site: int, program: Path, workers: int) -> list[str]:
    listed = run(program, "--list", "--workers", workers).stdout.splitlines()
    return [name for name, *sites in map(str.split, listed) if str(site) in sites]


@pytest.mark.parametrize(("workers", "cases"), [(FEW, 200), (32, 12), (64, 5), (256, 2)])
def test_threads_equal_serial_without_a_race(racing: Path, workers: int, cases: int) -> None:
    ran = run(racing, "--workers", workers, "--cases", cases, "--seed", 1)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_access_is_out_of_bounds(addressing: Path) -> None:
    ran = run(addressing, "--cases", 300, "--seed", 10_000)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_seeds_repeat(racing: Path) -> None:
    assert run(racing, "--cases", 3, "--seed", 5).stdout == run(racing, "--cases", 3, "--seed", 5).stdout


def expect_noticed(program: Path, site: int, workers: int) -> None:
    for test in names_passing(site, program, workers):
        limits = ("--cases", 500, "--seconds", SECONDS_UNTIL_STUCK)
        ran = run(program, "--workers", workers, "--test", test, "--skip", site, *limits)
        assert ran.returncode in (RACE, DIFFERENT, STUCK), f"{test} did not need {SITES[site]}:\n{ran.stdout}"


@pytest.mark.parametrize("site", SITES, ids=SITES.get)
def test_a_skipped_site_is_noticed(racing: Path, site: int) -> None:
    workers = FEW if names_passing(site, racing, FEW) else 32
    assert names_passing(site, racing, workers), f"no test passes {SITES[site]}"
    expect_noticed(racing, site, workers)


def test_a_site_that_nobody_passes_changes_nothing(racing: Path) -> None:
    unused = max(SITES) + 1
    ran = run(racing, "--cases", 30, "--skip", unused)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.proof
@pytest.mark.parametrize("site", SITES, ids=SITES.get)
def test_a_site_that_warps_skip_is_noticed(racing: Path, site: int) -> None:
    expect_noticed(racing, site, 32)


@pytest.mark.proof
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("workers", "cases"), [(FEW, 10_000), (32, 1_000), (64, 300), (256, 50)])
def test_thousands_of_cases(racing: Path, tmp_path: Path, workers: int, cases: int) -> None:
    for program in (racing, build("address,undefined", "-O1", tmp_path)):
        ran = run(program, "--workers", workers, "--cases", cases, "--seed", 1_000_000)
        assert ran.returncode == 0, ran.stdout + ran.stderr
