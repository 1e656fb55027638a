"""The check at start that no row's bits depend on the rows beside it.

What libraries promise about bits is little, so it is measured on this machine with these weights:
every linear at several row counts and places, then the whole step, alone against in company and
cut against whole. It shows faults, not their absence; the tests hold the longer search.
"""

from __future__ import annotations

import torch

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.model import Model
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.plan import Row

_COUNTS = (1, 2, 3, 5, 16, 17, 33, 64)
_ROWS = 67
#: Which rows of the company are compared alone; the others are there to be company.
_ALONE = (0, 1, 3, 20)


def check_row_invariance(model: Model) -> None:
    """Raises: CapabilityMissing (some row changed with its company)."""
    with torch.inference_mode():
        seen = set()
        for weight in model.matrices():
            if weight.shape not in seen:
                seen.add(weight.shape)
                _check_linear(model, weight)
        _check_step(model)


def _check_linear(model: Model, weight: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(_ROWS, weight.shape[1], generator=generator)
    x = x.to(model.ops.device, model.ops.act)
    whole = model.ops.linear(x, weight)
    for count in _COUNTS:
        for start in (0, 1, _ROWS - count):
            part = model.ops.linear(x[start : start + count], weight)
            if not torch.equal(part, whole[start : start + count]):
                raise CapabilityMissing(
                    f"a product with a weight of {list(weight.shape)} gives other bits at"
                    f" {count} rows than at {_ROWS} on this device"
                )


def _check_step(model: Model) -> None:
    generator = torch.Generator().manual_seed(3)
    # with more than one thread so many that elementwise work is shared by them
    long = 40 if torch.get_num_threads() == 1 and model.ops.device.type == "cpu" else 160
    tokens = torch.randint(model.vocab, (long,), generator=generator).tolist()
    texts = [tuple(tokens), *(tuple(tokens[at : at + 1 + at % 3]) for at in range(20))]
    company, alone = (Bank(model.layout, len(texts), model.ops.device) for _ in range(2))
    together = [Row(slot=slot, tokens=text) for slot, text in enumerate(texts, 1)]
    expected = _logits(model, company, together)
    for index in _ALONE:
        row = together[index]
        cuts = [row.tokens] if len(row.tokens) < 3 else [row.tokens[:2], row.tokens[2:]]
        for cut in cuts:
            logits = _logits(model, alone, [Row(slot=row.slot, tokens=cut)])
        if not (
            torch.equal(logits[0], expected[index])
            and torch.equal(company.bytes[row.slot], alone.bytes[row.slot])
        ):
            raise CapabilityMissing(
                f"a row of {len(row.tokens)} tokens gives other bits alone than in company"
            )


def _logits(model: Model, bank: Bank, rows: list[Row]) -> torch.Tensor:
    return model.logits(model.forward(bank, pack(rows, model.ops.device)))
