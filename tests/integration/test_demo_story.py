"""The demonstration's checks on twins: sound parts keep all promises, a faulty part breaks its own.

The faults are the negative controls of `statevisor demo`: each takes out one guard of a guest, of
the store or of the hypervisor, and the check that speaks of it must say so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from statevisor.api.demo.report import CHECKS, Check, Report
from statevisor.api.demo.run import live
from statevisor.api.demo.screen import Silent
from statevisor.hypervisor.branches import Branches
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.tiering import Tiering
from statevisor.hypervisor.vocab import Tier
from statevisor.store import codec
from statevisor.store.host import HostTier
from statevisor.store.memory import MemoryCatalog
from statevisor.store.memory_images import MemoryImages


class Enough(Exception):
    """What a test is about has been decided."""


class Until(Silent):
    """Ends the story with the verdict on one promise."""

    def __init__(self, last: str | None) -> None:
        self._last = last

    def verdict(self, name: str, check: Check) -> None:
        if name == self._last:
            raise Enough


def told(machine: Any, last: str | None = None) -> Report:
    """The story on a machine, to the verdict on `last`, or to its end."""
    report = Report()
    try:
        live(machine, report, Until(last))
    except Enough:
        pass
    except StatevisorError as error:
        report.stopped = error.detail
    finally:
        machine.stop()
    return report


def test_sound_parts_keep_every_promise(twin_machine: Any) -> None:
    machine = twin_machine()
    report = told(machine)

    broken = {name: check.detail for name, check in report.checks.items() if not check.ok}
    assert (report.stopped, broken) == (None, {})
    assert set(report.checks) == set(CHECKS)
    assert machine.starts == 2


Fault = Callable[[Any, Any], dict[str, Any]]
FAULTS: dict[str, Fault] = {}


def breaks(check: str) -> Callable[[Fault], Fault]:
    """Name the check that a fault must break; a fault returns the parts of its machine."""

    def remember(fault: Fault) -> Fault:
        FAULTS[f"{check}-{fault.__name__}"] = fault
        return fault

    return remember


@breaks("split_invariance")
def a_long_prompt_is_absorbed_otherwise(toy: Any, patch: Any) -> dict[str, Any]:
    class Guest(toy):
        def _row(self, slot: int, tokens: Any, draw: Any) -> Any:
            return super()._row(slot, (*tokens, 0) if len(tokens) > 40 else tokens, draw)

    return {"guest": Guest}


@breaks("prefill_equals_decode")
def a_spoken_token_is_absorbed_otherwise(toy: Any, patch: Any) -> dict[str, Any]:
    class Guest(toy):
        def _row(self, slot: int, tokens: Any, draw: Any) -> Any:
            spoken = draw is not None and len(tokens) == 1
            return super()._row(slot, (*tokens, 0) if spoken else tokens, draw)

    return {"guest": Guest}


@breaks("batch_invariance")
def the_number_of_rows_is_felt(toy: Any, patch: Any) -> dict[str, Any]:
    class Guest(toy):
        def step(self, plan: Any) -> Any:
            self.crowded = len(plan.rows) > 4
            return super().step(plan)

        def _row(self, slot: int, tokens: Any, draw: Any) -> Any:
            return super()._row(slot, (*tokens, 0) if self.crowded else tokens, draw)

    return {"guest": Guest}


@breaks("batch_invariance")
def nobody_is_batched(toy: Any, patch: Any) -> dict[str, Any]:
    """The answers are equal, but nothing was shown: there were no neighbours."""
    patch.setattr("statevisor.api.demo.life.among", lambda neighbours, act, settings: act())
    return {}


@breaks("fork_isolation")
def a_copied_slot_is_shared(toy: Any, patch: Any) -> dict[str, Any]:
    class Guest(toy):
        def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
            super().load(slot, row, start)
            key = bytes(row)
            self._bank[slot] = self.__dict__.setdefault("shared", {}).setdefault(
                key, self._bank[slot]
            )

        def copy(self, source: int, targets: Any) -> None:
            for target in targets:
                self._bank[target] = self._bank[source]

    return {"guest": Guest}


@breaks("mutation_proved")
def the_rule_does_nothing(toy: Any, patch: Any) -> dict[str, Any]:
    class Guest(toy):
        def mutate(self, mutation: Any, rows: Any) -> bytes:
            return bytes(rows[0])

    return {"guest": Guest}


@breaks("mutation_proved")
def the_rule_is_not_a_function(toy: Any, patch: Any) -> dict[str, Any]:
    noise = itertools.count(1)

    class Guest(toy):
        def mutate(self, mutation: Any, rows: Any) -> bytes:
            return next(noise).to_bytes(8, "little") + super().mutate(mutation, rows)[8:]

    return {"guest": Guest}


@breaks("hibernate_host_exact")
def a_frame_forgets_a_bit(toy: Any, patch: Any) -> dict[str, Any]:
    sound = HostTier.seal

    def seal(self: Any, actor_id: str) -> None:
        self._row(self._held[actor_id].index)[0] ^= 1
        sound(self, actor_id)

    patch.setattr(HostTier, "seal", seal)
    return {}


@breaks("hibernate_nvme_exact")
def an_image_forgets_a_bit(toy: Any, patch: Any) -> dict[str, Any]:
    class Images(MemoryImages):
        async def get(self, ref: ImageRef, out: memoryview, reached: Any = None) -> Any:
            meta = await super().get(ref, out)
            out.cast("B")[0] ^= 1
            return meta

    return {"images": Images()}


@breaks("hibernate_nvme_exact")
def it_stays_where_it_is(toy: Any, patch: Any) -> dict[str, Any]:
    """The answers are equal, but it never slept."""
    sound = Tiering.hibernate

    async def hibernate(self: Any, command: Any) -> Any:
        if command.tier is Tier.NVME:
            return self._roster.view(await self._roster.find(command.actor))
        return await sound(self, command)

    patch.setattr(Tiering, "hibernate", hibernate)
    return {}


@breaks("kill_loses_no_token")
def recovery_drops_the_end(toy: Any, patch: Any) -> dict[str, Any]:
    class Catalog(MemoryCatalog):
        async def end_turn(self, turn_id: str, **more: Any) -> Any:
            if more.get("broken"):
                begun = self._live(self._turns[turn_id].actor_id).record.position
                more["position"] = max(begun, more["position"] - 40)
            return await super().end_turn(turn_id, **more)

    return {"catalog": Catalog()}


@breaks("restart_continues_as_twin")
def each_process_draws_otherwise(toy: Any, patch: Any) -> dict[str, Any]:
    processes = itertools.count()

    class Guest(toy):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.process = next(processes)

        def _row(self, slot: int, tokens: Any, draw: Any) -> Any:
            drawn = draw and replace(draw, seed=draw.seed + self.process)
            return super()._row(slot, tokens, drawn)

    return {"guest": Guest}


@breaks("rollback_exact")
def it_stays_at_its_head(toy: Any, patch: Any) -> dict[str, Any]:
    async def rollback(self: Any, command: Any) -> Any:
        return self._roster.view(await self._roster.find(command.actor))

    patch.setattr(Branches, "rollback", rollback)
    return {}


@breaks("export_import_equal")
def an_import_forgets_a_bit(toy: Any, patch: Any) -> dict[str, Any]:
    class Images(MemoryImages):
        def decode(self, file: bytes, out: memoryview, expect: Any) -> Any:
            meta = super().decode(file, out, expect)
            out.cast("B")[0] ^= 1
            return meta

    return {"images": Images()}


@breaks("damage_refused")
def an_import_is_not_checked(toy: Any, patch: Any) -> dict[str, Any]:
    class Images(MemoryImages):
        def decode(self, file: bytes, out: memoryview, expect: Any) -> Any:
            row = out.cast("B")
            row[:] = file[len(file) - len(row) :]
            return codec.read_header(memoryview(file), len(file))

    return {"images": Images()}


@breaks("lineage_path")
def edges_are_forgotten(toy: Any, patch: Any) -> dict[str, Any]:
    class Catalog(MemoryCatalog):
        async def lineage(self, *asked: Any) -> Any:
            nodes, edges, cut = await super().lineage(*asked)
            return nodes, edges[1:], cut

    return {"catalog": Catalog()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_its_promise(
    fault: str, twin_machine: Any, slow_toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = fault.partition("-")[0]
    report = told(twin_machine(**FAULTS[fault](slow_toy, monkeypatch)), check)

    assert report.stopped is None
    assert not report.checks[check].ok, report.checks[check].detail


def test_every_promise_has_a_fault_that_breaks_it() -> None:
    assert {fault.partition("-")[0] for fault in FAULTS} == set(CHECKS)
