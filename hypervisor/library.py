"""What can be read: versions, transcripts, lineage, models, tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from statevisor.hypervisor.batcher import Batcher
from statevisor.hypervisor.catalog_port import Catalog, VersionQuery
from statevisor.hypervisor.commands import (
    MAX_NODES,
    DiffView,
    LineageView,
    ModelView,
    TranscriptView,
    VerifyView,
)
from statevisor.hypervisor.errors import InvalidRequest, VersionNotFound
from statevisor.hypervisor.recipes import Recipes, RecipeView
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.tasks import Tasks

#: Nodes of one part of a walk.
_PART = 500


class Library:
    """Reads of the catalog and of the guests; changes nothing but images that are written out."""

    def __init__(self, *, roster: Roster, tasks: Tasks, catalog: Catalog) -> None:
        self._roster = roster
        self._tasks = tasks
        self._catalog = catalog
        self._recipes = Recipes(catalog)

    async def versions(
        self, key: str, after: int | None = None, limit: int = 50
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        """One page of an actor's versions, oldest first."""
        record = await self._catalog.actor(key)
        return await self._catalog.versions(record.id, after, limit)

    async def search(self, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
        """One page of all versions under filters, in the order of their creation."""
        return await self._catalog.search(query)

    async def head(self, key: str, at_us: int | None) -> VersionRecord:
        """The version an actor stands at, or stood at then. Raises: VersionNotFound."""
        record = await self._catalog.actor(key)
        if at_us is None:
            return await self._catalog.version(f"{record.id}@{record.head}")
        found = await self._catalog.as_of(record.id, at_us)
        if found is None:
            raise VersionNotFound(f"{record.name} did not exist yet")
        return found

    async def transcript(
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> TranscriptView:
        """Committed tokens of an actor, with their kinds and their text."""
        actor = await self._roster.find(key)
        record = actor.committed()
        begin = record.base if start is None else start
        end = record.position if stop is None else stop
        if not record.base <= begin <= end <= record.position:
            raise InvalidRequest(
                f"{begin}..{end} is not in this transcript",
                hint=f"It covers {record.base}..{record.position}.",
            )
        runs = await self._catalog.transcript(record.segment, begin, end)
        tokens = tuple(token for run in runs for token in run.tokens)
        return TranscriptView(
            actor=record.name,
            start=begin,
            stop=end,
            token_ids=tokens,
            # on a thread: a million tokens would hold up the steps of all others
            text=await asyncio.to_thread(self._roster.text, self._roster.batcher(record), tokens),
            segments=tuple((run.position, len(run.tokens), run.kind) for run in runs),
        )

    async def lineage(
        self, key: str, direction: str = "ancestors", depth: int = 100, limit: int = MAX_NODES
    ) -> LineageView:
        """The graph around an actor's head or a version, the nearest `limit` versions of it."""
        handle = await self._handle(key)
        nodes, edges, cut = await self._catalog.lineage(handle, direction, depth, limit)
        return LineageView(
            nodes=nodes, edges=tuple((a, b, op.value) for a, b, op in edges), truncated=cut
        )

    async def walk(self, key: str, direction: str) -> AsyncIterator[LineageView]:
        """All that lies around an actor's head or a version, in parts; none waits for another."""
        handle = await self._handle(key)
        ways = ("ancestors", "descendants") if direction == "both" else (direction,)
        for way in ways:
            start: str | Sequence[int] = handle
            while start:
                part = await self._catalog.walk(start, way, _PART)
                again = start == handle and way != ways[0]
                yield LineageView(
                    nodes=part.nodes[1:] if again else part.nodes,
                    edges=tuple((a, b, op.value) for a, b, op in part.edges),
                    truncated=False,
                )
                start = part.rest

    async def _handle(self, key: str) -> str:
        """A version's handle as it is, an actor as that of its head."""
        if "@" in key:
            return key
        record = await self._catalog.actor(key)
        return f"{record.id}@{record.head}"

    async def diff(self, a: str, b: str) -> DiffView:
        """Compare two versions of one model."""
        left, right = await self._catalog.version(a), await self._catalog.version(b)
        record = await self._catalog.actor(left.actor_id)
        if (await self._catalog.actor(right.actor_id)).model != record.model:
            raise InvalidRequest("the two versions belong to different models")
        return await self._roster.history(record).diff(left, right)

    async def version(self, handle: str, *, wait: bool) -> VersionRecord:
        """One version; `wait` has its image written first."""
        version = await self._catalog.version(handle)
        if not wait or version.digest is not None:
            return version
        record = await self._catalog.actor(version.actor_id)
        await self._tasks.whole(self._roster.history(record).image(version))
        return await self._catalog.version(f"{version.actor_id}@{version.seq}")

    async def export(self, handle: str) -> bytes:
        """A version's image as one safetensors file."""
        version = await self._catalog.version(handle)
        record = await self._catalog.actor(version.actor_id)
        return await self._tasks.whole(self._roster.history(record).export(version))

    async def verify(self, handle: str) -> VerifyView:
        """Derive a version again and compare digests."""
        version = await self._catalog.version(handle)
        record = await self._catalog.actor(version.actor_id)
        return await self._tasks.whole(self._roster.history(record).verify(version))

    async def recipe(self, handle: str, *, whole: bool) -> RecipeView:
        """What makes a version again."""
        version = await self._catalog.version(handle)
        record = await self._catalog.actor(version.actor_id)
        return await self._recipes.of(version, record.model, whole=whole)

    async def is_ancestor(self, a: str, b: str) -> bool:
        """Whether version b comes from version a, or is it."""
        return await self._catalog.is_ancestor(a, b)

    async def common_ancestor(self, a: str, b: str) -> VersionRecord:
        """The newest version both descend from. Raises: VersionNotFound."""
        found = await self._catalog.common_ancestor(a, b)
        if found is None:
            raise VersionNotFound(f"{a} and {b} have no common ancestor")
        return found

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        """The mutation that last touched a layer. Raises: InvalidRequest."""
        version = await self._catalog.version(handle)
        record = await self._catalog.actor(version.actor_id)
        layers = self._roster.batcher(record).guest.layout.layers
        if not 0 <= layer < layers:
            raise InvalidRequest(f"layer {layer} is not in 0..{layers - 1}")
        return await self._catalog.blame(handle, layer)

    # -- models ----------------------------------------------------------------------------------
    def models(self) -> tuple[ModelView, ...]:
        """Every loaded guest."""
        return tuple(_model_view(batcher) for batcher in self._roster.batchers.values())

    def model(self, name: str) -> ModelView:
        """One loaded guest. Raises: ModelNotFound."""
        return _model_view(self._roster.named(name))

    def tokenize(self, model: str | None, text: str, add_bos: bool) -> tuple[int, ...]:
        """Ids of a text."""
        tokenizer = self._roster.named(model).guest.tokenizer
        bos = (tokenizer.bos,) if add_bos and tokenizer.bos is not None else ()
        return bos + tokenizer.encode(text)

    def detokenize(self, model: str | None, ids: Sequence[int]) -> str:
        """Text of ids."""
        batcher = self._roster.named(model)
        self._roster.check_tokens(batcher, ids)
        return self._roster.text(batcher, ids)

    def tokenizer_info(self, model: str | None) -> Mapping[str, Any]:
        """What a client must know of the tokenizer."""
        guest = self._roster.named(model).guest
        return {
            "model": guest.name,
            "vocab_size": guest.vocab_size,
            "bos_token_id": guest.tokenizer.bos,
            "eos_token_ids": sorted(guest.tokenizer.eos),
        }


def _model_view(batcher: Batcher) -> ModelView:
    guest = batcher.guest
    prints = guest.fingerprints
    return ModelView(
        name=guest.name,
        family=guest.family,
        state_bytes=guest.layout.row_bytes,
        slots=guest.slots,
        vocab_size=guest.vocab_size,
        fingerprints={"layout": prints.layout, "weights": prints.weights, "build": prints.build},
        capabilities={
            "rules": dict(guest.rules),
            "families": [family.name for family in guest.layout.families],
        },
        created_us=batcher.created_us,
    )
