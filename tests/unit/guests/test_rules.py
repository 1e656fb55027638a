from __future__ import annotations

import math
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statevisor.guests import rules
from statevisor.guests.philox import normal
from statevisor.guests.rules import BUILTIN, RULES, Rule, diff, finite, load_rules, mutate
from statevisor.hypervisor.errors import CapabilityMissing, InvalidRequest
from statevisor.hypervisor.layout import Layout, StateFamily
from statevisor.hypervisor.ports import Mutation

L, H, D, C = 3, 2, 4, 8
LAYOUT = Layout(
    families=(
        StateFamily(name="wkv", shape=(L, H, D, D), dtype="F32"),
        StateFamily(name="shift", shape=(L, C), dtype="F16"),
        StateFamily(name="count", shape=(L, 2), dtype="I64"),
    )
)
MATRIX = slice(0, L * H * D * D * 4)


def make_row(seed: int) -> memoryview:
    random = np.random.default_rng(seed)
    wkv = random.standard_normal((L, H, D, D)).astype("f4")
    shift = random.standard_normal((L, C)).astype("f2")
    count = random.integers(0, 9, (L, 2)).astype("i8")
    return memoryview(wkv.tobytes() + shift.tobytes() + count.tobytes())


def arrays(row: bytes | memoryview) -> dict[str, np.ndarray]:
    at = [0, L * H * D * D * 4]
    at.append(at[1] + L * C * 2)
    return {
        "wkv": np.frombuffer(row[at[0] : at[1]], "f4").reshape(L, H, D, D),
        "shift": np.frombuffer(row[at[1] : at[2]], "f2").reshape(L, C),
        "count": np.frombuffer(row[at[2] :], "i8").reshape(L, 2),
    }


def run(rule: str, *rows: memoryview, select: dict[str, Any] | None = None, **params: Any) -> bytes:
    return mutate(LAYOUT, Mutation(rule=rule, params=params, **(select or {})), rows)


A, B, C_ROW = make_row(1), make_row(2), make_row(3)


# -- what each rule computes, against numpy -------------------------------------------------------


def test_decay_scales_the_recurrent_matrices_alone() -> None:
    new, old = arrays(run("decay", A, alpha=0.3)), arrays(A)
    assert np.array_equal(new["wkv"], old["wkv"] * np.float32(0.3))
    assert new["shift"].tobytes() == old["shift"].tobytes()
    explicit = arrays(run("decay", A, alpha=0.5, select={"families": ("shift",)}))
    assert np.array_equal(explicit["shift"], old["shift"] / 2)


def test_scale_rounds_once_to_the_dtype() -> None:
    new, old = arrays(run("scale", A, factor=1.7)), arrays(A)
    assert np.array_equal(new["wkv"], old["wkv"] * np.float32(1.7))
    in_float32 = old["shift"].astype("f4") * np.float32(1.7)
    assert np.array_equal(new["shift"], in_float32.astype("f2"))
    twice_rounded = old["shift"] * np.float16(1.7)
    assert not np.array_equal(new["shift"], twice_rounded)
    assert np.array_equal(new["count"], old["count"])


def test_zero_and_set_act_on_every_family() -> None:
    assert run("zero", A) == bytes(LAYOUT.row_bytes)
    assert run("set", A, B) == bytes(B)


def test_blend_gives_the_own_state_what_is_left_to_one() -> None:
    new = arrays(run("blend", A, B, C_ROW, weights=[0.25, 0.5]))
    a, b, c = (arrays(row)["wkv"] for row in (A, B, C_ROW))
    assert np.array_equal(new["wkv"], a * np.float32(0.25) + b * np.float32(0.25) + c / 2)
    assert run("blend", A, B, weights=[0.0]) == bytes(A)
    whole = arrays(run("blend", A, B, weights=[1.0]))
    assert np.array_equal(whole["wkv"], b)


def test_add_and_its_default() -> None:
    a, b = arrays(A)["wkv"], arrays(B)["wkv"]
    assert np.array_equal(arrays(run("add", A, B))["wkv"], a + b)
    assert np.array_equal(arrays(run("add", A, B, factor=-2))["wkv"], a - 2 * b)


def test_noise_is_keyed_by_seed_and_place() -> None:
    new, old = arrays(run("noise", A, std=0.5, seed=42)), arrays(A)
    drawn = normal(42, 0, L * H * D * D + L * C) * 0.5
    wkv = drawn[: L * H * D * D].astype("f4").reshape(L, H, D, D)
    shift = drawn[L * H * D * D :].astype("f4").reshape(L, C)
    assert np.array_equal(new["wkv"], old["wkv"] + wkv)
    assert np.array_equal(new["shift"], (old["shift"].astype("f4") + shift).astype("f2"))
    part = arrays(run("noise", A, std=0.5, seed=42, select={"layers": (1,), "heads": (1,)}))
    assert np.array_equal(part["wkv"][1, 1], new["wkv"][1, 1])
    assert run("noise", A, std=0.5, seed=43) != run("noise", A, std=0.5, seed=42)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_every_float_dtype(dtype: str) -> None:
    layout = Layout(families=(StateFamily(name="wkv", shape=(2, 1, 4, 4), dtype=dtype),))
    stored = rules.TORCH_DTYPES[dtype]
    own = torch.linspace(-3, 3, 32, dtype=torch.float64).to(stored)
    row = memoryview(own.view(torch.uint8).numpy().tobytes())
    new = mutate(layout, Mutation(rule="scale", params={"factor": 0.1}), [row])
    arithmetic = torch.promote_types(stored, torch.float32)
    expected = (own.to(arithmetic) * torch.tensor(0.1, dtype=arithmetic)).to(stored)
    assert new == expected.view(torch.uint8).numpy().tobytes()


# -- selection ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["scale", "zero", "noise", "set", "blend"]),
    st.lists(st.integers(0, L - 1), unique=True, min_size=1),
    st.lists(st.integers(0, H - 1), unique=True, min_size=1),
)
def test_what_is_not_selected_keeps_its_bytes(
    rule: str, layers: list[int], heads: list[int]
) -> None:
    params = {"scale": {"factor": 3}, "noise": {"std": 1, "seed": 1}, "blend": {"weights": [0.3]}}
    rows = (A, B) if BUILTIN[rule].source else (A,)
    select = {"layers": tuple(layers), "heads": tuple(heads)}
    new = arrays(run(rule, *rows, select=select, **params.get(rule, {})))
    whole = arrays(run(rule, *rows, **params.get(rule, {})))
    old = arrays(A)
    for layer in range(L):
        for head in range(H):
            chosen = layer in layers and head in heads
            expected = (whole if chosen else old)["wkv"][layer, head]
            assert np.array_equal(new["wkv"][layer, head], expected)
    assert np.array_equal(new["shift"], old["shift"])  # a family without heads is left out


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ({"families": ("kv",)}, "no family 'kv'; there are: wkv, shift, count"),
        ({"families": ()}, "empty selection"),
        ({"families": ("wkv", "wkv")}, "twice"),
        ({"families": ("count",)}, "rule scale is not defined on family count: I64"),
        ({"layers": (3,)}, r"layers: 3 is not in 0\.\.2"),
        ({"layers": (-1,)}, "layers: -1"),
        ({"layers": (True,)}, "layers: True"),
        ({"layers": (1, 1)}, "twice"),
        ({"layers": ()}, "empty selection"),
        ({"heads": (2,)}, r"heads: 2 is not in 0\.\.1 of family wkv"),
        ({"heads": (0,), "families": ("shift",)}, "family shift has no heads"),
    ],
)
def test_bad_selections_are_named(select: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run("scale", A, select=select, factor=2)


# -- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "params", "message"),
    [
        ("melt", {}, "no rule 'melt'; there are: add, blend, decay"),
        ("decay", {}, "rule decay needs the parameter 'alpha'"),
        ("decay", {"alpha": None}, "needs the parameter 'alpha'"),
        ("decay", {"alpha": 1.01}, r"alpha of rule decay must be a finite number in 0\.0\.\.1\.0"),
        ("decay", {"alpha": -0.1}, "alpha"),
        ("decay", {"alpha": True}, "alpha"),
        ("decay", {"alpha": "0.5"}, "alpha"),
        ("decay", {"alpha": math.nan}, "alpha"),
        ("decay", {"alpha": 0.5, "beta": 1}, "no parameter 'beta'; it takes: alpha"),
        ("decay", {"alpha": 0.5, "from": "a@1"}, "no parameter 'from'"),
        ("scale", {"factor": math.inf}, "factor"),
        ("scale", {"factor": 10**400}, "factor"),
        ("zero", {"factor": 1}, "no parameter 'factor'; it takes: none"),
        ("noise", {"std": -1.0, "seed": 1}, "std of rule noise must be a finite number, 0.0 or mo"),
        ("noise", {"std": 1.0}, "seed"),
        ("noise", {"std": 1.0, "seed": 1.5}, "seed of rule noise must be a whole number"),
        ("noise", {"std": 1.0, "seed": 2**53}, "seed"),
    ],
)
def test_bad_parameters_are_named(rule: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        run(rule, A, **params)


@pytest.mark.parametrize("weights", [[], 0.5, ["1"], [True], [math.nan], [0.1, 0.2]])
def test_bad_weights(weights: Any) -> None:
    with pytest.raises(InvalidRequest, match="weights"):
        run("blend", A, B, weights=weights)


def test_the_number_of_rows_must_fit_the_rule() -> None:
    with pytest.raises(InvalidRequest, match="takes no other version"):
        run("zero", A, B)
    with pytest.raises(InvalidRequest, match="'from'"):
        run("set", A)
    with pytest.raises(InvalidRequest, match="one version in the parameter 'from'"):
        run("add", A, B, C_ROW)
    with pytest.raises(InvalidRequest, match="'others'"):
        run("blend", A, weights=[0.5])
    with pytest.raises(InvalidRequest, match="bytes"):
        run("set", A, B[:-1])


def test_handles_in_the_parameters_are_the_callers() -> None:
    assert run("set", A, B, **{"from": "bob@2"}) == bytes(B)
    assert run("blend", A, B, others=["bob@2"], weights=[0.5]) == run("blend", A, B, weights=[0.5])


def test_a_result_that_is_not_finite_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not finite in layer 0 of family shift"):
        run("scale", A, factor=1e6, select={"families": ("shift",)})
    with pytest.raises(InvalidRequest, match="not finite in layer 0 of family wkv"):
        run("scale", A, factor=1e300)


def test_parents_are_not_modified_and_may_be_read_only() -> None:
    before = bytes(A), bytes(B)
    writable = memoryview(bytearray(A))
    run("blend", writable, B, weights=[0.5])
    assert (bytes(writable), bytes(B)) == before


@pytest.mark.parametrize("rule", ["decay", "noise", "blend"])
def test_a_rule_gives_the_same_bits_whatever_the_threads(rule: str) -> None:
    layout = Layout(families=(StateFamily(name="wkv", shape=(2, 5, 63, 64), dtype="F32"),))
    numbers = np.random.default_rng(1).standard_normal((2, 2 * 5 * 63 * 64), "f4")
    rows = [memoryview(row.tobytes()) for row in numbers][: 2 if BUILTIN[rule].source else 1]
    params = {"decay": {"alpha": 0.3}, "noise": {"std": 1, "seed": 1}, "blend": {"weights": [0.7]}}
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(mutate(layout, Mutation(rule=rule, params=params[rule]), rows))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


# -- diff and finite ------------------------------------------------------------------------------


def test_diff_is_per_family_and_layer() -> None:
    changed = memoryview(run("scale", A, factor=-2, select={"families": ("wkv",), "layers": (1,)}))
    found = {(entry.family, entry.layer): entry for entry in diff(LAYOUT, A, changed)}
    assert len(found) == 3 * L
    norm = np.linalg.norm(arrays(A)["wkv"][1].astype("f8"))
    entry = found["wkv", 1]
    assert entry.norm_a == pytest.approx(norm)
    assert entry.norm_b == pytest.approx(2 * norm)
    assert entry.distance == pytest.approx(3 * norm)
    assert entry.cosine == pytest.approx(-1)
    assert all(entry.distance == 0 for key, entry in found.items() if key != ("wkv", 1))


def test_diff_with_the_empty_state_has_no_cosine() -> None:
    empty = memoryview(bytes(LAYOUT.row_bytes))
    assert all(entry.cosine is None for entry in diff(LAYOUT, A, empty))


def test_diff_says_the_same_with_any_number_of_threads() -> None:
    """How many a thread may use is its own, and whoever asks twice is answered by two of ours."""
    layout = Layout(families=(StateFamily(name="wkv", shape=(1, 32, 64, 64), dtype="F32"),))
    random = np.random.default_rng(5)
    a, b = (memoryview(random.standard_normal(32 * 64 * 64).astype("f4").tobytes()) for _ in "ab")
    before, found = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(diff(layout, a, b))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize("family", ["wkv", "shift"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite_sees_one_bad_number(family: str, bad: float) -> None:
    assert finite(LAYOUT, A)
    parts = {name: value.copy() for name, value in arrays(A).items()}
    parts[family].reshape(-1)[-1] = bad
    assert not finite(LAYOUT, memoryview(b"".join(part.tobytes() for part in parts.values())))


# -- rules of others ------------------------------------------------------------------------------

NEGATE = Rule(name="negate", version=3, apply=lambda part: -part.own)
DECAY_AGAIN = Rule(name="decay", version=1, apply=lambda part: part.own)
WIDEN = Rule(name="widen", version=1, apply=lambda part: part.own.repeat(2, 1, 1))


def point_at(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(
        rules, "entry_points", lambda group: (EntryPoint(name="x", value=value, group=group),)
    )


def test_installed_packages_add_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    point_at(monkeypatch, "test_rules:NEGATE")
    found = load_rules()
    assert {name: rule.version for name, rule in found.items()} == {**RULES, "negate": 3}
    new = mutate(LAYOUT, Mutation(rule="negate", params={}, families=("wkv",)), [A], found)
    assert np.array_equal(arrays(new)["wkv"], -arrays(A)["wkv"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("test_rules:DECAY_AGAIN", "exists already"),
        ("test_rules:LAYOUT", "is no Rule"),
        ("test_rules:NOTHING", "NOTHING"),
        ("no_such_package_at_all:RULE", "no_such_package_at_all"),
    ],
)
def test_bad_entry_points_are_named(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    point_at(monkeypatch, value)
    with pytest.raises(CapabilityMissing, match=message):
        load_rules()


def test_a_rule_must_keep_the_shape() -> None:
    with pytest.raises(InvalidRequest, match="changed a shape"):
        mutate(
            LAYOUT,
            Mutation(rule="widen", params={}, families=("wkv",)),
            [A],
            {"widen": WIDEN},
        )


def test_no_entry_points_are_the_built_in_rules() -> None:
    assert load_rules("statevisor.no-such-group") == BUILTIN
    assert all(isinstance(rule, Rule) for rule in BUILTIN.values())
