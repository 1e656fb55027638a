"""The guest's twin: a state that is a rolling hash, in the standard library alone.

It keeps the same contract as a real guest (rows depend on nothing but their own tokens and draw)
and runs in microseconds, so that lifecycle, crash and API tests need no model. One token of its
vocabulary poisons the state, as a NaN does a real one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt

from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.following import LastDrawn
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.hypervisor.plan import Logprobs, RowResult, StepPlan
from statevisor.hypervisor.ports import FamilyDiff, Mutation
from statevisor.hypervisor.sampling import Draw

BOS, EOS, POISON = 256, 257, 258
VOCAB = 272
_LAYERS, _WIDTH = 2, 4
_MASK = (1 << 62) - 1
_LETTERS = b"etaoin shrdlu,.\n"
_ROW = struct.Struct(f"<{_LAYERS * _WIDTH + _LAYERS}q")
_BAD = -1  #: what a poisoned number looks like


def mix(*values: int) -> int:
    """A 62-bit hash of integers (a multiply-xorshift chain)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ (value & _MASK)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
        state ^= state >> 29
    return state & _MASK


@dataclass(frozen=True, slots=True)
class ToyTokenizer:
    """Bytes with three special tokens."""

    bos: int | None = BOS
    eos: frozenset[int] = frozenset({EOS})

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


@dataclass
class ToyGuest:
    """A bank of rolling hashes."""

    name: str = "toy"
    slots: int = 8
    step_tokens: int = 64
    build: str = "toy-1"
    tokenizer: ToyTokenizer = field(default_factory=ToyTokenizer)
    family: str = "toy"
    vocab_size: int = VOCAB
    steps: int = 0  #: how many steps were run
    steps_ahead: int = 1
    _last: LastDrawn = field(default_factory=LastDrawn)
    _bank: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._bank = [[0] * (_LAYERS * _WIDTH + _LAYERS) for _ in range(self.slots + 1)]

    @property
    def layout(self) -> Layout:
        return Layout(
            families=(
                StateFamily(name="roll", shape=(_LAYERS, _WIDTH), dtype="I64"),
                StateFamily(name="shift", shape=(_LAYERS,), dtype="I64"),
            )
        )

    @property
    def fingerprints(self) -> Fingerprints:
        return Fingerprints(layout=self.layout.fingerprint, weights="toy-weights", build=self.build)

    @property
    def rules(self) -> Mapping[str, int]:
        return {"decay": 1, "scale": 1, "zero": 1, "add": 1, "set": 1, "blend": 1, "noise": 1}

    # -- the engine thread -----------------------------------------------------------------------
    def step(self, plan: StepPlan) -> tuple[RowResult, ...]:
        self.steps += 1
        seen = [row.slot for row in plan.rows]
        if len(set(seen)) != len(seen) or not all(0 < slot <= self.slots for slot in seen):
            raise ValueError(f"a plan names slots once, within the bank: {seen}")
        return tuple(self._row(row.slot, row.tokens, row.draw) for row in plan.rows)

    def submit(self, plan: StepPlan) -> Sequence[Sequence[RowResult]]:
        return self._last.run(plan, self.step)

    def waits(self, ticket: Sequence[Sequence[RowResult]]) -> bool:
        return False

    def collect(self, ticket: Sequence[Sequence[RowResult]]) -> Sequence[Sequence[RowResult]]:
        return ticket

    def _row(self, slot: int, tokens: Sequence[int], draw: Draw | None) -> RowResult:
        state = self._bank[slot]
        for token in tokens:
            _absorb(state, token)
        if _BAD in state:
            return RowResult(finite=False)
        return RowResult() if draw is None else _draw(state, draw)

    def clear(self, slot: int) -> None:
        self._bank[slot] = [0] * len(self._bank[slot])

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        row = _ROW.pack(*self._bank[slot])
        out[:] = row if start is None else row[start : start + len(out)]

    def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
        if start is not None:
            whole = bytearray(_ROW.pack(*self._bank[slot]))
            whole[start : start + len(row)] = row
            row = memoryview(whole)
        self._bank[slot] = list(_ROW.unpack(row))

    def copy(self, source: int, targets: Sequence[int]) -> None:
        for target in targets:
            self._bank[target] = list(self._bank[source])

    # -- any thread ------------------------------------------------------------------------------
    def frames(self, count: int) -> memoryview:
        return memoryview(bytearray(count * _ROW.size))

    def mutate(self, mutation: Mutation, rows: Sequence[memoryview]) -> bytes:
        own, *others = (list(_ROW.unpack(row)) for row in rows)
        families = {"roll": range(8), "shift": range(8, 10)}
        for name in mutation.families or ():
            if name not in families:
                raise InvalidRequest(f"there is no family {name!r}: roll, shift")
        for name, indices in families.items():
            if mutation.families is not None and name not in mutation.families:
                continue
            for index in indices:
                layer = (index if name == "roll" else (index - 8) * _WIDTH) // _WIDTH
                if mutation.layers is None or layer in mutation.layers:
                    own[index] = _checked(mutation, own[index], [o[index] for o in others], index)
        return _ROW.pack(*own)

    def diff(self, a: memoryview, b: memoryview) -> tuple[FamilyDiff, ...]:
        left, right = _ROW.unpack(a), _ROW.unpack(b)
        parts = [("roll", layer, range(layer * 4, layer * 4 + 4)) for layer in range(_LAYERS)]
        parts += [("shift", layer, range(8 + layer, 9 + layer)) for layer in range(_LAYERS)]
        return tuple(_compare(name, layer, left, right, where) for name, layer, where in parts)

    def finite(self, row: memoryview) -> bool:
        return _BAD not in _ROW.unpack(row)


def _absorb(state: list[int], token: int) -> None:
    if token == POISON or _BAD in state:
        state[:] = [_BAD] * len(state)
        return
    for layer in range(_LAYERS):
        shift = 8 + layer
        for index in range(layer * _WIDTH, (layer + 1) * _WIDTH):
            state[index] = mix(state[index], token, state[shift], index)
        state[shift] = token + 1


def _draw(state: Sequence[int], draw: Draw) -> RowResult:
    """Eight candidates with made-up logits; the same rules of choice as a real sampler."""
    scores: dict[int, float] = {}
    for index in range(8):
        hashed = mix(*state, index)
        token = EOS if hashed % 97 == 0 else _LETTERS[hashed % len(_LETTERS)]
        scores.setdefault(token, (hashed >> 20) % 1000 / 100)
    raw = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
    bias = dict(draw.bias)
    biased = {token: score - bias.get(token, 0.0) for token, score in raw}
    if draw.settings.temperature > 0:
        noise = {t: mix(draw.seed, draw.position, t) % 1000 / 100 for t in biased}
        keep = sorted(biased, key=lambda t: (-biased[t], t))[: draw.settings.top_k or None]
        heat = draw.settings.temperature
        biased = {token: biased[token] + heat * noise[token] for token in keep}
    token = min(biased, key=lambda t: (-biased[t], t))
    logprobs = None
    if draw.settings.logprobs is not None:
        logprobs = Logprobs(
            chosen=scores[token] - 10.0,
            top=tuple((t, score - 10.0) for t, score in raw[: draw.settings.logprobs]),
        )
    return RowResult(token=token, logprobs=logprobs)


def _checked(mutation: Mutation, own: int, others: Sequence[int], index: int) -> int:
    """The rule at one number. Raises: InvalidRequest for parameters of the wrong form."""
    try:
        return _rule(mutation, own, others, index)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"parameters of {mutation.rule}: {error}") from None


def _rule(mutation: Mutation, own: int, others: Sequence[int], index: int) -> int:
    params = mutation.params
    match mutation.rule:
        case "decay" | "scale":
            factor = params.get("alpha" if mutation.rule == "decay" else "factor")
            if not isinstance(factor, (int, float)) or not isfinite(factor):
                raise InvalidRequest(f"{mutation.rule} needs a finite number")
            return int(own * factor) & _MASK
        case "zero":
            return 0
        case "set":
            return others[0]
        case "add":
            return int(own + others[0] * params.get("factor", 1)) & _MASK
        case "blend":
            weights = params["weights"]
            mine = 1 - sum(weights)
            return (
                int(own * mine + sum(w * o for w, o in zip(weights, others, strict=True))) & _MASK
            )
        case "noise":
            return own ^ (mix(params.get("seed", 0), index) & 0xFFFF)
        case unknown:
            raise InvalidRequest(f"there is no rule {unknown!r}")


def _compare(
    name: str, layer: int, left: Sequence[int], right: Sequence[int], where: range
) -> FamilyDiff:
    a, b = [float(left[i]) for i in where], [float(right[i]) for i in where]
    norm_a, norm_b = sqrt(sum(x * x for x in a)), sqrt(sum(x * x for x in b))
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return FamilyDiff(
        family=name,
        layer=layer,
        norm_a=norm_a,
        norm_b=norm_b,
        distance=sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))),
        cosine=dot / (norm_a * norm_b) if norm_a and norm_b else None,
    )
