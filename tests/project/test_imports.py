"""Who imports whom, and who may look at a clock: read from the syntax trees of everything that is shipped."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("dispatcher", "signals", "policies", "ui", "tests")

#: What policies may use of signals: types, units, values on slots.
PURE_SIGNALS = {"signals.points", "signals.series"}
#: Standard modules with which code could read a clock, a disk, a network or chance.
IMPURE = {"os", "io", "socket", "subprocess", "threading", "asyncio", "time", "random", "secrets", "requests", "urllib", "http"}
IMPURE |= {"sqlalchemy", "sqlmodel", "ray", "apscheduler", "logging", "pathlib", "shutil", "tempfile", "multiprocessing"}

#: Files that may ask what time it is, each with the reason.
CLOCK_READERS = {
    "dispatcher/clock.py": "it is the clock",
    "dispatcher/leader.py": "says since when it leads, for people",
    "signals/manners.py": "compares providers' clocks with ours, and says until when one is left alone",
}
#: Calls that read the wall clock.
WALL_CLOCK = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
}
#: Parts that get ``now`` as an argument and read no clock of any kind.
PURE = (
    "policies/",
    "signals/points.py",
    "signals/series.py",
    "signals/gaps.py",
    "signals/forecast.py",
    "signals/feeds/",
    "signals/forecasting/",
)


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that ``path`` imports anywhere in it, absolute, with its line."""
    package = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                # `from signals import points` means the module signals.points where there is one.
                inner = ROOT.joinpath(*module.split("."), f"{alias.name}.py")
                yield node.lineno, f"{module}.{alias.name}" if inner.exists() else module


def ours(path: Path) -> list[str]:
    return [f"{name(path)}:{line} imports {module}" for line, module in imports(path) if module.split(".")[0] in OURS]


def test_signals_imports_nothing_else_of_ours() -> None:
    assert [found for path in sources("signals") for found in ours(path) if " imports signals" not in found] == []


def test_policies_import_only_the_pure_part_of_signals() -> None:
    allowed = {*PURE_SIGNALS}
    wrong = [
        f"{name(path)}:{line} imports {module}"
        for path in sources("policies")
        for line, module in imports(path)
        if module.split(".")[0] in OURS and module not in allowed and module.split(".")[0] != "policies"
    ]
    assert wrong == []


def test_policies_do_no_io() -> None:
    wrong = [
        f"{name(p)}:{line} imports {m}" for p in sources("policies") for line, m in imports(p) if m.split(".")[0] in IMPURE
    ]
    assert wrong == []
    calls = [
        f"{name(path)}:{node.lineno} calls {node.func.id}"
        for path in sources("policies")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input"}
    ]
    assert calls == []


def test_the_pure_part_of_signals_stays_pure() -> None:
    files = [ROOT / (module.replace(".", "/") + ".py") for module in sorted(PURE_SIGNALS)]
    wrong = [f"{name(p)}:{line} imports {m}" for p in files for line, m in imports(p) if m.split(".")[0] in IMPURE]
    assert wrong == [] and all(m in PURE_SIGNALS or "signals" not in m for p in files for _, m in imports(p))


@pytest.mark.parametrize("file", ["client.py", "function_runner.py"])
def test_what_users_code_imports_stands_alone(file: str) -> None:
    found = [
        line
        for line in ours(ROOT / "dispatcher" / file)
        if not line.endswith((" imports dispatcher.client", " imports dispatcher"))
    ]
    assert found == []


def test_the_client_needs_only_what_the_base_install_brings() -> None:
    base = {"requests", "cloudpickle", "ray"}  # ray: only where the user's code runs on it
    tree = ast.parse((ROOT / "dispatcher/client.py").read_text(encoding="utf-8"))
    top = {alias.name.split(".")[0] for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    top |= {str(node.module).split(".")[0] for node in tree.body if isinstance(node, ast.ImportFrom)}
    import sys

    assert top - set(sys.stdlib_module_names) <= base


def test_the_package_of_users_code_imports_nothing() -> None:
    tree = ast.parse((ROOT / "dispatcher/__init__.py").read_text(encoding="utf-8"))
    assert [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)] == []


def test_the_console_imports_nothing_else_of_ours() -> None:
    assert [found for path in sources("ui") for found in ours(path) if " imports ui" not in found] == []


def test_nothing_shipped_imports_the_tests() -> None:
    shipped = sources("dispatcher", "signals", "policies", "ui")
    assert [found for path in shipped for found in ours(path) if " imports tests" in found] == []


def wall_clock_calls(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner, node.attr) in WALL_CLOCK:
                found.append(f"{name(path)}:{node.lineno} {owner}.{node.attr}")
    return found


def test_pure_code_reads_no_clock() -> None:
    files = [path for path in sources("policies", "signals") if name(path).startswith(PURE)]
    assert len(files) >= 5
    leaks = [leak for path in files for leak in wall_clock_calls(path)]
    leaks += [f"{name(path)}:{line} imports time" for path in files for line, module in imports(path) if module == "time"]
    assert leaks == []


def test_only_clocks_look_at_the_time_of_day() -> None:
    leaks = [leak for path in sources("dispatcher", "signals", "policies", "ui") for leak in wall_clock_calls(path)]
    assert [leak for leak in leaks if leak.split(":")[0] not in CLOCK_READERS and "datetime.now" in leak] == []


def test_modules_open_by_saying_what_they_are_for() -> None:
    silent = [
        name(path)
        for path in sources("dispatcher", "signals", "policies", "ui")
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
