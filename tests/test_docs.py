"""The documents: their commands parse and run, their links lead somewhere, every command is mentioned."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from kvreplay.experiments.cli import COMMANDS, main
from run_kvreplay import kvreplay

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
CHEAP = {"replay", "trace"}
"""Subcommands that are run where a document uses them on built-in data; the others are only parsed."""


def fenced(document: Path, *languages: str) -> list[str]:
    """The fenced blocks of a document in one of the languages."""
    blocks = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in blocks if language in languages]


def commands_in(document: Path) -> list[list[str]]:
    """The arguments of each `kvreplay ...` command in a document's shell blocks."""
    commands: list[list[str]] = []
    for block in fenced(document, "console", "bash", "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\||[|;]", line.strip().removeprefix("$ ")):
                words = _words(part)
                if words and Path(words[0]).name == "kvreplay":
                    commands.append(words[1:])
    return commands


def _words(text: str) -> list[str]:
    """The words of a shell command, up to a comment or redirection; none where it is not one."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return []
    ends = [place for place, word in enumerate(words) if re.match(r"\d?[<>]", word)]
    return words[: ends[0]] if ends else words


ALL = [(document.name, words) for document in DOCUMENTS for words in commands_in(document)]


def test_the_readme_shows_commands() -> None:
    assert any(name == "README.md" for name, _ in ALL)


@pytest.mark.parametrize(("document", "words"), ALL, ids=[f"{name}: {' '.join(words)}" for name, words in ALL])
def test_command_parses(
    document: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in COMMANDS:
        module = importlib.import_module(f"kvreplay.experiments.{command}_command")
        monkeypatch.setattr(module, "run", lambda args: 0)
    try:
        status = main(words)
    except SystemExit as asked_for_help:
        status = asked_for_help.code
    assert (status, capsys.readouterr().err) == (0, "")


def runnable() -> list[list[str]]:
    """Commands on built-in data that need nothing from before and write nothing to a fixed place."""
    traces = [words for _, words in ALL if words[:1] and words[0] in CHEAP and "sample" in words]
    configured = {"-c", "--config", "--mapping"}
    distinct = {tuple(words) for words in traces if not configured & set(words)}
    return [list(words) for words in sorted(distinct)]


@pytest.mark.parametrize("words", runnable(), ids=" ".join)
def test_command_on_built_in_data_runs(words: list[str], tmp_path: Path) -> None:
    done = kvreplay(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_configurations_in_the_documents_are_valid(tmp_path: Path) -> None:
    """Blocks that begin with a comment naming a file, where a command of the document reads that file."""
    for document in DOCUMENTS:
        read = {word for words in commands_in(document) for word in words if word.endswith(".yaml")}
        for block in fenced(document, "yaml"):
            named = re.match(r"# (\S+\.yaml)", block)
            if named and named[1] in read:
                (tmp_path / named[1]).write_text(block)
                capacity = ("--set", "allocator.num_blocks=1001")
                done = kvreplay("replay", "sample", "--limit", 20, "-c", tmp_path / named[1], *capacity)
                assert done.returncode == 0, (document.name, done.stderr)


def test_every_subcommand_is_in_the_readme() -> None:
    text = README.read_text()
    assert not [command for command in COMMANDS if f"kvreplay {command}" not in text]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_into_the_repository_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert not [target for target in local if target and not (document.parent / target).exists()]


def test_paths_of_one_machine_are_nowhere() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    suffixes = (".md", ".py", ".toml", ".yaml", ".yml", ".ipynb", ".cfg")
    names = listed.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in DOCUMENTS]
    machine = re.compile(r"(?<![\w.~$}])/" + r"(work|home|root|Users|opt/dev|opt/kern)/\w")
    found = [
        f"{name}: {match[0]}"
        for name in names
        if name.endswith(suffixes) and (ROOT / name).exists()
        for match in machine.finditer((ROOT / name).read_text(errors="replace"))
    ]
    assert not found


def test_every_document_is_linked_from_the_readme() -> None:
    text = README.read_text()
    assert not [path.name for path in DOCUMENTS[1:] if f"docs/{path.name}" not in text]
