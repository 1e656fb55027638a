import dataclasses

import pytest

from statevisor.api.settings import ServerSettings, Settings, load
from statevisor.guests import GuestConfig
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import InvalidRequest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("STATEVISOR_CONFIG", raising=False)
    for name in Settings.model_fields:
        monkeypatch.delenv(f"STATEVISOR_{name.upper()}", raising=False)


def test_file_then_environment_then_flags(tmp_path, monkeypatch):
    path = tmp_path / "s.toml"
    path.write_text('port = 1\nslots = 1\nmailbox = 1\nhost = "::1"\n')
    monkeypatch.setenv("STATEVISOR_PORT", "2")
    monkeypatch.setenv("STATEVISOR_SLOTS", "2")
    settings = load({"port": 3, "host": None}, path)
    assert (settings.port, settings.slots, settings.mailbox, settings.host) == (3, 2, 1, "::1")


def test_the_environment_may_name_the_file(tmp_path, monkeypatch):
    path = tmp_path / "s.toml"
    path.write_text("port = 7\n")
    monkeypatch.setenv("STATEVISOR_CONFIG", str(path))
    assert load({}).port == 7


def test_defaults_are_those_of_the_parts():
    settings = load({})
    assert settings.visor() == VisorConfig()
    assert settings.server() == ServerSettings()
    assert settings.guest() == GuestConfig()


@pytest.mark.parametrize("part", [VisorConfig, ServerSettings, GuestConfig])
def test_every_field_of_a_part_can_be_set(part):
    assert {f.name for f in dataclasses.fields(part)} <= set(Settings.model_fields)


def test_sizes_may_be_written_with_units():
    assert load({"host_bytes": "2GiB"}).visor().host_bytes == 2 << 30
    assert load({"host_bytes": 5}).visor().host_bytes == 5


def test_a_token_is_not_shown():
    settings = load({"token": "s3cret"})
    assert settings.server().token == "s3cret"
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    "flags",
    [
        {"port": -1},
        {"port": 65536},
        {"slots": 0},
        {"durability": "maybe"},
        {"host_bytes": "many"},
        {"slot_wait_s": float("nan")},
        {"unknown": 1},
        {"host_low": 0.9, "host_high": 0.1},
        {"token": ""},
        {"name": ""},
        {"name": "two\nlines"},
        {"token": " s3cret"},
        {"token": "geheim\n"},
    ],
)
def test_a_wrong_setting_is_named(flags):
    with pytest.raises(InvalidRequest) as caught:
        load(flags)
    assert next(iter(flags)) in caught.value.detail


@pytest.mark.parametrize("text", ["slotz = 1\n", "port = \n", "\xff"])
def test_a_wrong_file_is_refused(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRequest):
        load({}, path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match=r"none\.toml"):
        load({}, tmp_path / "none.toml")
