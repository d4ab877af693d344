"""What is installed: every module, the sample, and no heavy import where none is needed."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("sim", "allocators", "kernels", "traces", "experiments")


@pytest.fixture(scope="module")
def project() -> dict:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> set[str]:
    """Every module of the code folders, as a path from the root."""
    return {str(path.relative_to(ROOT)) for folder in CODE for path in (ROOT / folder).rglob("*.py")}


def test_every_folder_with_modules_is_listed(project: dict) -> None:
    folders = {str(Path(module).parent).replace(os.sep, ".") for module in modules()}
    assert {f"kvreplay.{folder}" for folder in folders} == set(project["tool"]["setuptools"]["packages"])


def test_kernels_is_a_namespace_and_the_others_are_packages() -> None:
    """A `kernels/__init__.py` at the root would hide the library of that name from whoever runs here."""
    assert {folder for folder in CODE if (ROOT / folder / "__init__.py").exists()} == set(CODE) - {"kernels"}
    assert not (ROOT / "kvreplay").exists()


def test_imports_across_folders_are_relative() -> None:
    """So that they follow the folders as they stand, installed or not."""
    for module in modules():
        lines = [line.strip() for line in (ROOT / module).read_text().splitlines()]
        assert not [line for line in lines if line.startswith(("from kvreplay", "import kvreplay"))], module


def test_lower_folders_do_not_import_higher_ones() -> None:
    allowed = {
        "traces": set(),
        "allocators": set(),
        "sim": {"traces", "allocators"},
        "kernels": {"traces", "allocators", "sim"},
    }
    for module in modules():
        folder = Path(module).parts[0]
        for line in (ROOT / module).read_text().splitlines():
            words = line.split()
            if folder in allowed and words[:1] == ["from"] and words[1].startswith(".."):
                assert words[1].strip(".").split(".")[0] in allowed[folder], (module, line)


def test_what_modules_import_at_their_top_is_declared(project: dict) -> None:
    """Imports inside functions may be of optional libraries."""
    names = {re.split(r"[<>=;\[ ]", text)[0].lower() for text in project["project"]["dependencies"]}
    declared = {{"pyyaml": "yaml"}.get(name, name) for name in names}
    for module in modules():
        if not module.startswith("kernels"):
            imported = _top_imports(ast.parse((ROOT / module).read_text()))
            assert imported <= declared | set(sys.stdlib_module_names), module


def _top_imports(tree: ast.Module) -> set[str]:
    absolute = [node for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level and node.module]
    plain = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    return {name.partition(".")[0] for name in [*plain, *(str(node.module) for node in absolute)]}


def loaded_after(code: str) -> set[str]:
    """Top-level modules in a process that ran `code`."""
    report = f"{code}\nimport sys; print('\\n'.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"torch", "triton", "pandas", "pyarrow", "matplotlib", "scipy", "jinja2"}


def test_importing_the_command_imports_nothing_heavy() -> None:
    loaded = loaded_after("import kvreplay.experiments.cli")
    assert not loaded & (HEAVY | {"simpy", "rich", "yaml"})


def test_replaying_imports_no_more_than_it_needs() -> None:
    loaded = loaded_after(
        "from kvreplay.experiments.cli import main\n"
        "import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()): assert main(['replay', 'sample', '--limit', '20']) == 0"
    )
    assert "simpy" in loaded
    assert not loaded & HEAVY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The project's wheel, built from a copy of what belongs into it, so that the tree stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in [*modules(), "pyproject.toml", "README.md", "LICENSE", *_data()]:
        if (ROOT / path).exists():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes((ROOT / path).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source]
    if _has_setuptools(77):
        command.insert(4, "--no-build-isolation")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the build backend could not be had in time")
    built = list(folder.glob("*.whl"))
    if not built:
        if "No matching distribution" in done.stderr or "connection" in done.stderr.lower():
            pytest.skip("the build backend cannot be had here")
        raise AssertionError(done.stderr)
    return zipfile.ZipFile(built[0])


def _data() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in (ROOT / "traces" / "data").iterdir()]


def _has_setuptools(version: int) -> bool:
    if importlib.util.find_spec("setuptools") is None:
        return False
    from importlib.metadata import version as version_of

    return int(version_of("setuptools").partition(".")[0]) >= version


def test_the_wheel_has_every_module_and_the_data_and_no_more(wheel: zipfile.ZipFile) -> None:
    expected = {f"kvreplay/{path}" for path in {*modules(), *_data()}}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == {
        name.replace(os.sep, "/") for name in expected
    }


def test_the_wheel_brings_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    info = {name.partition("/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert b"kvreplay = kvreplay.experiments.cli:main" in wheel.read(info["entry_points.txt"])
    assert any("LICENSE" in name for name in info)


def test_the_wheel_runs(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked and in front of everything else, it replays the sample."""
    wheel.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "kvreplay.experiments", "replay", "sample", "--limit", "20"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "20 completed" in done.stdout
