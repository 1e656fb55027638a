"""The state of a version is that of its position, whatever its image has absorbed."""

from __future__ import annotations

from typing import Any

from statevisor.hypervisor.commands import ImportImage, Mutate
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.ports import Mutation

STORY = "once upon a time"


async def lagging(world: Any) -> None:
    """`a`, and `b`: an import of the same history whose state lacks all but four tokens."""
    await world.create("a", STORY)
    record = (await world.visor.actor("a")).record
    residency = world.visor._batchers["toy"].residency
    row, absorbed, _ = await residency.derive("test", record.segment, 5)
    assert absorbed == 4
    tokens = await residency.states.tokens(record.segment, 4, record.position)
    meta = ImageMeta(
        layout=world.guest.layout,
        fingerprints=world.guest.fingerprints,
        position=record.position,
        absorbed=4,
        pending=tokens,
    )
    file = await world.images.export(await world.images.put(memoryview(row), meta))
    await world.visor.import_image(ImportImage(name="b", file=file))


async def test_an_import_with_tokens_pending_is_compared_where_it_stands(world: Any) -> None:
    await lagging(world)

    image = await world.catalog.image((await world.visor.version("b@0")).digest)
    states = world.visor._batchers["toy"].residency.states
    a = await world.visor._roster.histories["toy"].row(await world.visor.version("a@0"))
    assert bytes((await states.read(image))[0]) != bytes(a[0])  # its bytes alone are not it

    view = await world.visor.diff("a@0", "b@0")

    assert {family.distance for family in view.families} == {0.0}


async def test_it_is_taken_in_where_it_stands(world: Any) -> None:
    await lagging(world)
    await world.create("c", "something else")
    mutation = Mutation(rule="set", params={"from": "b@0"})
    await world.visor.mutate(Mutate(actor="c", mutation=mutation))

    histories = world.visor._roster.histories["toy"]
    a = await histories.row(await world.visor.version("a@0"))
    c = await histories.row(await world.visor.version("c@1"))
    assert bytes(a[0]) == bytes(c[0])
    assert (await world.visor.verify("c@1")).ok
    assert (await world.visor.verify("b@0")).ok
