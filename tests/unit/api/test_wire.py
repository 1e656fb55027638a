import math

import pytest

from statevisor.api.wire import listing, timestamp, validate
from statevisor.api.wire_actors import ActorsQuery, CreateBody, ForkBody, RollbackBody, UpdateBody
from statevisor.api.wire_admin import BackupBody
from statevisor.api.wire_search import SearchQuery
from statevisor.api.wire_tiers import EvictBody
from statevisor.api.wire_turns import AppendBody, GenerateBody, logprobs_object
from statevisor.api.wire_versions import ImportQuery, MutateBody, VersionsQuery
from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.commands import CreateActor, Evict, Fork, Generate, Mutate
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.plan import Logprobs
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import Rng, Tier

NO_CHANGE = {"if_generation": None, "once": None}


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (GenerateBody, {"max_tokens": True}, "max_tokens"),
        (GenerateBody, {"max_tokens": 1.0}, "max_tokens"),
        (GenerateBody, {"max_tokens": "1"}, "max_tokens"),
        (GenerateBody, {"max_tokens": 0}, "max_tokens"),
        (GenerateBody, {"temperature": True}, "temperature"),
        (GenerateBody, {"temperature": math.nan}, "temperature"),
        (GenerateBody, {"temperature": -0.1}, "temperature"),
        (GenerateBody, {"top_p": 0}, "top_p"),
        (GenerateBody, {"seed": 2**53}, "seed"),
        (GenerateBody, {"token_ids": [1, -1]}, "token_ids.1"),
        (GenerateBody, {"token_ids": [True]}, "token_ids.0"),
        (GenerateBody, {"prompt": 5}, "prompt"),
        (GenerateBody, {"prompt": "a", "token_ids": [1]}, "body"),
        (GenerateBody, {"stop": [""]}, "stop"),
        (GenerateBody, {"unknown": 1}, "unknown"),
        (GenerateBody, [], "body"),
        (GenerateBody, None, "body"),
        (AppendBody, {}, "body"),
        (CreateBody, {"name": "a/b"}, "name"),
        (CreateBody, {"name": "../x"}, "name"),
        (CreateBody, {"name": "a\n"}, "name"),
        (CreateBody, {"name": ""}, "name"),
        (CreateBody, {"name": "x" * 129}, "name"),
        (CreateBody, {"labels": {"k": 1}}, "labels.k"),
        (CreateBody, {"labels": {"k": "\0"}}, "labels.k"),
        (CreateBody, {"from": "no handle"}, "from"),
        (CreateBody, {"source": "a@1"}, "source"),
        (ForkBody, {"count": 0}, "count"),
        (ForkBody, {"count": 2, "names": ["a"]}, "body"),
        (ForkBody, {"names": ["a", "a"]}, "body"),
        (ForkBody, {"seeds": [1], "names": ["a", "b"]}, "body"),
        (ForkBody, {"at": -1}, "at"),
        (ForkBody, {"at": True}, "at"),
        (ForkBody, {"rng": "other"}, "rng"),
        (EvictBody, {"from": "host", "to": "host"}, "body"),
        (EvictBody, {"from": "nvme", "to": "host"}, "from"),
        (EvictBody, {"from": "gpu", "to": "host", "count": 1, "bytes": 1}, "body"),
        (MutateBody, {"rule": "decay", "select": {"layers": []}}, "select.layers"),
        (MutateBody, {"rule": "decay", "select": {"layers": [-1]}}, "select.layers.0"),
        (MutateBody, {}, "rule"),
        (MutateBody, {"rule": "blend", "params": {"others": 5}}, "params"),
        (MutateBody, {"rule": "blend", "params": {"others": "a@1"}}, "params"),
        (MutateBody, {"rule": "blend", "params": {"others": ["no handle"]}}, "params"),
        (MutateBody, {"rule": "set", "params": {"from": None}}, "params"),
        (MutateBody, {"rule": "set", "params": {"x": math.inf}}, "params"),
    ],
)
def test_a_wrong_field_is_named(model, body, field):
    with pytest.raises(InvalidRequest) as caught:
        validate(model, body, "body")
    assert any(name.startswith(f"body.{field}") or name == field for name, _ in caught.value.fields)
    assert field in caught.value.detail


@pytest.mark.parametrize(
    ("model", "value", "words"),
    [
        (CreateBody, {"name": "bad name!"}, "body.name: a name is 1 to 128 of"),
        (CreateBody, {"from": "a@b"}, "body.from: a version is a handle like alice@3"),
        (CreateBody, {"nane": "a"}, "body.nane: there is no such field"),
        (SearchQuery, {"since": "yesterday"}, "body.since: a time reads like 2026-"),
        (SearchQuery, {"since": "2026-01-02T03:04:05"}, "body.since: a time reads like 2026-"),
    ],
)
def test_a_refusal_speaks_of_the_request_not_of_types(model, value, words):
    with pytest.raises(InvalidRequest) as caught:
        validate(model, value, "body")
    assert words in caught.value.detail
    assert "^" not in caught.value.detail


def test_a_refusal_does_not_repeat_the_value():
    with pytest.raises(InvalidRequest) as caught:
        validate(CreateBody, {"name": "/secret/"}, "body")
    assert "secret" not in caught.value.detail


def test_many_faults_give_a_short_answer():
    with pytest.raises(InvalidRequest) as caught:
        validate(CreateBody, {f"x{n}": 1 for n in range(1000)}, "body")
    assert len(caught.value.fields) == 20
    assert "and 980 more" in caught.value.detail


def test_a_bad_list_of_tokens_stops_at_the_first():
    with pytest.raises(InvalidRequest) as caught:
        validate(GenerateBody, {"token_ids": [-1] * 100_000}, "body")
    assert len(caught.value.fields) == 1


def test_create_becomes_a_command():
    body = validate(
        CreateBody,
        {
            "model": "m",
            "name": "a",
            "token_ids": [1, 2],
            "seed": 3,
            "labels": {"k": "v"},
            "from": "t",
        },
        "body",
    )
    once = Once(key="k", request="r")
    assert body.command({"if_generation": None, "once": once}) == CreateActor(
        model="m", name="a", prompt=(1, 2), seed=3, labels={"k": "v"}, source="t", once=once
    )


def test_generate_becomes_a_command():
    sampler = {
        "temperature": 1,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "penalty_decay": 0.99,
        "logprobs": 2,
    }
    rest = {"prompt": "x", "max_tokens": 9, "seed": 1, "ignore_eos": True, "commit": False}
    body = validate(GenerateBody, {**sampler, **rest, "stop": "S", "stop_token_ids": [4]}, "body")
    command = body.command("alice", {"if_generation": 17, "once": None})
    assert command == Generate(
        actor="alice",
        settings=SamplerSettings(**sampler),
        stop=("S",),
        stop_token_ids=(4,),
        if_generation=17,
        **rest,
    )
    assert isinstance(command.settings.temperature, float)


def test_generate_defaults_are_those_of_the_page():
    command = validate(GenerateBody, {}, "body").command("a", NO_CHANGE)
    assert command == Generate(actor="a")
    assert (command.max_tokens, command.settings.temperature, command.commit) == (128, 0.0, True)


def test_fork_counts_its_names():
    body = validate(ForkBody, {"names": ["x", "y"], "at": 1200, "rng": "inherit"}, "body")
    assert body.command("a", NO_CHANGE) == Fork(
        actor="a", count=2, names=("x", "y"), at=1200, rng=Rng.INHERIT
    )


def test_a_ttl_of_null_or_zero_takes_it_away_and_silence_leaves_it():
    ttls = [
        validate(UpdateBody, body, "body").command("a", NO_CHANGE).ttl_s
        for body in ({"ttl": None}, {"ttl": 0}, {}, {"ttl": 5})
    ]
    assert ttls == [0, 0, None, 5]


def test_mutate_becomes_a_command():
    body = validate(
        MutateBody,
        {
            "rule": "blend",
            "params": {"others": ["b@1"], "weights": [0.5]},
            "select": {"layers": [0, 2]},
            "reason": "why",
        },
        "body",
    )
    assert body.command("a", NO_CHANGE) == Mutate(
        actor="a",
        mutation=Mutation(
            rule="blend", params={"others": ["b@1"], "weights": [0.5]}, layers=(0, 2)
        ),
        reason="why",
    )


def test_evict_becomes_a_command():
    body = validate(EvictBody, {"from": "gpu", "to": "nvme", "bytes": 9, "dry_run": True}, "body")
    assert body.command() == Evict(source=Tier.GPU, target=Tier.NVME, nbytes=9, dry_run=True)


@pytest.mark.parametrize(
    ("query", "after"),
    [({}, None), ({"from": "3"}, 2), ({"after": "a@7"}, 7), ({"from": "9", "after": "a@7"}, 8)],
)
def test_a_page_of_versions_begins_behind(query, after):
    assert validate(VersionsQuery, query, "query").after_seq == after


def test_times_are_utc_to_the_microsecond():
    assert timestamp(1_767_323_045_000_006) == "2026-01-02T03:04:05.000006Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert timestamp(59_999_999) == "1970-01-01T00:00:59.999999Z"
    assert timestamp(60_000_000) == "1970-01-01T00:01:00.000000Z"


def test_a_list_names_its_ends():
    assert listing([{"id": "a"}, {"id": "b"}], "id", True) == {
        "object": "list",
        "data": [{"id": "a"}, {"id": "b"}],
        "first_id": "a",
        "last_id": "b",
        "has_more": True,
    }
    assert listing([], "id")["first_id"] is None


def test_minus_infinity_is_null():
    assert logprobs_object(Logprobs(chosen=-math.inf, top=((1, -1.0),))) == {
        "logprob": None,
        "top": [{"token_id": 1, "logprob": -1.0}],
    }


def test_what_may_be_one_of_two_things_has_one_message():
    with pytest.raises(InvalidRequest) as caught:
        validate(RollbackBody, {"to": -1.5, "rng": "no"}, "body")
    to, rng = caught.value.fields
    assert (to[0], rng[0]) == ("body.to", "body.rng")
    assert "or: Input should be a valid integer" in to[1]
    assert "constrained" not in caught.value.detail


@pytest.mark.parametrize(
    ("model", "value", "words"),
    [
        (CreateBody, {"labels": {"ä": "x"}}, "the key of a label is"),
        (CreateBody, {"labels": {"a": "\0"}}, "must not contain NUL"),
        (CreateBody, {"model": "\n"}, "a model's name has"),
        (ActorsQuery, {"label": "=x"}, "a label reads key"),
        (SearchQuery, {"label": ""}, "a label reads key"),
        (SearchQuery, {"since": "1767323045"}, "a time reads like"),
        (SearchQuery, {"until": "-1.5"}, "a time reads like"),
        (ImportQuery, {"digest": "x"}, "a digest reads blake3:"),
        (BackupBody, {"path": "x"}, "is absolute"),
        (CreateBody, {"labels": []}, "body.labels: it should be an object"),
        (CreateBody, [], "body: it should be an object"),
    ],
)
def test_no_pattern_is_shown_to_people(model, value, words):
    with pytest.raises(InvalidRequest, match=words):
        validate(model, value, "body")
