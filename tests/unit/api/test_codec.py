import json
import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.api.codec import JSON, MAX_DEPTH, MSGPACK, answer_type, canonical, decode, encode
from statevisor.hypervisor.errors import MalformedBody, UnsupportedMedia

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_both_encodings_keep_every_value(value):
    for media in (JSON, MSGPACK):
        assert decode(encode(value, media), media) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(body):
    for media in (JSON, MSGPACK):
        try:
            decode(body, media)
        except MalformedBody:
            continue


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":1,"a":2}',
        b'{"x":{"a":1,"a":2}}',
        b'{"a":1} {}',
        b"[NaN]",
        b"[Infinity]",
        b"1e999",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'"\\ud800"',
        b"\xff\xfe",
        b"[" + b"1" * 5000 + b"]",
        b'{"a":1',
    ],
)
def test_broken_json_is_refused(body):
    with pytest.raises(MalformedBody):
        decode(body, JSON)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x81",
        b"\xc1",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000 + b"\x01",
        msgpack.packb({1: 2}),
        msgpack.packb({b"a": 1}),
        msgpack.packb({"a": b"x"}),
        msgpack.packb([math.nan]),
        msgpack.packb([math.inf]),
        msgpack.packb(msgpack.Timestamp(1, 2)),
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb({"a": 1}) + b"\x01",
        msgpack.packb("\ud800", unicode_errors="surrogatepass"),
    ],
)
def test_broken_msgpack_is_refused(body):
    with pytest.raises(MalformedBody):
        decode(body, MSGPACK)


def test_the_depth_limit_is_exact():
    for media, pack in ((JSON, lambda v: json.dumps(v).encode()), (MSGPACK, msgpack.packb)):
        deep: object = 1
        for _ in range(MAX_DEPTH):
            deep = [deep]
        assert decode(pack(deep), media) == deep
        with pytest.raises(MalformedBody, match="deeper"):
            decode(pack([deep]), media)


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/ld+json",
        "application/x-www-form-urlencoded",
    ],
)
def test_what_is_read_as_json(kind):
    assert decode(b'{"a": 1}', kind) == {"a": 1}


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/xml", "x"])
def test_other_media_are_refused(kind):
    with pytest.raises(UnsupportedMedia):
        decode(b"{}", kind)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("text/html", JSON),
        ("application/json", JSON),
        (MSGPACK, MSGPACK),
        ("application/x-msgpack", MSGPACK),
        ("application/json, application/msgpack", MSGPACK),
        ("application/json, application/msgpack;q=0.5", JSON),
        ("application/msgpack;q=0", JSON),
        ("application/msgpack;q=x", JSON),
        ("text/event-stream, application/json", JSON),
        (";;,,", JSON),
    ],
)
def test_the_answer_is_what_the_client_prefers(accept, media):
    assert answer_type(accept) == media


def test_the_canonical_form_forgets_the_spelling():
    assert canonical(decode(b'{"b":1, "a":[1,2]}', JSON)) == canonical(
        decode(msgpack.packb({"a": [1, 2], "b": 1}), MSGPACK)
    )
    assert canonical({"a": 1}) != canonical({"a": 2})


def test_what_is_not_plain_does_not_cross():
    with pytest.raises(TypeError):
        encode({"a": object()}, JSON)
