"""What every Archive promises: a copy that lives on, while the original goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import tarfile
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.commands import (
    Backup,
    CreateActor,
    Fork,
    Fsck,
    Gc,
    Generate,
    Hibernate,
    Mutate,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import (
    Conflict,
    FileCorrupt,
    ImageCorrupt,
    InvalidRequest,
    Unavailable,
)
from statevisor.hypervisor.image_ports import Archive
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.visor import Visor
from statevisor.hypervisor.vocab import Rng
from statevisor.store.backup import IMAGES, MANIFEST, FolderArchive
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.memory import MemoryCatalog
from statevisor.store.memory_archive import MemoryArchive
from statevisor.store.memory_images import MemoryImages
from statevisor.store.restore import restore
from statevisor.store.slabs import SlabConfig

CONFIG = SlabConfig(slab_bytes=1 << 20, step_bytes=1 << 18, threads=2)


class WallClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class NoMeter:
    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def count(self, name: str, n: float = 1, **labels: str) -> None: ...


@dataclass
class Machine:
    """A visor and how its store is damaged and restored."""

    visor: Visor
    images: Any
    catalog: Any
    archive: Archive

    async def say(self, name: str, prompt: str | None = None, tokens: int = 8) -> tuple[int, ...]:
        stream = await self.visor.generate(
            Generate(
                actor=name,
                prompt=prompt,
                max_tokens=tokens,
                settings=SamplerSettings(temperature=1.0),
                ignore_eos=True,
            )
        )
        return (await stream.result()).token_ids

    async def damage(self, handle: str) -> None:
        version = await self.visor.version(handle)
        assert version.digest is not None
        ref = await self.catalog.image(version.digest)
        if isinstance(self.images, MemoryImages):
            self.images.files[ref.offset][-1] ^= 1
            return
        fd = os.open(self.images._slabs.folder / f"{ref.slab:08d}.slab", os.O_RDWR)
        at = ref.offset + ref.length - 4096
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
        os.close(fd)


class Lab:
    """Starts machines of one kind."""

    def __init__(self, kind: str, folder: Path, stack: AsyncExitStack) -> None:
        self.kind = kind
        self.folder = folder
        self._stack = stack
        self._copies: dict[str, tuple[MemoryCatalog, MemoryImages]] = {}

    def target(self, name: str = "copy") -> str:
        return str(self.folder / name)

    async def start(self, path: str | None = None) -> Machine:
        catalog: Any
        images: Any
        archive: Any
        if self.kind == "memory":
            catalog, images = (
                (MemoryCatalog(), MemoryImages()) if path is None else self._copies[path]
            )
            incarnation = await catalog.claim("test")
            archive = MemoryArchive(catalog, images)
            self._copies = archive.copies
        else:
            data = Path(path or self.folder / "data")
            catalog = await SqlCatalog.open(data)
            incarnation = await catalog.claim("test")
            live = await catalog.live_images()
            images = SlabImages.open(data / IMAGES, live, incarnation=incarnation, config=CONFIG)
            self._stack.push_async_callback(images.close)
            archive = FolderArchive(data, images, slab_bytes=1 << 14)
        visor = Visor(
            guests=[ToyGuest(slots=4)],
            catalog=catalog,
            images=images,
            frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
            config=VisorConfig(host_bytes=160),
            clock=WallClock(),
            meter=NoMeter(),
            archive=archive,
        )
        await visor.start(incarnation)
        self._stack.push_async_callback(visor.close)
        return Machine(visor, images, catalog, archive)


@pytest.fixture(params=["memory", "folder"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab(request.param, tmp_path, stack)


async def populate(machine: Machine) -> None:
    """Actors in every kind of state."""
    for n in range(6):
        name = f"actor-{n}"
        await machine.visor.create(CreateActor(name=name, prompt=f"hello {n}", seed=n))
        await machine.say(name)
        if n % 2:
            rule = Mutation(rule="decay", params={"alpha": 0.5})
            await machine.visor.mutate(Mutate(actor=name, mutation=rule))
        if n % 3:
            await machine.visor.hibernate(Hibernate(actor=name))
    await machine.visor.fork(Fork(actor="actor-0", names=("child",), rng=Rng.INHERIT))
    for name in ("actor-1", "actor-2"):
        await machine.visor.fork(Fork(actor=name, count=3))


async def test_a_copy_says_what_the_original_says(lab: Lab) -> None:
    original = await lab.start()
    await populate(original)

    made = await original.visor.backup(Backup(target=lab.target()))
    copy = await lab.start(lab.target())

    assert (made.target, made.images) == (lab.target(), 5)
    assert made.nbytes > 0
    assert (await copy.visor.fsck(Fsck())).findings == ()
    names = [view.record.name for view in (await original.visor.actors())[0]]
    assert names == [view.record.name for view in (await copy.visor.actors())[0]]
    for name in names:
        assert await copy.visor.transcript(name) == await original.visor.transcript(name)
        assert await copy.say(name, "and then?") == await original.say(name, "and then?")


async def test_work_goes_on_while_a_copy_is_made(lab: Lab) -> None:
    original = await lab.start()
    await populate(original)

    said, _ = await asyncio.gather(
        original.say("actor-0", tokens=200), original.visor.backup(Backup(target=lab.target()))
    )
    copy = await lab.start(lab.target())

    assert len(said) == 200
    assert (await copy.visor.fsck(Fsck())).findings == ()
    view = await copy.visor.transcript("actor-0")
    whole = (await original.visor.transcript("actor-0")).token_ids
    assert view.token_ids == whole[: len(view.token_ids)]
    missing = len(whole) - len(view.token_ids)
    if missing:
        assert await copy.say("actor-0", tokens=missing) == whole[-missing:]


async def test_a_collection_waits_for_the_copy(lab: Lab) -> None:
    original = await lab.start()
    await populate(original)

    await asyncio.gather(
        original.visor.backup(Backup(target=lab.target())),
        *(original.visor.gc(Gc(grace_s=0)) for _ in range(3)),
    )

    assert (await (await lab.start(lab.target())).visor.fsck(Fsck())).findings == ()


async def test_nothing_is_overwritten(lab: Lab) -> None:
    original = await lab.start()
    await original.visor.backup(Backup(target=lab.target()))

    with pytest.raises(Conflict):
        await original.visor.backup(Backup(target=lab.target()))


async def test_a_damaged_image_is_not_copied(lab: Lab) -> None:
    original = await lab.start()
    await populate(original)
    await original.damage("actor-1@2")

    with pytest.raises(ImageCorrupt):
        await original.visor.backup(Backup(target=lab.target()))
    await original.visor.fsck(Fsck(repair=True))
    if lab.kind == "folder":
        assert not list(lab.folder.glob("copy*"))


# -- of a folder alone -----------------------------------------------------------------------------


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        yield Lab("folder", tmp_path, stack)


async def test_a_tar_file_unpacks_to_a_data_folder(folder: Lab) -> None:
    original = await folder.start()
    await populate(original)

    await original.visor.backup(Backup(target=folder.target("all.tar")))
    with tarfile.open(folder.target("all.tar")) as tar:
        names = tar.getnames()
        tar.extractall(folder.target("elsewhere"), filter="data")
    copy = await folder.start(folder.target("elsewhere"))

    assert names[-2:] == ["catalog.db", MANIFEST]
    assert len(names) > 4
    assert set(os.listdir(folder.folder)) == {"data", "elsewhere", "all.tar"}
    assert (await copy.visor.fsck(Fsck())).findings == ()
    assert await copy.say("child", "hm") == await original.say("child", "hm")


async def test_a_folder_holds_no_leftovers(folder: Lab) -> None:
    original = await folder.start()
    await populate(original)
    await original.visor.backup(Backup(target=folder.target()))

    assert set(os.listdir(folder.target())) == {IMAGES, "catalog.db", MANIFEST}


async def test_a_backup_never_lies_in_what_it_copies(folder: Lab) -> None:
    original = await folder.start()
    for target in ("data/images/copy", "data", "data/../data/x", "nowhere/copy"):
        with pytest.raises((InvalidRequest, Conflict)):
            await original.visor.backup(Backup(target=folder.target(target)))
    assert not (folder.folder / "data.partial").exists()


async def test_a_folder_of_another_is_not_worked_in(folder: Lab) -> None:
    original = await folder.start()
    theirs = folder.folder / "copy.partial"
    theirs.mkdir()
    (theirs / "file").touch()

    with pytest.raises(Conflict, match="nothing that broke off"):
        await original.visor.backup(Backup(target=folder.target()))
    assert os.listdir(theirs) == ["file"]


@pytest.mark.parametrize("target", ["/proc/copy", f"/tmp/{'x' * 300}", "/dev/null/copy"])
async def test_a_place_that_cannot_be_written_to_is_no_failure(folder: Lab, target: str) -> None:
    original = await folder.start()
    with pytest.raises(InvalidRequest):
        await original.visor.backup(Backup(target=target))


async def test_a_disk_that_fails_is_one(folder: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    original = await folder.start()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(Unavailable, match="no space"):
        await original.visor.backup(Backup(target=folder.target()))


@pytest.mark.parametrize("name", ["copy", "copy.tar"])
async def test_a_backup_is_restored(folder: Lab, name: str) -> None:
    original = await folder.start()
    await populate(original)
    made = await original.visor.backup(Backup(target=folder.target(name)))

    view = restore(Path(made.target), folder.folder / "new")
    copy = await folder.start(folder.target("new"))

    assert (view.ok, view.images) == (True, made.images)
    assert not (folder.folder / "new.partial").exists()
    assert await copy.say("child", "hm") == await original.say("child", "hm")


async def test_a_changed_bit_of_a_backup_is_not_restored(folder: Lab) -> None:
    original = await folder.start()
    await populate(original)
    made = Path((await original.visor.backup(Backup(target=folder.target()))).target)
    slab = min((made / IMAGES).glob("*.slab"))
    whole = bytearray(slab.read_bytes())
    whole[5000] ^= 1
    slab.write_bytes(whole)

    with pytest.raises(FileCorrupt):
        restore(made, folder.folder / "new")
    assert set(os.listdir(folder.folder)) == {"data", "copy"}


async def test_a_backup_that_is_none_is_not_restored(folder: Lab) -> None:
    original = await folder.start()
    await populate(original)
    whole = folder.folder / "a.tar"
    await original.visor.backup(Backup(target=str(whole)))
    cut, other, climbs = (folder.folder / name for name in ("cut.tar", "no.tar", "climbs.tar"))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    other.write_bytes(b"no tar")
    with tarfile.open(climbs, "w") as tar:
        tar.add(other, "images/../../../climbed.slab")
    before = set(os.listdir(folder.folder))

    for path in (cut, other, climbs, folder.folder / "missing", folder.folder):
        with pytest.raises(InvalidRequest):
            restore(path, folder.folder / "new")
    with pytest.raises(Conflict):
        restore(whole, folder.folder / "data")
    with pytest.raises(InvalidRequest):
        restore(whole, folder.folder / "nowhere" / "new")
    assert set(os.listdir(folder.folder)) == before
