"""fsck of a running server: it finds a flipped bit anywhere and repairs what can be made again."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.hypervisor.commands import (
    Backup,
    Fsck,
    FsckView,
    Hibernate,
    Mutate,
    Resume,
    Rollback,
)
from statevisor.hypervisor.errors import ActorQuarantined, CapabilityMissing
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.states import States
from statevisor.hypervisor.vocab import Rng, Tier
from statevisor.store import codec

HALF = Mutation(rule="decay", params={"alpha": 0.5})


async def fsck(world: Any, repair: bool = False) -> FsckView:
    view: FsckView = await world.visor.fsck(Fsck(repair=repair))
    return view


async def lay_down(world: Any, name: str) -> None:
    await world.visor.hibernate(Hibernate(actor=name, tier=Tier.NVME))


async def flip(world: Any, handle: str, byte: int = -1) -> None:
    """Damage a version's image."""
    version = await world.visor.version(handle)
    ref = await world.catalog.image(version.digest)
    world.images.files[ref.offset][byte] ^= 1


async def test_a_healthy_folder(world: Any) -> None:
    await world.create("a", "once upon a time")
    await world.say("a")
    await lay_down(world, "a")

    view = await fsck(world)

    assert (view.ok, view.images, view.findings) == (True, 1, ())
    assert view.nbytes > 0


async def test_a_damaged_cache_is_dropped_and_made_again(world: Any) -> None:
    await world.create("a", "once upon a time")
    await lay_down(world, "a")
    await flip(world, "a@0")

    told = await fsck(world)
    assert [one.kind for one in told.findings] == ["image_damaged"]
    assert (told.ok, told.findings[0].repaired) == (False, False)
    done = await fsck(world, repair=True)
    assert (done.ok, done.findings[0].repaired) == (True, True)

    assert (await fsck(world)).ok
    await world.create("twin", "once upon a time")
    said = await world.say("a")
    assert said.token_ids == (await world.say("twin")).token_ids


async def test_without_the_repair_the_same_actor_is_lost(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nobody drops the damaged image, neither a repair nor who meets it."""

    async def keep(self: States, *_: Any) -> None: ...

    monkeypatch.setattr(States, "disown", keep)
    await world.create("a", "once upon a time")
    await lay_down(world, "a")
    await flip(world, "a@0")

    with pytest.raises(Exception, match="damaged"):
        await world.say("a")
    assert (await world.visor.actor("a")).status == "quarantined"


async def test_without_the_digest_a_flipped_bit_is_missed(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the digest is for."""
    await world.create("a", "once upon a time")
    await lay_down(world, "a")
    await flip(world, "a@0")

    async def header_only(ref: Any) -> Any:
        file = memoryview(bytes(world.images.files[ref.offset]))
        return codec.read_header(file, len(file))

    monkeypatch.setattr(world.images, "verify", header_only)
    assert (await fsck(world)).ok


async def test_a_sleeping_actor_without_its_root_is_quarantined(world: Any) -> None:
    await world.create("a", "once upon a time")
    await world.visor.mutate(Mutate(actor="a", mutation=HALF))
    await lay_down(world, "a")
    await world.create("other")
    await flip(world, "a@1")

    view = await fsck(world, repair=True)

    assert [(one.kind, one.repaired) for one in view.findings] == [("root_damaged", True)]
    with pytest.raises(ActorQuarantined):
        await world.say("a")
    assert (await world.visor.actor("other")).status == "idle"
    await world.visor.rollback(Rollback(actor="a", to="a@0", rng=Rng.INHERIT))
    await world.say("a")


@pytest.mark.parametrize("tier", [Tier.GPU, Tier.HOST])
async def test_an_actor_that_is_awake_gives_its_root_back(world: Any, tier: Tier) -> None:
    await world.create("a", "once upon a time")
    await world.visor.mutate(Mutate(actor="a", mutation=HALF))
    if tier is Tier.HOST:
        await world.visor.hibernate(Hibernate(actor="a", tier=tier))
    before = (await world.visor.version("a@1")).digest
    await flip(world, "a@1")

    assert (await fsck(world, repair=True)).ok

    assert (await fsck(world)).findings == ()
    await lay_down(world, "a")
    await world.visor.resume(Resume(actor="a"))
    assert (await world.visor.version("a@1")).digest == before


async def test_an_image_of_another_place_is_told(world: Any) -> None:
    await world.create("a", "once upon a time")
    await world.say("a")
    await lay_down(world, "a")
    version = await world.visor.version("a@1")
    ref = await world.catalog.image(version.digest)
    await world.catalog.add_image(version.segment, 3, ref)

    (finding,) = (await fsck(world)).findings

    assert "position" in finding.detail


async def test_a_replay_proves_the_journal(world: Any) -> None:
    await world.create("a", "once upon a time")
    for _ in range(3):
        await world.say("a")
        await lay_down(world, "a")
    await world.visor.mutate(Mutate(actor="a", mutation=HALF))

    view = await world.visor.fsck(Fsck(replay=True))

    assert (view.ok, view.derived) == (True, 4)


async def test_a_replay_finds_tokens_that_were_changed(world: Any) -> None:
    """Rows and bytes that are whole, and yet do not belong together."""
    await world.create("a", "once upon a time")
    await world.say("a")
    await lay_down(world, "a")
    version = await world.visor.version("a@1")
    _, _, tokens = world.catalog._history.runs[version.segment][0]
    tokens[3] ^= 1

    assert (await fsck(world)).ok
    view = await world.visor.fsck(Fsck(replay=True))

    assert [(one.kind, one.version) for one in view.findings] == [
        ("not_derived", f"{version.actor_id}@1")
    ]


async def test_a_replay_leaves_out_what_another_build_made(worlds: Any) -> None:
    world = await worlds()
    await world.create("a", "once upon a time")
    await world.say("a")
    await lay_down(world, "a")
    world.build = "toy-2"
    await world.crash()

    view = await world.visor.fsck(Fsck(replay=True))

    assert (view.ok, view.derived) == (True, 0)


async def test_a_store_without_an_archive_says_so(world: Any) -> None:
    with pytest.raises(CapabilityMissing):
        await world.visor.backup(Backup(target="anywhere"))
