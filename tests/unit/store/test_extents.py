"""Extents in little memory, from the catalog to the free map."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.catalog_port import ActorQuery
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.image_ports import Extent
from statevisor.store import checkpoints, populous
from statevisor.store.backup import IMAGES
from statevisor.store.catalog import SqlCatalog
from statevisor.store.extents import Extents
from statevisor.store.images import SlabImages

ACTORS = 700


def some(*extents: tuple[int, int, int]) -> Extents:
    found = Extents()
    for one in extents:
        found.add(*one)
    return found


def test_they_come_out_as_they_went_in() -> None:
    found = some((3, 0, 4096), (1, 8192, 4096), (3, 4096, 8192))

    assert list(found) == [Extent(3, 0, 4096), Extent(3, 4096, 8192), Extent(1, 8192, 4096)]
    assert found.slabs == {1, 3}
    assert list(found.of(3)) == [(0, 4096), (4096, 8192)]
    assert list(found.of(2)) == []


def test_one_takes_a_few_bytes() -> None:
    found = some(*[(1, at << 13, 8192) for at in range(10_000)])

    assert sys.getsizeof(found._slabs[1]) < 10_000 * 24


async def opened(folder: Path) -> tuple[SqlCatalog, Any]:
    guest = ToyGuest()
    populous.build(folder, ACTORS, model=guest.name, prints=guest.fingerprints)
    catalog = await SqlCatalog.open(folder)
    return catalog, await catalog.live_extents()


async def test_the_catalog_tells_of_every_image_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_PART", 64)
    catalog, extents = await opened(tmp_path)

    rows = await catalog.live_images()

    assert len(rows) == ACTORS
    assert sorted(extents) == sorted(Extent(one.slab, one.offset, one.length) for one in rows)
    await catalog.close()


async def test_the_free_map_is_the_same_by_either_way(tmp_path: Path) -> None:
    catalog, extents = await opened(tmp_path)
    rows = await catalog.live_images()
    maps = []
    for live in (extents, rows):
        images = SlabImages.open(tmp_path / IMAGES, live, incarnation=1)
        maps.append((images.extents(), images.used_bytes))
        await images.close()
    await catalog.close()

    assert maps[0] == maps[1]
    assert maps[0][1] == sum(one.length for one in rows)


async def test_two_at_one_place_are_refused(tmp_path: Path) -> None:
    catalog, extents = await opened(tmp_path)
    await catalog.close()
    extents.add(0, 8192, 8192)

    with pytest.raises(StatevisorError, match="overlaps"):
        SlabImages.open(tmp_path / IMAGES, extents, incarnation=1)


async def test_the_crowd_is_whole(tmp_path: Path) -> None:
    catalog, _ = await opened(tmp_path)

    assert await catalog.count_actors() == ACTORS
    assert await catalog.check() == ()
    page, more = await catalog.actors(ActorQuery(limit=3))
    assert ([one.name for one in page], more) == (["resident-1", "resident-2", "resident-3"], True)
    assert await catalog.image_at(page[0].segment, page[0].position) is not None
    await catalog.close()
