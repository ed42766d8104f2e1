"""A C program is compiled against an installed prefix, by pkg-config and by the CMake package, and runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specc.runtime import engine_library, library

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "generate.c"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
CMAKE, CC, PKG_CONFIG = (shutil.which(name, path=PATH) for name in ("cmake", "cc", "pkg-config"))
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
PROJECT = f"""cmake_minimum_required(VERSION 3.18)
project(example C)
find_package(specc 0.1 REQUIRED)
add_executable(generate {EXAMPLE})
target_link_libraries(generate PRIVATE specc::specc)
"""

pytestmark = pytest.mark.skipif(not (CMAKE and CC), reason="needs cmake and a C compiler")


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    """A command that must succeed unless `check` says otherwise."""
    settings = {"check": True, "capture_output": True, "text": True, **options}
    return subprocess.run([str(word) for word in command], **settings)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` puts in place; the library is the one under test, so nothing is compiled."""
    build, out = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("prefix")
    run(CMAKE, "-S", ROOT / "runtime", "-B", build)
    shutil.copy(library().path, build / "libspecc.so")
    run(CMAKE, "--install", build, "--prefix", out)
    return out


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle around a graph of two layers and 48 ids, with prompt lookup as its draft."""
    writer, sources = (
        tmp_path_factory.mktemp("writer") / "tiny_bundle",
        ROOT / "tests" / "c" / "tiny_bundle.c",
    )
    sha256 = ROOT / "runtime" / "core" / "io" / "sha256.c"
    run(CC, "-std=gnu11", "-w", f"-I{ROOT / 'runtime'}", sources, sha256, "-lm", "-o", writer)
    folder = Path(run(writer).stdout.strip())
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(not PKG_CONFIG, reason="needs pkg-config")
def test_example_runs(prefix: Path, bundle: Path, tmp_path: Path) -> None:
    """Compiled by pkg-config's flags, the example generates and says why nothing was proposed."""
    found = next(prefix.rglob("specc.pc")).parent
    flags = run(PKG_CONFIG, "--cflags", "--libs", "specc", env={"PKG_CONFIG_PATH": str(found), "PATH": PATH})
    program, libraries = tmp_path / "generate", next(prefix.rglob("libspecc.so")).parent
    run(CC, "-std=c11", *WARNINGS, EXAMPLE, *flags.stdout.split(), f"-Wl,-rpath,{libraries}", "-o", program)
    usage = run(program, check=False)
    assert usage.returncode == 2 and "usage" in usage.stderr
    missing = run(program, tmp_path / "none", engine_library(), 1, check=False)
    assert missing.returncode == 1 and "manifest" in missing.stderr
    lines = run(program, bundle, engine_library(), 1, 5, 7).stdout.splitlines()
    assert all("0" <= character < "`" for character in lines[0]) and "target calls" in lines[1]
    assert lines[2] == "speculation is off: uncertified-device"


def test_cmake_package(prefix: Path, tmp_path: Path) -> None:
    """find_package(specc) gives a target that the example links with."""
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    build = tmp_path / "build"
    run(
        CMAKE,
        "-S",
        tmp_path,
        "-B",
        build,
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_FLAGS={' '.join(WARNINGS)}",
    )
    run(CMAKE, "--build", build)
    assert run(build / "generate", check=False).returncode == 2
