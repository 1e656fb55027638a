"""The words that stories are made of, and which pairs of name and object are never trained on.

Everything is fixed: the lists are literals or follow from a constant seed, so that two machines
agree on every name, object and held-out pair.
"""

from __future__ import annotations

import hashlib
import random
from typing import NamedTuple

_GIVEN = """
Ada Alma Amos Anna Ansel Arlo Asa Astrid Ava Basil Bea Bella Ben Bert Birgit Bodo Boris Bram Bruno
Cara Carl Celia Cleo Clara Conrad Cora Cyrus Dag Daisy Dana Dario Dora Doris Edda Edgar Edith Eli
Elias Elin Ella Elmo Elsa Emil Emma Enid Enzo Erik Erna Esme Ethan Eva Ezra Fay Felix Fenna Fern
Finn Flora Floyd Franz Freda Frida Fritz Gerda Gia Gil Gina Greta Gus Gwen Hana Hans Harper Hazel
Hector Heidi Helga Henry Hilda Holly Hope Hugo Ida Igor Ilse Inga Ingrid Iris Isla Ivan Ivy Jack
Jade Jakob Jan Jana Jasper Jonas Josie Joy Juna June Juno Kaya Karl Kira Klaus Knut Kora Lara Lars
Lea Leif Lena Leo Leon Levi Lila Lily Linus Lisa Lola Lotta Louis Luca Lucy Luis Luna Lyra Mabel
Magda Magnus Maia Malte Mara Margo Marta Matt Max Maya Meg Mia Mila Milo Mina Mira Moira Moritz
Nadia Nell Nia Nico Nils Nina Noah Nora Odin Olaf Olga Olive Oscar Otis Otto Owen Pablo Paul Pearl
Penny Pia Pip Polly Quinn Rafa Ralf Ray Remy Rhea Rico Rita Rolf Romy Rosa Ruby Rufus Runa Ruth
Sam Selma Sina Silas Simon Sofia Sonja Stella Sven Tara Ted Tess Theo Thea Tilda Tim Tom Toni Tove
Ulla Una Ursula Uwe Vera Victor Viggo Viola Walter Wanda Willa Wim Xenia Yann Yara Yuri Zara Zelda
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COLOURS = _words(
    "red blue green yellow black white grey brown pink purple orange silver golden crimson violet "
    "turquoise"
)
MATERIALS = _words(
    "glass paper iron copper tin stone leather brass bronze amber velvet wool silk clay straw oak"
)
NOUNS = _words(
    "hat key ring bell cup lamp coat drum kite map box coin boot crown flute clock comb basket "
    "button candle chair doll fan feather glove horn jug knife ladder mask mirror needle pipe "
    "plate purse rope scarf shield shoe spoon statue stool sword thimble toy vase wheel "
    "whistle"
)
ADJECTIVES = _words(
    "sleepy brave clever gentle grumpy hungry jolly kind lazy lonely lucky merry nervous old "
    "polite proud quiet shy silly strong tiny wise young cheerful"
)
CREATURES = _words(
    "dragon fox baker wizard giant bear goblin sailor tailor miller owl hare knight witch badger "
    "cook painter shepherd wolf otter farmer piper teacher hermit"
)
PETS = _words("cat dog parrot rabbit goat pony mouse goose tortoise hen")


class Place(NamedTuple):
    """Where something happens: `in` + `the old mill`."""

    preposition: str
    noun: str

    def __str__(self) -> str:
        return f"{self.preposition} {self.noun}"


PLACES = tuple(
    Place(*line.strip().split(" ", 1))
    for line in """
    in the old mill; at the harbour; by the river; in the forest; on the hill; in the cellar;
    at the market; in the garden; under the bridge; behind the church; in the castle; on the beach;
    in the cave; at the well; in the barn; near the lake; in the library; on the island;
    in the kitchen; at the station; in the tower; beside the road; in the meadow; at the bakery;
    in the desert; on the roof; in the attic; at the school; in the swamp; by the waterfall;
    in the orchard; at the lighthouse
    """.replace("\n", " ").split(";")
)

NAME_COUNT = 768


def _make_names() -> tuple[str, ...]:
    """The given names, filled up with made-up ones from syllables."""
    names = dict.fromkeys(_GIVEN.split())
    rng = random.Random(7)
    onsets = _words("b br d dr f fl g gr h j k kl l m n p pr r s sk st t tr v w z th sh")
    vowels = _words("a e i o u ai ei ia oa")
    codas = ["", "", "l", "n", "r", "s", "m", "nd", "rk", "x", "th"]
    endings = ["a", "o", "us", "in", "el", "ra", "don", "mir", "wen", "ka", "by", "ric"]
    while len(names) < NAME_COUNT:
        name = rng.choice(onsets) + rng.choice(vowels) + rng.choice(codas) + rng.choice(endings)
        if 3 < len(name) < 9:
            names.setdefault(name.capitalize())
    return tuple(names)


NAMES = _make_names()


class Thing(NamedTuple):
    """An object as it is called: `silver hat`, `glass ring`."""

    modifier: str
    noun: str

    def __str__(self) -> str:
        return f"{self.modifier} {self.noun}"

    @property
    def coloured(self) -> bool:
        """Whether the modifier is a colour; otherwise it is a material."""
        return self.modifier in COLOURS

    @property
    def one(self) -> str:
        """With its article: `an amber ring`."""
        return f"{'an' if self.modifier[0] in 'aeiou' else 'a'} {self}"


OBJECTS = tuple(Thing(modifier, noun) for modifier in COLOURS + MATERIALS for noun in NOUNS)


def held_out(name: str, thing: Thing) -> bool:
    """Whether this pair is one of the tenth that training never sees."""
    digest = hashlib.blake2b(f"{name}|{thing}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 10 == 0
