"""The file form of an image: deterministic, readable by others, refused when anything is off."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from dataclasses import replace

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.layout import DTYPE_BYTES, Fingerprints, StateFamily
from statevisor.store import codec

REFUSED = (ImageCorrupt, IncompatibleImage)
ROW = b"\x5a" * 96


def encode(meta, row):
    return codec.encode_header(meta, row) + bytes(row)


def family(name="wkv", shape=(2, 2, 4), dtype="F32", kind="fixed"):
    return StateFamily(name=name, shape=shape, dtype=dtype, kind=kind)


@pytest.fixture(scope="module")
def meta(make_meta):
    return make_meta(family("shift", (2, 8), "BF16", "ring"), family())


@pytest.fixture(scope="module")
def file(meta, make_row):
    return encode(meta, make_row(meta))


def with_header(header, data, align=True):
    """A file with this header, padded as ours are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    padding = -(8 + len(text)) % codec.ALIGN if align else 0
    return (len(text) + padding).to_bytes(8, "little") + text + b" " * padding + data


def header_of(file):
    return json.loads(file[8 : codec.header_bytes(memoryview(file))])


def decode(file, meta, expect=None):
    out = memoryview(bytearray(meta.layout.row_bytes))
    found = codec.decode(file, out, expect or meta.fingerprints)
    return found, bytes(out)


def accepted_is_canonical(file, expect, room):
    """Decode anything: either one of the two errors, or exactly what we would have written."""
    out = memoryview(bytearray(b"\xee" * room))
    try:
        found = codec.decode(file, out, expect)
    except REFUSED:
        assert bytes(out) == b"\xee" * room, "a refused file left bytes behind"
        return False
    assert encode(found, out) == bytes(file)
    return True


# -- writing ---------------------------------------------------------------------------------------
def test_the_same_state_gives_the_same_bytes(meta):
    assert codec.encode_header(meta, ROW) == codec.encode_header(replace(meta), ROW)


def test_tensors_begin_on_a_page(meta):
    assert len(codec.encode_header(meta, ROW)) == 4096
    many = replace(meta, pending=tuple(range(5000)), position=meta.absorbed + 5000)
    assert len(codec.encode_header(many, ROW)) % 4096 == 0


@pytest.mark.parametrize("pending", [0, 1, 2, 7, 600, 700, 701, 702, 4000])
@pytest.mark.parametrize("absorbed", [0, 9, 10, 12345678])
def test_the_length_of_a_header_is_known_before_it_is_made(meta, pending, absorbed):
    tokens = tuple(range(95, 95 + pending))
    one = replace(meta, absorbed=absorbed, position=absorbed + pending, pending=tokens)
    assert codec.encoded_bytes(one) == len(codec.encode_header(one, ROW))


def test_the_format_has_not_changed_without_a_new_version(make_meta):
    # If this fails, files in the field are no longer what the code writes: raise IMAGE_VERSION.
    meta = make_meta(family("shift", (2, 8), "BF16", "ring"), family(), pending=(1, 2))
    assert codec.IMAGE_VERSION == 1
    digest = hashlib.sha256(codec.encode_header(meta, ROW)).hexdigest()
    assert digest == "bdc401dad7fd4364ab20e085ca0a607fa6b2e36d60ceba182261d34f2dada4cf"


def test_another_library_reads_it(file, meta, make_row):
    tensors = dict(safetensors.deserialize(file))
    row = bytes(make_row(meta))
    assert set(tensors) == {f.name for f in meta.layout.families}
    for f in meta.layout.families:
        start = meta.layout.offset(f.name)
        assert bytes(tensors[f.name]["data"]) == row[start : start + f.nbytes]
        assert tuple(tensors[f.name]["shape"]) == f.shape
        assert tensors[f.name]["dtype"] == f.dtype


def test_another_library_reads_the_metadata(file, tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_bytes(file)
    with safetensors.safe_open(path, framework="numpy") as opened:
        words = opened.metadata()
    assert words["position"] == "12"
    assert words["absorbed"] == "11"
    assert words["pending"] == "42"
    assert words["weights"] == "sha256:w"


@pytest.mark.parametrize(
    "change",
    [
        {"position": 5},
        {"absorbed": -1, "position": 0},
        {"pending": (-1,)},
        {"pending": (2**31,)},
        {"fingerprints": Fingerprints(layout="sha256:other", weights="w", build="b")},
        {"position": 2**53, "absorbed": 2**53 - 1},
    ],
)
def test_a_meta_that_contradicts_itself_is_not_written(meta, change):
    with pytest.raises(ValueError, match=r"."):
        codec.encode_header(replace(meta, **change), ROW)


@pytest.mark.parametrize(
    "bad",
    [
        family("__metadata__"),
        family(""),
        family("white space"),
        family("n" * 129),
        family(shape=(2, 0, 4)),  # a family without bytes would come back as one never filled
        family(shape=(), dtype="F64"),
        family(shape=(1,) * 8 + (2,)),
    ],
)
def test_a_family_that_cannot_be_kept_is_not_written(make_meta, bad):
    with pytest.raises(ValueError, match=r"."):
        codec.encode_header(make_meta(bad), ROW)


@pytest.mark.parametrize("text", ["", "x" * 255, "new\nline", "ünicode"])
def test_a_fingerprint_that_cannot_be_kept_is_not_written(make_meta, text):
    with pytest.raises(ValueError, match="fingerprint"):
        codec.encode_header(make_meta(weights=text), ROW)


# -- round trips -----------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_any_number_of_families_comes_back(make_meta, make_row, count, dtype):
    meta = make_meta(*(family(f"part{k}", (k + 1, 8), dtype) for k in range(count)))
    row = bytes(make_row(meta, count))
    assert decode(encode(meta, row), meta) == (meta, row)


@pytest.mark.parametrize(("conv", "ssm"), list(itertools.product(["F16", "BF16", "F32"], repeat=2)))
def test_every_pair_of_dtypes_comes_back_and_no_other_is_taken_for_it(
    make_meta, make_row, conv, ssm
):
    meta = make_meta(family("conv", (2, 8), conv), family("ssm", (2, 8), ssm))
    row = bytes(make_row(meta))
    file = encode(meta, row)
    assert decode(file, meta) == (meta, row)
    swap = {"F16": "BF16", "BF16": "F16", "F32": "I32"}[ssm]  # the same bytes, another meaning
    other = make_meta(family("conv", (2, 8), conv), family("ssm", (2, 8), swap))
    assert other.layout.row_bytes == meta.layout.row_bytes
    with pytest.raises(IncompatibleImage, match="layout"):
        decode(file, other)


def test_an_empty_session_comes_back(make_meta, make_row):
    meta = make_meta(absorbed=0, pending=())
    row = bytes(make_row(meta))
    assert decode(encode(meta, row), meta) == (meta, row)


def test_a_cancelled_prompt_leaves_many_pending(make_meta, make_row):
    meta = make_meta(absorbed=3, pending=tuple(range(100_000, 0, -1)))
    file = encode(meta, make_row(meta))
    assert decode(file, meta)[0] == meta
    assert safetensors.deserialize(file)


def test_the_kind_of_a_family_belongs_to_its_layout(make_meta, make_row):
    ring, fixed = make_meta(family(kind="ring")), make_meta(family(kind="fixed"))
    file = encode(ring, make_row(ring))
    assert decode(file, ring)[0].layout.families[0].kind == "ring"
    with pytest.raises(IncompatibleImage):
        decode(file, fixed)


# -- whose image it is -----------------------------------------------------------------------------
def test_other_weights_are_refused(file, meta):
    other = replace(meta.fingerprints, weights="sha256:fine-tune")
    with pytest.raises(IncompatibleImage, match="weights sha256:w, the guest has sha256:fine-tune"):
        decode(file, meta, other)


def test_another_build_is_no_obstacle_and_is_told(file, meta):
    found, _ = decode(file, meta, replace(meta.fingerprints, build="cuda"))
    assert found.fingerprints.build == "cpu torch 2.11"


@pytest.mark.parametrize("version", ["0", "2", "1.0", ""])
def test_another_version_of_the_format_is_refused_by_name(file, meta, version):
    header = header_of(file)
    header["__metadata__"] = {"image_version": version, "unheard": "of"}
    with pytest.raises(IncompatibleImage, match=f"'{version}'.*reads 1"):
        decode(with_header(header, b"whatever"), meta)


def test_a_row_of_another_size_is_refused(file, meta):
    with pytest.raises(IncompatibleImage, match="bytes"):
        codec.decode(file, memoryview(bytearray(meta.layout.row_bytes + 8)), meta.fingerprints)


def test_a_file_of_tensors_that_is_no_image_is_refused(meta):
    stranger = with_header(
        {"wkv": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"8bytes.."
    )
    with pytest.raises(ImageCorrupt, match="not an image of a state"):
        decode(stranger, meta)


# -- untrusted bytes -------------------------------------------------------------------------------
def test_every_cut_is_refused(file, meta):
    room = meta.layout.row_bytes
    for length in range(len(file)):
        assert not accepted_is_canonical(file[:length], meta.fingerprints, room)


@pytest.mark.parametrize("tail", [b"\0", b" ", b"\0" * 4096])
def test_trailing_bytes_are_refused(file, meta, tail):
    with pytest.raises(ImageCorrupt):
        decode(file + tail, meta)


def test_every_flipped_bit_is_refused(file, meta):
    for bit in range(len(file) * 8):
        damaged = bytearray(file)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not accepted_is_canonical(damaged, meta.fingerprints, meta.layout.row_bytes), bit


def test_without_the_checksum_another_position_or_row_would_pass(file, meta, monkeypatch):
    header = header_of(file)
    words = header["__metadata__"]
    words["build"] = words["build"].replace("2.11", "2.12")
    text = json.dumps(header, separators=(",", ":")).encode()
    forged = with_header(text, file[codec.header_bytes(memoryview(file)) :])
    row = bytearray(file)
    row[-1] ^= 1
    for wrong in (forged, bytes(row)):
        with pytest.raises(ImageCorrupt, match="checksum"):
            decode(wrong, meta)
    monkeypatch.setattr(codec, "_checksum", lambda meta, row: words["check"])
    for wrong in (forged, bytes(row)):
        decode(wrong, meta)  # the guard is what refused it


def nested(depth):
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{\0}\0",
        b'{"__metadata__":{}}',
        b'{"__metadata__":[]}',
        nested(100_000),
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
)
def test_a_header_that_is_no_header_is_refused(meta, header):
    with pytest.raises(ImageCorrupt):
        decode(with_header(header, b""), meta)


@pytest.mark.parametrize("length", [0, 1, 4087, 4089, 2**31, 2**63, 2**64 - 1])
def test_a_header_length_out_of_range_is_refused(file, meta, length):
    with pytest.raises(ImageCorrupt):
        decode(length.to_bytes(8, "little") + file[8:], meta)


SIZES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([-1, 0, 1, 8, 2**31, 2**53, 2**63, 2**64, True, None, 1.0, 1e300, "8"]),
)
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), SIZES, st.text(max_size=8), st.sampled_from(["F32", "1"])),
    lambda children: st.one_of(
        st.lists(children, max_size=4), st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=6,
)
PATHS = [
    ("__metadata__",),
    *((("__metadata__", key)) for key in sorted(codec._KEYS)),
    *((name,) for name in ("shift", "wkv")),
    *((n, k) for n in ("shift", "wkv") for k in ("dtype", "shape", "data_offsets")),
    *((n, k, i) for n in ("shift", "wkv") for k in ("shape", "data_offsets") for i in (0, 1)),
]
EDITS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(PATHS), JUNK | SIZES),
        st.tuples(st.sampled_from(PATHS), st.just("DELETE")),
        st.tuples(st.tuples(st.text(max_size=6)), JUNK),
        st.tuples(
            st.sampled_from([("shift", "dtype"), ("wkv", "dtype")]),
            st.sampled_from([*DTYPE_BYTES, "F8_E4M3", "BOOL", "f32", ""]),
        ),
    ),
    min_size=1,
    max_size=4,
)


def edit(header, path, value):
    spot = header
    for step in path[:-1]:
        try:
            spot = spot[step]
        except (KeyError, IndexError, TypeError):
            return
    try:
        if value == "DELETE":
            del spot[path[-1]]
        else:
            spot[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        pass


def fuzz(cases):
    return settings(
        max_examples=cases,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@fuzz(1000)
@given(edits=EDITS, compact=st.booleans(), extra=st.integers(-64, 64))
def test_edited_headers_are_refused_or_canonical(file, meta, edits, compact, extra):
    header = header_of(file)
    for path, value in edits:
        edit(header, path, value)
    text = json.dumps(header, separators=(",", ":") if compact else None).encode()
    data = file[codec.header_bytes(memoryview(file)) :]
    data = data[:extra] if extra < 0 else data + b"\0" * (extra // 8)
    accepted_is_canonical(with_header(text, data), meta.fingerprints, meta.layout.row_bytes)


@fuzz(800)
@given(
    spots=st.lists(
        st.tuples(st.integers(0, 4095 + 96), st.integers(0, 255)), min_size=1, max_size=6
    ),
    cut=st.integers(0, 4096),
)
def test_scribbled_files_are_refused_or_canonical(file, meta, spots, cut):
    damaged = bytearray(file)
    for at, byte in spots:
        damaged[at % len(damaged)] = byte
    if cut % 5 == 0:
        del damaged[len(damaged) - cut // 5 :]
    accepted_is_canonical(damaged, meta.fingerprints, meta.layout.row_bytes)


@fuzz(400)
@given(junk=st.binary(max_size=200), aligned=st.booleans())
def test_junk_is_refused(meta, junk, aligned):
    file = with_header(junk, b"", align=True) if aligned else junk
    assert not accepted_is_canonical(file, meta.fingerprints, meta.layout.row_bytes)


def test_ten_thousand_random_sizes_are_refused(file, meta):
    rng = random.Random(5)
    data = file[codec.header_bytes(memoryview(file)) :]
    pool = [-(2**63), -8, -1, 0, 1, 2, 8, 16, 96, 2**31 - 1, 2**32, 2**53, 2**63, 2**64]
    for _ in range(10_000):
        header = header_of(file)
        name = rng.choice(["shift", "wkv"])
        key = rng.choice(["shape", "data_offsets"])
        before = list(header[name][key])
        header[name][key][rng.randrange(2)] = rng.choice(pool)
        if header[name][key] != before:
            text = json.dumps(header, separators=(",", ":")).encode()
            assert not accepted_is_canonical(
                with_header(text, data), meta.fingerprints, meta.layout.row_bytes
            )


def test_without_the_canonical_form_overlapping_tensors_would_pass(file, meta, monkeypatch):
    header = header_of(file)
    header["shift"]["data_offsets"] = header["wkv"]["data_offsets"] = [0, 64]
    text = json.dumps(header, separators=(",", ":")).encode()
    forged = with_header(text, file[codec.header_bytes(memoryview(file)) :])
    with pytest.raises(ImageCorrupt, match="canonical"):
        decode(forged, meta)
    monkeypatch.setattr(codec, "_padded", lambda text, meta: forged[: len(forged) - 96])
    monkeypatch.setattr(codec, "_checksum", lambda meta, row: header["__metadata__"]["check"])
    decode(forged, meta)  # the guard is what refused it
