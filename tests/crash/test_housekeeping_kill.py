"""kill -9 in the middle of gc, backup and rebuild: no row without its bytes, no bytes without use.

After every kill the folder is checked bit by bit and opened again; what no row names must be free.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statevisor.hypervisor.collector import Collector
from statevisor.hypervisor.commands import Backup, Gc
from statevisor.hypervisor.image_ports import Extent
from statevisor.store import sweep
from statevisor.store.fsck import check_folder, is_lost
from statevisor.store.workplace import workplace_of

CHILD = Path(__file__).with_name("housekeeping_child.py")
spec = importlib.util.spec_from_file_location("housekeeping_child", CHILD)
assert spec is not None
assert spec.loader is not None
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rubbish in it."""
    data = tmp_path_factory.mktemp("original") / "data"

    async def fill() -> None:
        async with child.running(data) as (visor, _, _):
            await child.populate(visor)

    asyncio.run(fill())
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "data")
    return tmp_path / "data"


def kill(data: Path, what: str, at: str) -> None:
    """Let it begin and be killed."""
    done = subprocess.run(
        [sys.executable, "-P", str(CHILD), str(data), what, at],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


async def sound(data: Path) -> set[str]:
    """Check a folder that was killed; returns its actors."""
    assert check_folder(data).findings == ()
    async with child.running(data) as (visor, images, catalog):
        named = {
            Extent(slab=ref.slab, offset=ref.offset, length=ref.length)
            for ref in await catalog.live_images()
        }
        assert images.extents() == named
        images.check()
        names = {view.record.name for view in (await visor.actors())[0]}
        for name in names:
            await child.say(visor, name)
    return names


@pytest.mark.parametrize(
    "at", ["finish:1:before", "finish:2:after", "finish:3:after", "free:1:before", "free:3:after"]
)
async def test_gc_can_be_killed_anywhere(data: Path, at: str) -> None:
    kill(data, "gc", at)

    assert await sound(data) == {"actor-2", "actor-3"}
    async with child.running(data) as (visor, images, catalog):
        for _ in range(3):
            await visor.gc(Gc(grace_s=0))
        assert images.used_bytes == sum(ref.length for ref in await catalog.live_images())
        assert (await catalog.rubbish(grace_us=0)).actors == ()


@pytest.mark.parametrize("what", ["backup", "tar"])
@pytest.mark.parametrize(
    "at",
    ["copy:1:before", "_put:5:before", "_relocate:1:after", "rename:1:after", "publish:1:before"],
)
async def test_a_backup_that_was_killed_is_made_anew(data: Path, what: str, at: str) -> None:
    kill(data, what, at)

    goal = data.with_name("copy" if what == "backup" else "copy.tar")
    work = workplace_of(goal) / "whole"
    assert not goal.exists()
    assert work.exists()
    if at in ("_put:5:before", "_relocate:1:after"):
        assert is_lost(work) or what == "tar"
    assert await sound(data) == {"actor-2", "actor-3"}
    async with child.running(data) as (visor, _, _):
        await visor.backup(Backup(target=str(goal)))
    assert set(os.listdir(data.parent)) == {"data", goal.name}
    if what == "tar":
        shutil.unpack_archive(goal, goal := data.with_name("unpacked"), filter="data")
    assert await sound(goal) == {"actor-2", "actor-3"}


@pytest.mark.parametrize("what", ["backup", "tar"])
async def test_a_backup_that_has_its_name_is_whole(data: Path, what: str) -> None:
    kill(data, what, "publish:1:after")

    goal = data.with_name("copy" if what == "backup" else "copy.tar")
    if what == "tar":
        shutil.unpack_archive(goal, data.with_name("unpacked"), filter="data")
        goal = data.with_name("unpacked")
    assert await sound(goal) == await sound(data) == {"actor-2", "actor-3"}


@pytest.mark.parametrize("at", ["migrate:1:after", "finish:1:after", "rename:1:before"])
async def test_a_rebuild_that_was_killed_begins_again(data: Path, at: str) -> None:
    whole = check_folder(data).images
    for name in os.listdir(data):
        if name.startswith("catalog.db"):
            os.unlink(data / name)

    kill(data, "rebuild", at)

    assert is_lost(data), "half a catalog must not look like a whole one"
    assert check_folder(data, repair=True, model="toy").images >= whole
    await sound(data)


async def test_bytes_before_rows_are_caught(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a sweep that frees what a row still names is found by the same check."""
    monkeypatch.setattr(sweep, "_FREE", sweep._FREED)

    async def careless(self: Collector, grace_us: int) -> object:
        freed = list(await self._catalog.sweep(grace_us=grace_us))
        for ref in freed:
            self._images.free(ref)
        return freed, await self._catalog.rubbish(grace_us=grace_us)

    monkeypatch.setattr(Collector, "_sweep", careless)
    async with child.running(data) as (visor, images, catalog):
        await visor.gc(Gc(grace_s=0))
        named = {ref.offset for ref in await catalog.live_images()}
        assert named - {extent.offset for extent in images.extents()}
