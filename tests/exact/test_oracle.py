"""The fast path against the equations, written down independently, in float64."""

from __future__ import annotations

import torch

from statevisor.guests.bank import Bank
from statevisor.guests.mixers import wkv7


def reference(tiny, tokens) -> tuple[wkv7.State, torch.Tensor]:
    tensors = {name: tensor.double() for name, tensor in tiny["tensors"].items()}
    config = tiny["config"]
    state = wkv7.empty_state(config.layers, config.width, torch.float64)
    for token in tokens:
        logits = wkv7.step(tensors, state, token)
    return state, logits


def test_state_and_logits_agree_with_the_float64_oracle(tiny, make_model, make_rig, text) -> None:
    rig, tokens = make_rig(make_model()), text(3, 60)
    rig.open(7)
    rig.step({7: tokens})
    state, logits = reference(tiny, tokens)
    torch.testing.assert_close(rig.logits[7].double(), logits, rtol=1e-5, atol=1e-5)
    for name, expected in state.items():
        found = rig.guest.bank.views[name][7].double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_16_bit_state_stays_near_the_oracle(tiny, make_model, make_rig, text) -> None:
    rig, tokens = make_rig(make_model(state_dtype="F16")), text(3, 60)
    rig.open(7)
    rig.step({7: tokens})
    state, logits = reference(tiny, tokens)
    found = rig.guest.bank.views["wkv"][7].double()
    torch.testing.assert_close(found, state["wkv"], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(rig.logits[7].double(), logits, rtol=2e-2, atol=2e-2)


def test_every_tensor_of_the_checkpoint_matters(tiny, make_model, text) -> None:
    """Or a fault in its use could not show in any other test of this folder."""
    from statevisor.guests.batch import pack
    from statevisor.guests.families.rwkv7 import Rwkv7Model
    from statevisor.guests.ops_cpu import CpuOps
    from statevisor.hypervisor.plan import Row

    def logits(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        model = Rwkv7Model.build(tiny["config"], tensors, CpuOps(), "F32")
        rows = [Row(slot=1, tokens=text(3, 4))]
        bank = Bank(model.layout, 1)
        with torch.inference_mode():
            return model.logits(model.forward(bank, pack(rows, torch.device("cpu"))))

    plain = logits(tiny["tensors"])
    for name, tensor in tiny["tensors"].items():
        assert not torch.equal(logits({**tiny["tensors"], name: tensor * 1.5}), plain), name
