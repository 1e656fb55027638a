"""The guest: a model, its bank, its tokenizer and its sampler behind the port of the core.

A step packs prefill and decode rows into one ragged batch, runs it, marks rows that are not finite
and draws. Nothing in it looks across rows, so a row that is not finite harms none but itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from blake3 import blake3

from statevisor.guests import rules
from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.model import Model
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.plain_steps import PlainSteps, Steps
from statevisor.guests.sampling import sample
from statevisor.guests.tokenizers import AnyTokenizer
from statevisor.hypervisor.layout import INEXACT, Fingerprints, Layout
from statevisor.hypervisor.plan import MOST_STOPS, MOST_TIMES, Row, RowResult, StepPlan
from statevisor.hypervisor.ports import FamilyDiff, Mutation
from statevisor.hypervisor.sampling import Draw

#: Feeds a batch to its slots; returns each row's last hidden [R, C].
Step = Callable[[RaggedBatch], torch.Tensor]
#: Draws one token per row of logits [R, V].
Sampler = Callable[[torch.Tensor, Sequence[Draw]], Sequence[RowResult]]

#: Grows with every change of this package's arithmetic that no other fact of the build shows.
BUILD_VERSION = 1


class Runner:
    """`ports.Guest` over any model family and any operators."""

    def __init__(
        self,
        *,
        name: str,
        model: Model,
        tokenizer: AnyTokenizer,
        slots: int,
        step_tokens: int,
        sampler: Sampler = sample,
        steps: Callable[[Model, Bank], Steps] | None = None,
    ) -> None:
        """Allocates the bank and runs the golden probe.

        steps: another way to step than to wait for each, of the same bits; `sampler` has no part
        in it.
        """
        self._name = name
        self._model = model
        self._tokenizer = tokenizer
        self._step_tokens = step_tokens
        self._sampler = sampler
        self._rules = rules.load_rules()
        self._checked: tuple[Row, ...] = ()
        self.bank = Bank(model.layout, slots, model.ops.device)
        self._forward: Step = partial(model.forward, self.bank)
        self._steps = PlainSteps(self._run) if steps is None else steps(model, self.bank)
        self._fingerprints = fingerprints(model, tokenizer.digest)

    @property
    def name(self) -> str:
        return self._name

    @property
    def family(self) -> str:
        return self._model.family

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def fingerprints(self) -> Fingerprints:
        return self._fingerprints

    @property
    def tokenizer(self) -> AnyTokenizer:
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        return self._model.vocab

    @property
    def slots(self) -> int:
        return self.bank.slots

    @property
    def step_tokens(self) -> int:
        return self._step_tokens

    @property
    def steps_ahead(self) -> int:
        return self._steps.ahead

    @property
    def rules(self) -> Mapping[str, int]:
        return {name: rule.version for name, rule in self._rules.items()}

    # -- the engine thread -----------------------------------------------------------------------
    def step(self, plan: StepPlan) -> tuple[RowResult, ...]:
        """Run one batched forward pass.

        Raises: ValueError (the plan is none of this guest's), before anything is modified.
        """
        (results,) = self.collect(self.submit(plan))
        return tuple(results)

    def submit(self, plan: StepPlan) -> object:
        """Begin a step. Raises: as `step`, before anything is modified."""
        if plan.rows is not self._checked:
            self._check(plan.rows)
            self._checked = plan.rows
        if plan.times > MOST_TIMES:
            raise ValueError(f"a step is given {MOST_TIMES} times at most, not {plan.times}")
        if plan.times > 1 and not all(row.follows and row.draw for row in plan.rows):
            raise ValueError("rows of a step that is given several times all follow and draw")
        return self._steps.submit(plan) if plan.rows else None

    def waits(self, ticket: Any) -> bool:
        return ticket is not None and self._steps.waits(ticket)

    def collect(self, ticket: Any) -> Sequence[Sequence[RowResult]]:
        return ((),) if ticket is None else self._steps.collect(ticket)

    def _run(self, plan: StepPlan) -> tuple[RowResult, ...]:
        with torch.inference_mode():
            hidden = self._forward(pack(plan.rows, self._model.ops.device))
            # On a GPU this copy is behind the step on its stream, and the sampler's is behind it.
            finite = hidden.isfinite().all(1).to("cpu", non_blocking=True)
            drawn = self._draw(hidden, plan.rows)
            if hidden.is_cuda:
                torch.cuda.current_stream(hidden.device).synchronize()
        return tuple(
            drawn.get(index, _DONE) if ok else _NOT_FINITE
            for index, ok in enumerate(finite.tolist())
        )

    def clear(self, slot: int) -> None:
        self.bank.clear(slot)

    def copy(self, source: int, targets: Sequence[int]) -> None:
        self.bank.copy(source, targets)

    def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
        self.bank.load(slot, row, start)

    # -- beside it -------------------------------------------------------------------------------
    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        self.bank.save(slot, out, start)

    # -- any thread ------------------------------------------------------------------------------
    def frames(self, count: int) -> memoryview:
        return self.bank.frames(count)

    def mutate(self, mutation: Mutation, rows: Sequence[memoryview]) -> bytes:
        return rules.mutate(self.layout, mutation, rows, self._rules)

    def diff(self, a: memoryview, b: memoryview) -> tuple[FamilyDiff, ...]:
        return rules.diff(self.layout, a, b)

    def finite(self, row: memoryview) -> bool:
        return rules.finite(self.layout, row)

    def _draw(self, hidden: torch.Tensor, rows: Sequence[Row]) -> dict[int, RowResult]:
        """Results of the rows that ask for a token, by their index in the plan."""
        draws = {index: row.draw for index, row in enumerate(rows) if row.draw is not None}
        if not draws:
            return {}
        if len(draws) < len(rows):
            hidden = hidden[torch.tensor(list(draws), device=hidden.device)]
        results = self._sampler(self._model.logits(hidden), list(draws.values()))
        return dict(zip(draws, results, strict=True))

    def _check(self, rows: Sequence[Row]) -> None:
        slots = [row.slot for row in rows]
        if len(set(slots)) != len(slots) or not all(0 < slot <= self.slots for slot in slots):
            raise ValueError(f"a plan names slots once, within 1..{self.slots}: {slots}")
        if not all(row.tokens for row in rows):
            raise ValueError("a row has at least one token")
        if any(len(row.stops) > MOST_STOPS for row in rows):
            raise ValueError(f"a row has at most {MOST_STOPS} tokens that stop it")
        if sum(len(row.tokens) for row in rows) > self._step_tokens:
            raise ValueError(f"a step carries at most {self._step_tokens} tokens")
        known = [row.tokens for row in rows if not row.follows]
        low, high = min(map(min, known), default=0), max(map(max, known), default=0)
        if low < 0 or high >= self.vocab_size:
            raise ValueError(f"tokens {low}..{high} are not all within 0..{self.vocab_size - 1}")


_DONE = RowResult()
_NOT_FINITE = RowResult(finite=False)


def fingerprints(model: Model, vocabulary: str) -> Fingerprints:
    """What images and journals of this model are bound to.

    The build holds, beside what the operators know of themselves, a golden probe: the bits that
    this machine makes of a fixed input. So libraries that were changed under the same name show.
    """
    facts = {
        "version": BUILD_VERSION,
        "mode": "exact" if model.ops.exact else "fast",
        "operators": dict(sorted(model.ops.fingerprint().items())),
        "act": str(model.ops.act),
        "state": [[family.name, family.dtype] for family in model.layout.families],
        "golden": golden_probe(model),
    }
    return Fingerprints(
        layout=model.layout.fingerprint,
        weights=_digest(model.digest.encode(), vocabulary.encode()),
        build=("" if model.ops.exact else INEXACT)
        + _digest(json.dumps(facts, sort_keys=True).encode()),
    )


def golden_probe(model: Model) -> str:
    """Digest of states and logits after a fixed input: one prompt and some single tokens."""
    bank = Bank(model.layout, 3, model.ops.device)
    tokens = [7 * index % model.vocab for index in range(24)]
    plans = [
        [Row(slot=1, tokens=tuple(tokens[:20])), Row(slot=2, tokens=tuple(tokens[20:]))],
        [Row(slot=slot, tokens=(tokens[slot],)) for slot in (1, 2, 3)],
    ]
    hasher = blake3()
    with torch.inference_mode():
        for rows in plans:
            logits = model.logits(model.forward(bank, pack(rows, model.ops.device)))
            hasher.update(logits.cpu().view(torch.uint8).numpy())
        hasher.update(bank.bytes[1:].cpu().numpy())
    return hasher.hexdigest()


def _digest(*parts: bytes) -> str:
    hasher = blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little") + part)
    return "blake3:" + hasher.hexdigest()
