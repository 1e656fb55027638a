"""A recipe, carried out elsewhere, makes the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    Fork,
    ImportImage,
    Mutate,
    Rollback,
    Snapshot,
)
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.recipes import RecipeView, RuleStep
from statevisor.hypervisor.records import TokenRun


async def mutate(world: Any, name: str, rule: str, **params: Any) -> None:
    await world.visor.mutate(Mutate(actor=name, mutation=Mutation(rule=rule, params=params)))


async def life(world: Any) -> None:
    """Actor b: a's story, a rule, words, two rules at one place, words."""
    await world.create("other", "elsewhere")
    await world.create("a", "once upon a time")
    await world.say("a", " there was", max_tokens=5)
    await world.visor.fork(Fork(actor="a", names=("b",)))
    await mutate(world, "b", "decay", alpha=0.5)
    await world.say("b", " a king", max_tokens=5)
    await mutate(world, "b", "noise", std=1.0, seed=9)
    await mutate(world, "b", "blend", others=["other@0"], weights=[0.25])
    await world.append("b", " and a queen")


async def digest(world: Any, name: str) -> str:
    """Of the state that an actor stands at."""
    made = await world.visor.snapshot(Snapshot(actor=name, wait=True))
    assert made.digest is not None
    return str(made.digest)


async def carry_out(world: Any, recipe: RecipeView, name: str) -> None:
    """Follow a recipe that begins with the empty state, in another world."""
    assert recipe.start is None
    assert recipe.position == 0
    first, *rest = recipe.steps
    assert isinstance(first, TokenRun)
    await world.visor.create(CreateActor(name=name, prompt=first.tokens))
    for step in rest:
        if isinstance(step, RuleStep):
            await mutate(world, name, step.rule, **step.params)
        else:
            await world.visor.append(Append(actor=name, prompt=step.tokens))


async def test_a_whole_recipe_makes_the_same_bytes_in_an_empty_world(
    world: Any, worlds: Any
) -> None:
    await life(world)
    wanted = await digest(world, "b")
    recipe = await world.visor.recipe("b@0", whole=True)
    assert [type(step) for step in recipe.steps] == [TokenRun] * 2  # told, said
    head = (await world.visor.head("b")).handle
    recipe = await world.visor.recipe(head, whole=True)
    rules = [step for step in recipe.steps if isinstance(step, RuleStep)]
    assert [step.rule for step in rules] == ["decay", "noise", "blend"]
    assert rules[2].others == ("other@0",)
    assert rules[1].position == rules[2].position

    elsewhere = await worlds()
    other = (await world.visor.version("other@0")).actor_id
    await elsewhere.create("other", "elsewhere")
    same = (await elsewhere.visor.version("other@0")).actor_id
    # versions are named by id: of another world it is another
    steps = tuple(
        replace(step, params={**step.params, "others": [f"{same}@0"]})
        if isinstance(step, RuleStep) and step.params.get("others") == [f"{other}@0"]
        else step
        for step in recipe.steps
    )
    await carry_out(elsewhere, replace(recipe, steps=steps), "b")

    assert await digest(elsewhere, "b") == wanted


async def test_a_recipe_that_leaves_a_rule_out_makes_other_bytes(world: Any, worlds: Any) -> None:
    await world.create("a", "once")
    await mutate(world, "a", "decay", alpha=0.5)
    await world.append("a", " more")
    wanted = await digest(world, "a")
    recipe = await world.visor.recipe((await world.visor.head("a")).handle, whole=True)
    spoiled = tuple(step for step in recipe.steps if not isinstance(step, RuleStep))
    assert len(spoiled) == len(recipe.steps) - 1

    elsewhere = await worlds()
    await carry_out(elsewhere, replace(recipe, steps=spoiled), "a")

    assert await digest(elsewhere, "a") != wanted


async def test_a_short_recipe_begins_with_the_last_image_before(world: Any) -> None:
    await life(world)
    head = await world.visor.head("b")
    recipe = await world.visor.recipe(head.handle)

    # two rules stand at one place: the second's result is the nearest image
    noised, blended, _ = (await world.visor.versions("b"))[0][-3:]
    assert recipe.start is not None
    assert (recipe.start.digest, recipe.position) == (blended.digest, blended.position)
    assert [type(step) for step in recipe.steps] == [TokenRun]
    assert (await world.visor.verify(head.handle)).ok

    recipe = await world.visor.recipe(blended.handle)
    assert recipe.start is not None
    assert recipe.start.digest == noised.digest
    assert [step.rule for step in recipe.steps if isinstance(step, RuleStep)] == ["blend"]
    assert len(recipe.steps) == 1


async def test_a_recipe_never_begins_with_what_it_makes(world: Any) -> None:
    await world.create("a", "once")
    made = await world.visor.snapshot(Snapshot(actor="a", wait=True))
    recipe = await world.visor.recipe(made.handle)

    assert made.digest is not None
    assert recipe.start is None
    assert sum(len(step.tokens) for step in recipe.steps if isinstance(step, TokenRun)) == (
        made.position
    )


async def test_a_recipe_of_what_was_brought_in_begins_there(world: Any, worlds: Any) -> None:
    await world.create("a", "once")
    elsewhere = await worlds()
    file = await world.visor.export("a@0")
    made = await elsewhere.visor.import_image(ImportImage(name="a", file=file))
    await elsewhere.append("a", " more")
    for handle, said in (("a@0", 0), ("a@1", 5)):
        for whole in (False, True):
            recipe = await elsewhere.visor.recipe(handle, whole=whole)
            assert recipe.start is not None
            assert (recipe.start.digest, recipe.position) == (made.digest, made.position)
            assert sum(len(step.tokens) for step in recipe.steps) == said  # type: ignore[union-attr]


@pytest.mark.parametrize("whole", [False, True])
async def test_what_was_rolled_back_is_in_no_recipe(world: Any, whole: bool) -> None:
    await world.create("a", "once")
    await mutate(world, "a", "zero")
    await world.visor.rollback(Rollback(actor="a", to="a@0"))
    await world.append("a", " more")

    recipe = await world.visor.recipe((await world.visor.head("a")).handle, whole=whole)

    assert not [step for step in recipe.steps if isinstance(step, RuleStep)]
