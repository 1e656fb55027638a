"""gc, fsck and backup of a real folder through the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from statevisor.api.cli.main import main
from statevisor.hypervisor.errors import Unavailable


async def talk(server: Any, name: str) -> list[int]:
    body = {"prompt": "and?", "max_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    return list((await server.ask("POST", f"/v1/actors/{name}/generate", body))["token_ids"])


async def populate(server: Any) -> None:
    for n in range(3):
        body = {"name": f"a{n}", "prompt": "once", "seed": n}
        await server.ask("POST", "/v1/actors", body)
        await talk(server, f"a{n}")
        await server.ask("POST", f"/v1/actors/a{n}/hibernate", {"tier": "nvme"})


async def test_a_deleted_actor_is_collected(boot: Any) -> None:
    async with boot() as server:
        await populate(server)
        await server.ask("DELETE", "/v1/actors/a0")

        told = await server.ask("POST", "/v1/admin/gc", {"dry_run": True})
        done = await server.ask("POST", "/v1/admin/gc")
        again = await server.ask("POST", "/v1/admin/gc")

        assert (told["actors"], told["removed"]) == (done["actors"], done["removed"])
        assert (done["actors"], done["versions"], again["actors"]) == (1, 2, 0)
        assert done["waiting"]["images"] == 1
        assert (await server.ask("POST", "/v1/admin/fsck"))["ok"]
        assert await server.refused("POST", "/v1/admin/gc", {"grace_s": 0}) == (
            422,
            "invalid_request",
        )


async def test_what_waits_for_its_grace_is_still_there_after_a_start(boot: Any) -> None:
    async with boot() as server:
        await populate(server)
        await server.ask("DELETE", "/v1/actors/a0")
        await server.ask("POST", "/v1/admin/gc")
    async with boot() as server:
        told = await server.ask("POST", "/v1/admin/gc")
        assert told["waiting"]["images"] == 1
        assert [line for line in told["removed"] if line["reason"] == "unnamed"] == []


async def test_a_flipped_bit_is_found_and_repaired(boot: Any, tmp_path: Path) -> None:
    async with boot() as server:
        await populate(server)
        flip(tmp_path / "data" / "images" / "00000001.slab", 8192)

        told = await server.ask("POST", "/v1/admin/fsck")
        done = await server.ask("POST", "/v1/admin/fsck", {"repair": True})

        assert (told["ok"], [one["kind"] for one in told["findings"]]) == (False, ["image_damaged"])
        assert done["ok"]
        assert (await server.ask("POST", "/v1/admin/fsck"))["findings"] == []
        assert len({tuple(await talk(server, f"a{n}")) for n in range(3)}) == 3


def flip(path: Path, at: int) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    os.close(fd)


async def test_a_backup_is_served_beside_the_original(boot: Any, tmp_path: Path) -> None:
    async with boot() as original:
        await populate(original)
        made = await original.ask("POST", "/v1/admin/backup", {"path": str(tmp_path / "copy")})
        assert made["images"] == 3
        async with boot(data=tmp_path / "copy") as copy:
            for n in range(3):
                assert await talk(copy, f"a{n}") == await talk(original, f"a{n}")
            assert (await copy.ask("POST", "/v1/admin/fsck"))["findings"] == []
        again = await original.refused("POST", "/v1/admin/backup", {"path": str(tmp_path / "copy")})
        assert again == (409, "conflict")
        assert (await original.refused("POST", "/v1/admin/backup", {"path": "copy"}))[0] == 422


async def test_a_folder_that_lost_its_catalog_is_not_overwritten(
    boot: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with boot() as server:
        await populate(server)
    data = tmp_path / "data"
    lose_catalog(data)
    before = sorted(os.listdir(data / "images"))

    with pytest.raises(Unavailable, match="no catalog"):
        async with boot():
            pass
    assert sorted(os.listdir(data / "images")) == before
    assert main(["admin", "fsck", "--data", str(data), "--repair", "--model", "toy"]) == 0
    assert "repaired catalog_lost" in capsys.readouterr().out

    async with boot() as server:
        found = (await server.ask("GET", "/v1/actors"))["data"]
        assert len(found) == 3
        for actor in found:
            assert len(await talk(server, actor["name"])) == 8


def lose_catalog(data: Path) -> None:
    for path in data.glob("catalog.db*"):
        path.unlink()
