"""What makes a version again: a state to begin with, then tokens and rules in their order.

`History.verify` carries the short recipe out and compares digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.history import Paths
from statevisor.hypervisor.records import ImageRef, SegmentRecord, TokenRun, VersionRecord
from statevisor.hypervisor.vocab import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStep:
    """A rule that was run on the state."""

    position: int
    version: str  #: handle of its result
    rule: str
    rule_version: int | None
    params: Mapping[str, Any]  #: a seed is one of them
    select: Mapping[str, Any]
    others: tuple[str, ...]  #: versions that were taken in, handles
    before: str | None  #: digest of the state it was run on
    digest: str | None  #: of its result
    build: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeView:
    """How a version is made again by the build that made it."""

    version: VersionRecord
    model: str
    start: ImageRef | None  #: None: the empty state
    position: int  #: of the start
    steps: tuple[TokenRun | RuleStep, ...]


class Recipes:
    """Reads recipes off the catalog; derives nothing."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._paths = Paths(catalog)

    async def of(self, version: VersionRecord, model: str, *, whole: bool) -> RecipeView:
        """From the last image before the version, or (whole) from the beginning of its history."""
        steps: list[TokenRun | RuleStep] = []  # last first
        segment, position = version.segment, version.position
        while True:
            root = await self._root(segment, position)
            at, start = await self._start(root, segment, position, whole, begun=bool(steps))
            runs = await self._catalog.transcript(segment, at, position)
            steps += reversed(runs)
            maker = None if root is None or start is not None else await self._maker(root)
            if root is None or maker is None:
                break
            if maker.op is Op.IMPORT:
                start = await self._catalog.image_at(root.id, root.position)
                break
            steps.append(_step(root, maker))
            assert root.parent is not None
            segment, position = root.parent, root.position
        return RecipeView(
            version=version, model=model, start=start, position=at, steps=tuple(reversed(steps))
        )

    async def _start(
        self, root: SegmentRecord | None, segment: int, position: int, whole: bool, *, begun: bool
    ) -> tuple[int, ImageRef | None]:
        """Where this part of a path begins, with the image there if the recipe begins with it."""
        low = 0 if root is None else root.position
        # a rule's own result is no way to make it again
        if whole or (root is not None and low == position and not begun):
            return low, None
        found = await self._catalog.nearest_image(segment, max(low, position - 1))
        return (low, None) if found is None else found

    async def _root(self, segment: int, position: int) -> SegmentRecord | None:
        """The last state on the way to a place that does not follow from tokens."""
        for here in reversed(await self._paths.of(segment)):
            if here.rooted and here.position <= position:
                return here
        return None

    async def _maker(self, root: SegmentRecord) -> VersionRecord:
        """The mutation or import that a segment begins with."""
        found = await self._catalog.version_at(root.id, root.position)
        assert found is not None
        while found.op not in (Op.MUTATE, Op.IMPORT):
            found = await self._catalog.version(found.parents[0])
        return found


def _step(root: SegmentRecord, maker: VersionRecord) -> RuleStep:
    assert maker.rule is not None
    return RuleStep(
        position=root.position,
        version=maker.handle,
        rule=maker.rule,
        rule_version=maker.rule_version,
        params=maker.params,
        select=maker.select,
        others=maker.parents[1:],
        before=maker.before,
        digest=maker.digest,
        build=maker.build,
    )
