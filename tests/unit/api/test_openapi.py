import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from statevisor.api.openapi import document
from statevisor.api.routes import ROUTES


@pytest.fixture(scope="module")
def made():
    return document(ROUTES, "1.2.3")


def test_the_document_is_valid(made):
    OpenAPIV31SpecValidator(made).validate()
    assert made["openapi"] == "3.1.0"
    assert made["info"]["version"] == "1.2.3"


def test_a_broken_document_would_be_seen(made):
    broken = {**made, "paths": {"/x/{a}": {"get": {"responses": {}}}}}
    with pytest.raises(Exception, match="a"):
        OpenAPIV31SpecValidator(broken).validate()


def test_every_route_is_in_it_and_nothing_else(made):
    described = {(m.upper(), path) for path, methods in made["paths"].items() for m in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_leads_somewhere(made):
    known = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
    assert set(references(made)) <= known


def test_fields_have_the_names_of_the_wire(made):
    schemas = made["components"]["schemas"]
    assert {"from", "prompt", "token_ids"} <= set(schemas["CreateBody"]["properties"])
    assert "source" not in schemas["CreateBody"]["properties"]
    assert schemas["CreateBody"]["additionalProperties"] is False
    assert set(schemas["EdgeObject"]["properties"]) == {"from", "to", "op"}


def test_parameters_are_described(made):
    listed = made["paths"]["/v1/actors"]["get"]["parameters"]
    assert {p["name"] for p in listed} == {
        "status",
        "model",
        "tier",
        "label",
        "q",
        "limit",
        "after",
    }
    fork = made["paths"]["/v1/actors/{a}/fork"]["post"]
    assert {p["name"] for p in fork["parameters"]} == {"a", "If-Match", "Idempotency-Key"}
    pair = made["paths"]["/v1/lineage/common-ancestor"]["get"]["parameters"]
    assert all(p["required"] for p in pair)
    assert all(p["schema"].get("type") != "null" for p in listed)


async def test_it_is_served(client):
    response = await client.get("/openapi.json")
    assert response.content_type == "application/json"
    assert (await response.json())["info"]["title"] == "statevisor"
