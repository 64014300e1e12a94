"""The README's examples are at least well formed, and name only commands, keys and files that there are."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from dispatcher.config import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


SIGNALS = (ROOT / "signals" / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_blocks_compile(text: str) -> None:
    tree = compile(text, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert tree.body  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", [*blocks("toml"), *blocks("toml", SIGNALS)])
def test_toml_blocks_are_valid_configurations(text: str, tmp_path: Path) -> None:
    assert tomllib.loads(text)
    path = tmp_path / "gridshift.toml"
    path.write_text(text, encoding="utf-8")
    assert load(path, {})


def test_there_are_examples() -> None:
    assert len(blocks("python")) >= 2 and len(blocks("toml")) >= 1 and len(TEXT.splitlines()) < 350


def test_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", TEXT)
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_it_names_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)\b", TEXT, re.MULTILINE))
    assert {"demo", "test", "bench"} <= named <= targets


def test_commands_it_names_exist() -> None:
    from dispatcher.cli import main

    named = set(re.findall(r"\bgridshift ([a-z]+)\b", "\n".join([*blocks("sh"), *re.findall(r"`(gridshift [^`]+)`", TEXT)])))
    assert named and named <= set(main.commands)


def test_every_feed_is_in_both_tables() -> None:
    from signals.feeds import FEEDS

    for text in (TEXT, SIGNALS):
        first_cells = " ".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE))
        assert set(FEEDS) <= set(re.findall(r"`([a-z_]+)`", first_cells))


def test_options_and_variables_it_names_exist() -> None:
    from signals.feeds import FEEDS

    rows = re.findall(r"^\| `([a-z_]+)` \| [^|]* \| ([^|]*) \| ([^|]*)\|", SIGNALS, re.MULTILINE)
    assert len(rows) >= 20
    for name, options, key in rows:
        if name in FEEDS:
            named = set(re.findall(r"`([a-z_]+)(?: =[^`]*)?`", re.sub(r"\([^)]*\)", "", options)))
            assert named <= FEEDS[name].all_option_names, name
            variables = set(re.findall(r"`([A-Z_]{5,})`", key))
            assert variables == {secret.env for secret in FEEDS[name].secrets}, name
