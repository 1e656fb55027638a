"""The pages keep step with the code: routes, codes, settings, words, links, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from typer.main import get_group
from typing_extensions import is_typeddict

from statevisor.api.cli.main import PARTS, build
from statevisor.api.routes import ROUTES
from statevisor.api.settings import Settings
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.vocab import Op, Tier

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_ROUTE = re.compile(r"^## ((?:GET|POST|PATCH|PUT|DELETE)\S* .*)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"statevisor ([a-z][a-z-]*)")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def kinds(root: type[StatevisorError] = StatevisorError) -> Iterator[type[StatevisorError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == StatevisorError.__module__:  # not what other tests have made
            yield from kinds(child)


def test_every_route_has_a_heading_and_every_heading_a_route() -> None:
    headings = []
    for heading in _ROUTE.findall(page("http.md")):
        methods, path = heading.split(" ", 1)
        headings += [f"{method} {path}" for method in methods.rstrip(",").split(",")]

    assert sorted(headings) == sorted(f"{route.method} {route.path}" for route in ROUTES)


def test_every_code_is_explained() -> None:
    rows = page("http.md").partition("# Codes")[2]

    assert {kind.code for kind in kinds()} - set(_CODE.findall(rows)) == set()


def test_every_field_of_every_answer_is_named() -> None:
    known = words(page("http.md"))
    answers = {kind for route in ROUTES for kind in (route.answer, route.items, route.told)}

    assert {name for kind in answers for name in fields(kind)} - known == set()


def test_every_field_that_a_route_takes_is_named_under_it() -> None:
    sections = dict(re.findall(r"^## (\w+ \S+)\n(.*?)(?=^#|\Z)", page("http.md"), re.M | re.S))
    missing = {
        f"{route.method} {route.path}: {field.alias or name}"
        for route in ROUTES
        for model in (route.body, route.query)
        if model is not None
        for name, field in model.model_fields.items()
        if (field.alias or name) not in words(sections[f"{route.method} {route.path}"])
    }
    assert {one for one in missing if not one.endswith((": limit", ": after"))} == set()  # of lists


def fields(kind: Any) -> Iterator[str]:
    """The names in an answer's type and in the types inside it."""
    if is_typeddict(kind):
        for name, inner in get_type_hints(kind).items():
            yield name
            yield from fields(inner)
    for inner in get_args(kind):
        yield from fields(inner)


def words(text: str) -> set[str]:
    """What a page shows as code, word by word."""
    shown = re.findall(r"^```.*?^```|`[^`]+`", text, re.MULTILINE | re.DOTALL)
    return {word for code in shown for word in re.findall(r"\w+", code)}


def test_every_setting_is_explained_and_no_other() -> None:
    rows = page("operations.md").partition("## Settings")[2].partition("\n## ")[0]
    names = [
        name
        for row in rows.splitlines()
        if row.startswith("| `")
        for name in _CODE.findall(row.split("|")[1])
    ]

    assert sorted(names) == sorted(Settings.model_fields)


@pytest.mark.parametrize("word", [*Power, *Tier, *Op])
def test_the_words_of_the_code_are_in_the_glossary(word: str) -> None:
    assert f"`{word}`" in page("glossary.md")


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    dead = []
    for link in _LINK.findall(file.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (file.parent / path) if path else file
        if not target.exists() or (anchor and not anchored(target.read_text(), anchor)):
            dead.append(link)

    assert dead == []


def anchored(text: str, anchor: str) -> bool:
    """Whether a page has a heading of this anchor, in GitHub's spelling."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    return anchor in slugs


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_commands_in_the_pages_exist(file: Path) -> None:
    known = {name for names in PARTS.values() for name in names}
    shown = [
        match[1]
        for code in (*_CODE.findall(file.read_text()), *fenced(file.read_text()))
        for match in _COMMAND.finditer(code)
    ]

    assert [name for name in shown if name not in known] == []


def test_every_command_is_on_its_page_with_an_example() -> None:
    rows = [row.split("|") for row in page("cli.md").splitlines() if row.startswith("| `")]
    named = {code for row in rows for code in _CODE.findall(row[1])}

    assert {name for names in PARTS.values() for name in names} <= {n.split()[0] for n in named}
    assert named - set(commands(get_group(build()))) - set(PARTS) == set()
    for row in rows:
        assert any(f"statevisor {code}" in row[3] for code in _CODE.findall(row[1])), row


def commands(group: Any, above: str = "") -> Iterator[str]:
    """Every command with the words before it."""
    for name, command in group.commands.items():
        yield above + name
        yield from commands(command, f"{above}{name} ") if hasattr(command, "commands") else ()


def fenced(text: str) -> list[str]:
    """The blocks between fences."""
    return re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
