from __future__ import annotations

from dataclasses import replace

import pytest

from statevisor.hypervisor.catalog_port import Guard, JournalEntry, Origin
from statevisor.hypervisor.errors import (
    ActorNotFound,
    ActorQuarantined,
    Conflict,
    Fenced,
    GenerationConflict,
    NotFound,
    StatevisorError,
)
from statevisor.hypervisor.records import TokenRun
from statevisor.hypervisor.vocab import FinishReason, Op


async def test_a_turn_appends_its_prompt_then_its_tokens(scene):
    made = await scene.create("alice", (1, 2))
    turn = await scene.begin(made, (3, 4))
    begun = await scene.catalog.actor("alice")
    assert (begun.position, begun.generation) == (4, made.generation + 1)

    await scene.say(turn, 4, 10)
    await scene.say(turn, 5, 11, 12)
    assert (await scene.catalog.actor("alice")).position == 7
    assert (await scene.catalog.actor("alice")).generation == begun.generation
    ended, version = await scene.end(turn, 7)

    assert (ended.position, ended.head, ended.generation) == (7, 1, begun.generation + 1)
    assert ended == await scene.catalog.actor("alice")
    assert version == await scene.catalog.version("alice@1")
    assert (version.op, version.seq, version.position) == (Op.TURN, 1, 7)
    assert version.parents == ("alice@0",)
    assert await scene.tokens(ended) == [1, 2, 3, 4, 10, 11, 12]


async def test_transcripts_show_kinds_in_runs_as_long_as_possible(scene):
    made = await scene.create("alice", (1, 2))
    actor, _ = await scene.turn(made, (3,), (10, 11))
    turn = await scene.begin(actor, (4, 5))
    await scene.say(turn, 7, 12)
    await scene.say(turn, 8, 13)

    async def runs(start: int, stop: int) -> list[tuple[int, str, tuple[int, ...]]]:
        found = await scene.catalog.transcript(made.segment, start, stop)
        assert all(isinstance(run, TokenRun) for run in found)
        return [(run.position, run.kind, run.tokens) for run in found]

    whole = [
        (0, "prompt", (1, 2, 3)),
        (3, "generated", (10, 11)),
        (5, "prompt", (4, 5)),
        (7, "generated", (12, 13)),
    ]
    assert await runs(0, 1000) == whole
    assert await runs(2, 4) == [(2, "prompt", (3,)), (3, "generated", (10,))]
    assert await runs(8, 9) == [(8, "generated", (13,))]
    assert await runs(4, 4) == []
    assert await runs(9, 100) == []
    await scene.end(turn, 9)
    assert await runs(0, 1000) == whole


async def test_turns_are_read_back(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (3, 4))
    assert await scene.catalog.turn(turn.id) == turn
    await scene.say(turn, 5, 9)
    assert await scene.catalog.turn(turn.id) == replace(turn, position=6)
    assert await scene.catalog.open_turns() == (replace(turn, position=6),)

    await scene.end(turn, 6, finish=FinishReason.STOP, text="nine")

    assert await scene.catalog.turn(turn.id) == replace(
        turn, position=6, finish=FinishReason.STOP, text="nine"
    )
    assert await scene.catalog.open_turns() == ()
    with pytest.raises(NotFound):
        await scene.catalog.turn("turn_nothing")


async def test_one_turn_at_a_time(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (3,))

    with pytest.raises(Conflict):
        await scene.begin(await scene.catalog.actor("alice"))

    await scene.end(turn, 4)
    await scene.begin(await scene.catalog.actor("alice"))


async def test_a_turn_begins_where_its_actor_stands(scene):
    made = await scene.create("alice")
    moved, _ = await scene.turn(made, (), (5,))

    for stale in (made, replace(moved, segment=moved.segment + 1), replace(moved, position=9)):
        with pytest.raises(Conflict):
            await scene.begin(stale, (6,))

    assert await scene.catalog.actor("alice") == moved
    assert await scene.catalog.open_turns() == ()


async def test_a_turn_without_a_prompt_may_take_up_an_earlier_one(scene):
    made = await scene.create("alice")
    broken = await scene.begin(made, (6, 7))
    await scene.say(broken, 5, 10)
    actor, _ = await scene.end(broken, 6, finish=FinishReason.CANCELLED, broken=True)
    assert (await scene.catalog.turn(broken.id)).broken

    again = replace(broken, id="turn_again")
    await scene.catalog.begin_turn(again, (), guard=Guard())
    await scene.say(again, 6, 11)
    actor, _ = await scene.end(again, 7)

    assert await scene.tokens(actor) == [1, 2, 3, 6, 7, 10, 11]
    taken_up = await scene.catalog.turn("turn_again")
    assert (taken_up.start, taken_up.prompt_tokens, taken_up.position) == (3, 2, 7)
    assert not taken_up.broken


async def test_turns_of_unknown_deleted_and_quarantined_actors_are_refused(scene):
    made = await scene.create("alice")
    await scene.catalog.quarantine(made.id, "damaged", guard=Guard())
    with pytest.raises(ActorQuarantined, match="damaged"):
        await scene.begin(made)
    await scene.catalog.delete(made.id, guard=Guard())
    with pytest.raises(ActorNotFound):
        await scene.begin(made)


MADE_OF_A_TURN = {
    "snapshot": lambda catalog, made, at, _: catalog.snapshot(
        made.id, made.segment, at, tag=None, labels={}, guard=Guard()
    ),
    "image": lambda catalog, made, at, image: catalog.add_image(made.segment, at, image),
}


@pytest.mark.parametrize("make", MADE_OF_A_TURN.values(), ids=MADE_OF_A_TURN)
async def test_what_was_made_of_a_turn_is_not_cut_from_it(scene, make, make_image):
    made = await scene.create("alice")
    turn = await scene.begin(made, (4,))
    await scene.say(turn, 4, 9, 8, 7)
    await make(scene.catalog, made, 6, make_image(1))

    with pytest.raises(StatevisorError, match="at 6"):
        await scene.end(turn, 5)
    assert await scene.tokens(await scene.catalog.actor("alice")) == [1, 2, 3, 4, 9, 8, 7]
    ended, _ = await scene.end(turn, 6)  # the last token is nobody's

    assert await scene.tokens(replace(ended, position=100)) == [1, 2, 3, 4, 9, 8]
    assert await scene.catalog.check() == ()


async def test_a_turn_is_not_cut_below_a_child(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (4,))
    await scene.say(turn, 4, 9, 8, 7)
    origin = Origin(segment=made.segment, position=6, handle=None)
    (child,) = await scene.breed(1, origin)

    with pytest.raises(StatevisorError, match="at 6"):
        await scene.end(turn, 5)
    await scene.end(turn, 7)
    assert await scene.tokens(child) == [1, 2, 3, 4, 9, 8]


async def test_guards_hold_for_turns(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made)
    with pytest.raises(Fenced):
        await scene.end(turn, 3, guard=Guard(epoch=made.epoch - 1))
    with pytest.raises(GenerationConflict):
        await scene.end(turn, 3, guard=Guard(generation=1))
    await scene.end(turn, 3, guard=Guard(epoch=made.epoch, generation=2))

    stale = replace(await scene.catalog.actor("alice"), epoch=made.epoch - 1)
    with pytest.raises(Fenced):
        await scene.begin(stale)


async def test_a_turn_id_is_used_once(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made)
    await scene.end(turn, 3)

    with pytest.raises(Conflict):
        await scene.catalog.begin_turn(turn, (), guard=Guard())


async def test_the_journal_refuses_gaps_and_strangers_and_takes_all_or_nothing(scene):
    alice, bob = await scene.create("alice"), await scene.create("bob")
    one, two = await scene.begin(alice), await scene.begin(bob)

    def entry(turn, position: int, *tokens: int) -> JournalEntry:
        return JournalEntry(turn_id=turn.id, segment=turn.segment, position=position, tokens=tokens)

    good = entry(one, 3, 7)
    for bad in (
        entry(two, 4, 8),
        entry(two, 2, 8),
        entry(replace(two, segment=one.segment), 3, 8),
        entry(replace(two, id="turn_x"), 3, 8),
    ):
        with pytest.raises(StatevisorError):
            await scene.catalog.journal([good, bad], incarnation=scene.incarnation)

    assert (await scene.catalog.actor("alice")).position == 3
    await scene.catalog.journal([good, entry(two, 3, 8)], incarnation=scene.incarnation)
    await scene.catalog.journal(
        [entry(one, 4, 1), entry(one, 5, 2), entry(two, 4)], incarnation=scene.incarnation
    )
    await scene.catalog.journal([], incarnation=scene.incarnation)
    assert await scene.tokens(await scene.catalog.actor("alice")) == [1, 2, 3, 7, 1, 2]
    assert await scene.tokens(await scene.catalog.actor("bob")) == [1, 2, 3, 8]


async def test_a_closed_turn_takes_no_more(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made)
    await scene.say(turn, 3, 7)
    ended = await scene.end(turn, 4)

    with pytest.raises(Conflict):
        await scene.say(turn, 4, 8)
    with pytest.raises(Conflict):
        await scene.end(turn, 4)
    with pytest.raises(NotFound):
        await scene.end(replace(turn, id="turn_x"), 4)

    assert await scene.catalog.actor("alice") == ended[0]


async def test_a_turn_may_end_before_its_last_token_but_not_beyond(scene):
    made = await scene.create("alice")
    turn = await scene.begin(made, (4,))
    await scene.say(turn, 4, 10, 11, 12)
    for wrong in (3, 8):
        with pytest.raises(StatevisorError):
            await scene.end(turn, wrong)

    ended, version = await scene.end(turn, 6)

    assert (ended.position, version.position) == (6, 6)
    assert await scene.tokens(ended) == [1, 2, 3, 4, 10, 11]
    assert await scene.tokens(replace(ended, position=100)) == [1, 2, 3, 4, 10, 11]
    after, _ = await scene.turn(ended, (), (20,))
    assert await scene.tokens(after) == [1, 2, 3, 4, 10, 11, 20]


async def test_an_empty_turn_still_makes_a_version(scene):
    made = await scene.create("alice", ())
    ended, version = await scene.turn(made)

    assert (ended.position, version.position, version.seq) == (0, 0, 1)


async def test_a_long_turn_reads_the_same_however_it_was_cut(scene):
    made = await scene.create("alice", range(20_000))
    turn = await scene.begin(made)
    said: list[int] = []
    for size in (1, 4095, 4096, 2, 5000, 1):
        tokens = [len(said) + n for n in range(size)]
        await scene.say(turn, 20_000 + len(said), *tokens)
        said += tokens
        assert (await scene.catalog.actor("alice")).position == 20_000 + len(said)
    assert await scene.tokens(await scene.catalog.actor("alice")) == [*range(20_000), *said]
    runs = await scene.catalog.transcript(made.segment, 0, 10**6)
    assert [(run.position, run.kind, len(run.tokens)) for run in runs] == [
        (0, "prompt", 20_000),
        (20_000, "generated", len(said)),
    ]
    middle = await scene.catalog.transcript(made.segment, 16_380, 16_390)
    assert middle[0].tokens == tuple(range(16_380, 16_390))

    ended, _ = await scene.end(turn, 20_000 + 4100)
    assert await scene.tokens(replace(ended, position=10**6)) == [*range(20_000), *said[:4100]]


async def test_tokens_must_be_32_bit(scene):
    made = await scene.create("alice", (2**31 - 1, 0))
    assert await scene.tokens(made) == [2**31 - 1, 0]
