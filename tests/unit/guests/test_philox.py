from __future__ import annotations

import statistics

import numpy as np
import pytest

from statevisor.guests.philox import normal, philox4x32, uniform62

ONES = 0xFFFFFFFF

#: The known answers published with Random123 for philox4x32, 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    column = np.array(counter, dtype=np.uint64)[:, None]
    k0, k1 = (np.array([word], dtype=np.uint64) for word in key)
    assert philox4x32(column, (k0, k1))[:, 0].tolist() == list(words)


def test_a_number_depends_on_its_key_and_counter_alone() -> None:
    seeds = np.array([3, 2**53 - 1, 3], dtype=np.uint64)
    positions = np.array([0, 2**40, 1], dtype=np.uint64)
    together = uniform62(seeds, positions)
    for column in range(3):
        alone = uniform62(seeds[column : column + 1], positions[column : column + 1])
        assert alone[:, 0].tolist() == together[:, column].tolist()
    assert len({tuple(pair) for pair in together.T.tolist()}) == 3
    assert together.min() >= 0
    assert together.max() < 2**31


def test_high_words_of_seed_and_position_count() -> None:
    def one(seed: int, position: int) -> list[int]:
        pair = uniform62(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.uint64))
        return pair[:, 0].tolist()

    assert one(5, 9) != one(5 + 2**32, 9)
    assert one(5, 9) != one(5, 9 + 2**32)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 7), (3, 4), (5, 64), (62, 100)])
def test_normals_are_the_same_in_any_cut(start: int, stop: int) -> None:
    assert normal(11, start, stop).tobytes() == normal(11, 0, 100)[start:stop].tobytes()


def test_normals_follow_the_quantile_function() -> None:
    words = philox4x32(
        np.array([[0, 1, 2], [0] * 3, [1] * 3, [0] * 3], dtype=np.uint64),
        (np.uint64(7), np.uint64(0)),
    )
    exact = statistics.NormalDist()
    expected = [exact.inv_cdf((int(word) + 0.5) / 2**32) for word in words.T.ravel()]
    assert normal(7, 0, 12) == pytest.approx(expected, abs=1e-14)


def test_normals_have_the_moments_of_a_normal() -> None:
    draws = normal(1, 0, 200_000)
    assert abs(draws.mean()) < 4 / np.sqrt(len(draws))
    assert abs(draws.var() - 1) < 4 * np.sqrt(2 / len(draws))
    assert abs((draws**4).mean() - 3) < 4 * np.sqrt(96 / len(draws))
    for edge in (-3.0, -1.0, 0.0, 1.0, 3.0):
        share = statistics.NormalDist().cdf(edge)
        assert abs((draws < edge).mean() - share) < 4 * np.sqrt(share * (1 - share) / len(draws))
