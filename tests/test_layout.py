"""The tree is what `pyproject.toml` and the design say it is."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PORTIONS = ("hypervisor", "guests", "store", "api", "migrations")
TOP = {*PORTIONS, "tests", "docs"}
#: What tools and users leave behind; the same names stand in .gitignore.
_LEFTOVERS = {"build", "dist", "data", "statevisor-data", "__pycache__"}


def setuptools() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Any] = project["tool"]["setuptools"]
    return found


def packages_in_the_tree() -> set[str]:
    return {
        ".".join(("statevisor", *init.parent.relative_to(ROOT).parts))
        for portion in PORTIONS
        for init in (ROOT / portion).rglob("__init__.py")
    }


def test_the_list_of_packages_is_the_tree_and_its_folders_of_data() -> None:
    data = {"statevisor.guests.demo.tokenizer"}  # named, or a wheel would be made without it
    assert set(setuptools()["packages"]) == packages_in_the_tree() | data
    assert data <= set(setuptools()["package-data"])


def test_every_folder_with_code_is_a_package() -> None:
    folders = {file.parent for portion in PORTIONS for file in (ROOT / portion).rglob("*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_only_the_named_folders_stand_at_the_top() -> None:
    folders = {
        entry.name
        for entry in ROOT.iterdir()
        if entry.is_dir()
        and not entry.name.startswith(".")
        and entry.name not in _LEFTOVERS
        and not entry.name.endswith(".egg-info")
    }

    assert folders == TOP


@pytest.mark.parametrize("portion", PORTIONS)
def test_types_are_shipped(portion: str) -> None:
    assert (ROOT / portion / "py.typed").is_file()
    assert (ROOT / ".dev" / "statevisor" / portion).resolve() == ROOT / portion


def test_every_file_that_is_not_code_reaches_the_wheel() -> None:
    patterns = setuptools()["package-data"]
    lost = []
    for portion in PORTIONS:
        for file in (ROOT / portion).rglob("*"):
            if not file.is_file() or file.suffix in (".py", ".pyc"):
                continue
            package = next(p for p in file.parents if (p / "__init__.py").exists())
            name = ".".join(("statevisor", *package.relative_to(ROOT).parts))
            inside = file.relative_to(package).as_posix()
            shipped = [*patterns.get("*", ()), *patterns.get(name, ())]
            if not any(fnmatch.fnmatch(inside, pattern) for pattern in shipped):
                lost.append(str(file.relative_to(ROOT)))

    assert lost == []


def test_the_namespace_has_no_init() -> None:
    assert not (ROOT / ".dev" / "statevisor" / "__init__.py").exists()
    assert not (ROOT / "__init__.py").exists()
