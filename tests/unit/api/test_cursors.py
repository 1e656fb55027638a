"""An `after` is the end of a page, or the request is refused with the way to go on."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.hypervisor.errors import VersionNotFound

LISTS = ("/v1/actors", "/v1/actors/alice/versions", "/v1/versions")
WRONG = ("nope", "", "alice", "1", "act_", "act_%00", "act_1%0A", "ACT_1", "alice@", "@3", "a b")


async def told(client: Any, path: str) -> Any:
    """The problem that a request is refused with."""
    response = await client.get(path)
    body = await response.json()
    assert (response.status, body["code"]) == (400, "invalid_cursor"), body
    assert "last_id" in body["hint"]
    return body["detail"]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("after", WRONG)
async def test_what_ends_no_page_is_refused(client: Any, visor: Any, path: str, after: str) -> None:
    await told(client, f"{path}?after={after}")
    assert visor.calls == []


async def test_an_actor_ends_no_page_of_versions_nor_a_version_one_of_actors(client: Any) -> None:
    assert "act_1" in await told(client, "/v1/versions?after=act_1")
    assert "alice@3" in await told(client, "/v1/actors?after=alice@3")


async def test_a_version_of_another_actor_ends_no_page(client: Any, visor: Any) -> None:
    visor.answers["version"] = VersionNotFound("there is no version 'bob@3'")
    assert "bob@3" in await told(client, "/v1/actors/alice/versions?after=bob@3")
    assert [call[0] for call in visor.calls] == ["actor", "version"]


async def test_an_actor_goes_by_its_name_and_its_id(client: Any) -> None:
    for path in ("alice/versions?after=alice@3", "act_1/versions?after=alice@3"):
        assert (await client.get(f"/v1/actors/{path}")).status == 200


async def test_a_search_behind_no_version_is_refused(client: Any, visor: Any) -> None:
    visor.answers["search"] = VersionNotFound("there is no version 'alice@99'")
    assert "alice@99" in await told(client, "/v1/versions?after=alice@99")


async def test_an_actor_that_is_gone_still_ends_its_page(client: Any, visor: Any) -> None:
    response = await client.get("/v1/actors?after=act_06d1f2k9zz0000000000")
    assert response.status == 200
    assert visor.calls[-1][2]["after"] == "act_06d1f2k9zz0000000000"
