"""fsck of a folder at rest, with real files: what it finds, repairs and brings back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.commands import (
    CreateActor,
    Fork,
    Fsck,
    FsckView,
    Generate,
    Hibernate,
    Mutate,
    Rollback,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import ActorQuarantined, InvalidRequest, Unavailable
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.visor import Visor
from statevisor.hypervisor.vocab import Rng
from statevisor.store import extent_io, fsck
from statevisor.store.catalog import SqlCatalog
from statevisor.store.fsck import check_folder, is_lost
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages


class WallClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class NoMeter:
    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def count(self, name: str, n: float = 1, **labels: str) -> None: ...


@asynccontextmanager
async def running(data: Path) -> AsyncIterator[Visor]:
    catalog = await SqlCatalog.open(data)
    incarnation = await catalog.claim("test")
    live = await catalog.live_images()
    images = SlabImages.open(data / "images", live, incarnation=incarnation)
    visor = Visor(
        guests=[ToyGuest(slots=4)],
        catalog=catalog,
        images=images,
        frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
        config=VisorConfig(host_bytes=160),
        clock=WallClock(),
        meter=NoMeter(),
    )
    await visor.start(incarnation)
    try:
        yield visor
    finally:
        await visor.close()
        await images.close()


async def say(visor: Visor, name: str) -> tuple[int, ...]:
    stream = await visor.generate(Generate(actor=name, max_tokens=8, ignore_eos=True))
    return (await stream.result()).token_ids


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """Three sleeping actors, one of them mutated."""
    folder = tmp_path / "data"
    async with running(folder) as visor:
        for name in ("a", "b", "mutant"):
            await visor.create(CreateActor(name=name, prompt=f"I am {name}"))
            await say(visor, name)
        rule = Mutation(rule="decay", params={"alpha": 0.5})
        await visor.mutate(Mutate(actor="mutant", mutation=rule))
        for name in ("a", "b", "mutant"):
            await visor.hibernate(Hibernate(actor=name))
    return folder


def ref_of(data: Path, name: str) -> ImageRef:
    """Where the newest image of an actor lies."""
    db = sqlite3.connect(data / "catalog.db")
    row = db.execute(
        """SELECT i.digest, nbytes, slab, "offset", length, layout, weights, build FROM image i
           JOIN checkpoint c ON c.digest = i.digest JOIN actor a ON a.segment = c.segment
           WHERE a.name = ? ORDER BY c.position DESC""",
        (name,),
    ).fetchone()
    db.close()
    names = ("digest", "nbytes", "slab", "offset", "length", "layout", "weights", "build")
    return ImageRef(**dict(zip(names, row, strict=True)))


def flip(data: Path, ref: ImageRef, at: int) -> None:
    fd = os.open(data / "images" / f"{ref.slab:08d}.slab", os.O_RDWR)
    os.pwrite(fd, bytes([os.pread(fd, 1, ref.offset + at)[0] ^ 4]), ref.offset + at)
    os.close(fd)


def lose_catalog(data: Path) -> None:
    for path in data.glob("catalog.db*"):
        path.unlink()


def kinds(view: FsckView) -> list[str]:
    return [one.kind for one in view.findings]


async def test_a_healthy_folder(data: Path) -> None:
    before = {path.name: path.read_bytes() for path in (data / "images").iterdir()}

    view = check_folder(data)

    assert (view.ok, view.images, view.findings) == (True, 3, ())
    assert {path.name: path.read_bytes() for path in (data / "images").iterdir()} == before


@pytest.mark.parametrize("at", [0, 9, 200, 4095, 4096, 8191, 8192, 8200])
async def test_one_flipped_bit_anywhere_is_found(data: Path, at: int) -> None:
    flip(data, ref_of(data, "a"), at)

    assert kinds(check_folder(data)) == ["image_damaged"]


async def test_without_the_digest_it_is_missed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the reading of every byte is for."""
    flip(data, ref_of(data, "a"), 8200)

    def header_only(files: object, fd: int, ref: ImageRef) -> object:
        return extent_io._read_header(files, fd, ref)  # type: ignore[arg-type]

    monkeypatch.setattr(fsck, "verify_extent", header_only)
    assert check_folder(data).ok


async def test_a_missing_slab_is_found(data: Path) -> None:
    (data / "images" / "00000001.slab").unlink()

    assert sorted(kinds(check_folder(data))) == ["image_damaged"] * 2 + ["root_damaged"]


async def test_a_damaged_cache_is_dropped_and_made_again(data: Path) -> None:
    shutil.copytree(data, data.with_name("twin"))
    flip(data, ref_of(data, "a"), 8200)

    view = check_folder(data, repair=True)

    assert (view.ok, kinds(view)) == (True, ["image_damaged"])
    assert check_folder(data).findings == ()
    async with running(data) as visor, running(data.with_name("twin")) as twin:
        assert await say(visor, "a") == await say(twin, "a")
        assert (await visor.fsck(Fsck())).ok


async def test_an_actor_whose_root_is_damaged_is_quarantined(data: Path) -> None:
    flip(data, ref_of(data, "mutant"), 8200)

    view = check_folder(data, repair=True)

    assert [(one.kind, one.repaired) for one in view.findings] == [("root_damaged", True)]
    async with running(data) as visor:
        with pytest.raises(ActorQuarantined):
            await say(visor, "mutant")
        await say(visor, "a")
        await visor.rollback(Rollback(actor="mutant", to="mutant@1", rng=Rng.INHERIT))
        await say(visor, "mutant")


async def test_so_are_forks_of_it_that_have_done_nothing(data: Path) -> None:
    async with running(data) as visor:
        mutants = await visor.fork(Fork(actor="mutant", count=3))
        others = await visor.fork(Fork(actor="a", count=3))
    flip(data, ref_of(data, "mutant"), 8200)

    view = check_folder(data, repair=True)

    assert [(one.kind, one.repaired) for one in view.findings] == [("root_damaged", True)]
    async with running(data) as visor:
        for fork in mutants:
            with pytest.raises(ActorQuarantined):
                await say(visor, fork.record.name)
        for fork in others:
            await say(visor, fork.record.name)
        await visor.rollback(Rollback(actor=mutants[0].record.id, to="mutant@1"))
        await say(visor, mutants[0].record.id)
        assert [one.kind for one in (await visor.fsck(Fsck())).findings] == ["root_damaged"]


async def test_states_come_back_without_a_catalog(data: Path) -> None:
    refs = {name: ref_of(data, name) for name in ("a", "b", "mutant")}
    shutil.copytree(data, data.with_name("twin"))
    lose_catalog(data)
    assert is_lost(data)
    assert kinds(check_folder(data)) == ["catalog_lost"]
    assert is_lost(data), "a check changes nothing"

    view = check_folder(data, repair=True, model="toy")

    assert (view.ok, view.images) == (True, 3)
    assert check_folder(data).findings == ()
    assert not is_lost(data)
    async with running(data) as visor, running(data.with_name("twin")) as twin:
        assert len((await visor.actors())[0]) == 3
        for name, ref in refs.items():
            recovered = f"recovered-{ref.digest.partition(':')[2][:16]}"
            assert await say(visor, recovered) == await say(twin, name)
        assert (await visor.fsck(Fsck())).findings == ()
        made = (await visor.actors())[0][0].record
        assert (made.labels, made.model) == ({"recovered": "fsck"}, "toy")


async def test_images_written_after_a_rebuild_are_the_younger_ones(data: Path) -> None:
    lose_catalog(data)
    check_folder(data, repair=True, model="toy")
    db = sqlite3.connect(data / "catalog.db")
    (incarnation,) = db.execute("SELECT max(incarnation) FROM owner").fetchone()
    db.close()

    assert incarnation == 1
    async with running(data) as visor:
        (one, *_) = (await visor.actors())[0]
        await say(visor, one.record.name)
        await visor.hibernate(Hibernate(actor=one.record.name))
    lose_catalog(data)
    assert check_folder(data, repair=True, model="toy").images == 4


async def test_what_is_no_database_is_told(data: Path) -> None:
    (data / "catalog.db").write_bytes(b"no database at all" * 1000)
    for name in ("catalog.db-wal", "catalog.db-shm"):
        (data / name).unlink(missing_ok=True)

    view = check_folder(data, repair=True)

    assert (view.ok, kinds(view)) == (False, ["catalog_unreadable"])
    (data / "catalog.db").rename(data / "catalog.db.damaged")
    assert check_folder(data, repair=True, model="toy").images == 3


async def test_another_schema_is_told_and_left_alone(data: Path) -> None:
    db = sqlite3.connect(data / "catalog.db")
    db.execute("UPDATE alembic_version SET version_num = '0000'")
    db.commit()
    db.close()

    assert kinds(check_folder(data, repair=True)) == ["schema"]


async def test_a_folder_in_use_is_left_alone(data: Path) -> None:
    async with running(data):
        with pytest.raises(Unavailable):
            check_folder(data)
    with pytest.raises(InvalidRequest):
        check_folder(data / "nothing")
