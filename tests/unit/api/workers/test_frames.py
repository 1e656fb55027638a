"""What crosses the socket comes out as it went in, and nothing else is built from bytes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.api.workers.frames import columns, decode, encode, framed, read, rows
from statevisor.hypervisor import commands as c
from statevisor.hypervisor import errors
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.plan import Logprobs
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.vocab import FinishReason, Tier

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(0, 9), inner)
    ),
    max_leaves=12,
)


@given(plain)
def test_plain_values_and_tuples_come_out_as_they_went_in(value: object) -> None:
    again = decode(encode(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        c.Fork(actor="a", at=5, names=("x", "y")),
        c.Mutate(actor="a", mutation=Mutation(rule="scale", params={"factor": -0.0})),
        c.Hibernate(actor="a", tier=Tier.NVME, if_generation=2**63),
        c.TokenEvent(
            index=0,
            position=1,
            token=2,
            text="é\x00",
            logprobs=Logprobs(chosen=-0.1, top=((1, -math.inf),)),
        ),
        FinishReason.CANCELLED,
    ],
)
def test_the_cores_values_come_out_as_what_they_are(value: object) -> None:
    again = decode(encode(value))
    assert again == value
    assert type(again) is type(value)


def test_every_bit_of_a_float_arrives() -> None:
    for value in (-0.0, 5e-324, math.pi, -math.inf):
        assert decode(encode(value)).hex() == value.hex()
    assert math.isnan(decode(encode(math.nan)))


def test_an_error_keeps_its_class_message_next_step_and_fields() -> None:
    error = errors.InvalidRequest("no", hint="do this", fields=(("body.x", "wrong"),))
    again = decode(encode(error))
    assert type(again) is errors.InvalidRequest
    assert (again.detail, again.hint, again.fields) == ("no", "do this", (("body.x", "wrong"),))
    assert str(again) == "no"
    assert type(decode(encode(errors.Fenced()))) is errors.Fenced


def test_a_read_only_mapping_is_a_mapping_and_an_unlisted_word_is_text() -> None:
    assert decode(encode(MappingProxyType({"a": 1}))) == {"a": 1}
    assert decode(encode(Power.IDLE)) == "idle"


def test_the_tokens_of_a_step_travel_by_field() -> None:
    likely = Logprobs(chosen=-0.1, top=((1, -0.1), (2, -math.inf)))
    tokens = [
        c.TokenEvent(index=n, position=9 + n, token=2, text="é", logprobs=likely if n else None)
        for n in range(6)
    ]
    released = [(7, tokens[:1]), (5, tokens[1:4]), (9, tokens[3:])]
    assert list(rows(decode(encode(columns(released))))) == released


class Colour(Enum):
    RED = 1


@dataclass
class Stranger:
    x: int


@pytest.mark.parametrize("value", [Colour.RED, Stranger(1), {1, 2}, object()])
def test_what_is_not_of_the_core_does_not_travel(value: object) -> None:
    with pytest.raises(TypeError):
        encode(value)


@pytest.mark.parametrize("name", ["Stranger", "Path", "system"])
def test_bytes_cannot_name_another_class(name: str) -> None:
    for code in (2, 3, 4):
        with pytest.raises(KeyError):
            decode(msgpack.packb(msgpack.ExtType(code, msgpack.packb([name, ["x"]]))))
    with pytest.raises(ValueError, match="kind"):
        decode(msgpack.packb(msgpack.ExtType(9, msgpack.packb([name, ["x"]]))))


async def test_a_stream_of_frames_ends_with_an_end() -> None:
    reader = asyncio.StreamReader()
    data = framed(("call", 1)) + framed([None])
    reader.feed_data(data[:5])
    reader.feed_data(data[5:])
    reader.feed_eof()
    assert await read(reader) == ("call", 1)
    assert await read(reader) == [None]
    with pytest.raises(EOFError):
        await read(reader)


async def test_a_frame_that_is_cut_is_an_end_and_one_too_long_a_fault() -> None:
    cut = asyncio.StreamReader()
    cut.feed_data(framed("word")[:-1])
    cut.feed_eof()
    with pytest.raises(EOFError):
        await read(cut)
    long = asyncio.StreamReader()
    long.feed_data(b"\xff" * 8)
    with pytest.raises(ValueError, match="bytes"):
        await read(long)


def test_what_is_refused_leaves_nothing_behind() -> None:
    good = c.Fork(actor="a", at=5, names=("x", "y"))
    with pytest.raises(TypeError):
        encode([good, "so far", object()])
    assert decode(encode([good, good])) == [good, good]
