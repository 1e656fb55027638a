"""How a token is drawn: settings of a turn, and penalty counts that follow from the transcript.

The draw itself is the guest's. Here is only what must be the same on every guest: which inputs a
draw has. They are the logits, the settings, the seed and the position of the drawn token; nothing
of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from statevisor.hypervisor.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSettings:
    """Settings of one turn; the defaults are greedy."""

    temperature: float = 0.0  #: 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  #: 0 is off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_decay: float = 1.0  #: factor on all counts per token of the transcript
    logprobs: int | None = None  #: number of alternatives per token; None: no logprobs

    def __post_init__(self) -> None:
        checks = (
            (0.0 <= self.temperature <= 100.0, "temperature must be in 0..100"),
            (0.0 < self.top_p <= 1.0, "top_p must be in (0, 1]"),
            (0 <= self.top_k <= 2**31, "top_k must be 0 (off) or more"),
            (0.0 <= self.min_p <= 1.0, "min_p must be in 0..1"),
            (-100.0 <= self.presence_penalty <= 100.0, "presence_penalty must be in -100..100"),
            (-100.0 <= self.frequency_penalty <= 100.0, "frequency_penalty must be in -100..100"),
            (0.0 < self.penalty_decay <= 1.0, "penalty_decay must be in (0, 1]"),
            (self.logprobs is None or 0 <= self.logprobs <= 20, "logprobs must be in 0..20"),
        )
        for ok, message in checks:
            if not ok:
                raise InvalidRequest(message)

    @property
    def penalised(self) -> bool:
        """Whether earlier tokens change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One token to draw: everything a sampler may look at beside the logits."""

    seed: int  #: below 2^53
    position: int  #: place in the transcript of the token to draw; with the seed it keys the RNG
    settings: SamplerSettings
    #: (token id, amount to subtract from its logit), ids ascending and unique
    bias: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class PenaltyCounts:
    """Decayed counts of the generated tokens since the last prompt token.

    A count is worked out by one recurrence in float64, one step per occurrence, so that counts
    built token by token and counts rebuilt from a transcript are the same bits.
    """

    settings: SamplerSettings
    _seen: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, token: int, position: int) -> None:
        """Count the token that stands at `position`."""
        count, last = self._seen.get(token, (0.0, position))
        self._seen[token] = (
            count * self.settings.penalty_decay ** (position - last) + 1.0,
            position,
        )

    def extend(self, tokens: Iterable[int], position: int) -> None:
        """Count consecutive tokens, the first at `position`."""
        for offset, token in enumerate(tokens):
            self.add(token, position + offset)

    def bias(self, position: int) -> tuple[tuple[int, float], ...]:
        """What to subtract from the logits when the token at `position` is drawn."""
        if not self.settings.penalised:
            return ()
        decay = self.settings.penalty_decay
        return tuple(
            (
                token,
                self.settings.presence_penalty
                + self.settings.frequency_penalty * (count * decay ** (position - last)),
            )
            for token, (count, last) in sorted(self._seen.items())
        )
