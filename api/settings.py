"""Settings of a server: a TOML file < the environment (`STATEVISOR_*`) < flags, checked once.

Every part gets a frozen configuration of its own; nothing else reads the environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from statevisor.api.logs import LogFormat, LogLevel
from statevisor.api.wire import ModelName, refused
from statevisor.guests import GuestConfig
from statevisor.hypervisor.config import Durability, VisorConfig
from statevisor.hypervisor.errors import InvalidRequest

Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, lt=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP side."""

    host: str = "127.0.0.1"
    port: int = 8000  #: 0: any free one
    port_file: Path | None = None  #: where to write {"url"} once the socket listens
    token: str | None = None  #: None: whoever reaches the socket may do everything
    body_bytes: int = 8 << 20
    import_bytes: int = 1 << 30
    head_wait_s: float = 30.0  #: from the first byte of a head to its last
    body_wait_s: float = 30.0  #: longest pause inside a body
    heartbeat_s: float = 5.0  #: of a stream, and how often a vanished client is looked for
    stall_s: float = 60.0  #: how long a client may read nothing of its stream
    drain_s: float = 10.0  #: how long running turns may take when the server stops
    prompt_tokens: int = 1 << 20  #: most tokens in one prompt


#: There is one if the driver is loaded; only the guest may ask torch.
_GPU = Path("/dev/nvidiactl")
_TOKEN = re.compile(r"[!-~]+\Z")
_SERVER, _VISOR, _GUEST = ServerSettings(), VisorConfig(), GuestConfig()


class Settings(BaseModel):
    """Everything that can be set, under the names of the flags."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Annotated[Path, Field(description="the data folder")] = Path("statevisor-data")
    host: Annotated[str, Field(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65536, description="0: any free one")] = 8000
    port_file: Annotated[Path | None, Field(description="written once the server listens")] = None
    token: Annotated[SecretStr | None, Field(description="what clients must send")] = None
    body_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(_SERVER.body_bytes)
    import_bytes: Annotated[ByteSize, Field(ge=1024)] = ByteSize(_SERVER.import_bytes)
    head_wait_s: Seconds = _SERVER.head_wait_s
    body_wait_s: Seconds = _SERVER.body_wait_s
    heartbeat_s: Seconds = _SERVER.heartbeat_s
    stall_s: Seconds = _SERVER.stall_s
    drain_s: Annotated[float, Field(ge=0, lt=1e9)] = _SERVER.drain_s
    workers: Annotated[
        int | None, Field(ge=0, le=64, description="processes for HTTP; None: 2 beside a GPU")
    ] = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"

    model: Annotated[str, Field(description="a folder with a checkpoint, or demo")] = "demo"
    name: Annotated[ModelName | None, Field(description="the model's name; None: its own")] = None
    slots: Annotated[Count, Field(description="actors awake at once")] = _GUEST.slots
    state_dtype: Literal["F32", "F16"] = "F32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[Count | None, Field(description="of a guest on the CPU")] = None
    mode: Annotated[
        Literal["exact", "fast"], Field(description="fast: the library's products, inexact")
    ] = "exact"

    mailbox: Count = _VISOR.mailbox
    host_bytes: Annotated[ByteSize, Field(ge=0)] = ByteSize(_VISOR.host_bytes)
    host_high: Share = _VISOR.host_high
    host_low: Share = _VISOR.host_low
    slot_wait_s: Annotated[float, Field(ge=0, lt=1e9)] = _VISOR.slot_wait_s
    prompt_tokens: Count = _VISOR.prompt_tokens
    max_tokens: Count = _VISOR.max_tokens
    fork_count: Count = _VISOR.fork_count
    step_tokens: Count = _VISOR.step_tokens
    checkpoint_tokens: Count = _VISOR.checkpoint_tokens
    actors_in_memory: Count = _VISOR.actors_in_memory
    recover_actors: Annotated[int, Field(ge=0, lt=2**31)] = _VISOR.recover_actors
    recover_tokens: Annotated[int, Field(ge=0, lt=2**53)] = _VISOR.recover_tokens
    durability: Durability = _VISOR.durability
    nvme_bytes: Annotated[ByteSize | None, Field(ge=1 << 20)] = None
    accept_drift: bool = _VISOR.accept_drift
    idempotency_s: Count = _VISOR.idempotency_s

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not _TOKEN.match(token.get_secret_value()):
            raise ValueError("a token is visible ASCII characters, one at least")
        return token

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.host_low > self.host_high:
            raise ValueError("host_low is above host_high")
        return self

    def server(self) -> ServerSettings:
        """The HTTP side."""
        token = None if self.token is None else self.token.get_secret_value()
        return ServerSettings(**{**self._shared(ServerSettings), "token": token})

    def visor(self) -> VisorConfig:
        """Limits and policies of the core."""
        return VisorConfig(**self._shared(VisorConfig))

    def guest(self) -> GuestConfig:
        """The model and its bank."""
        return GuestConfig(**self._shared(GuestConfig))

    def worker_processes(self) -> int:
        """How many processes speak HTTP beside the engine's; 0: it does that itself.

        On a CPU the model needs the cores that workers would take.
        """
        if self.workers is not None:
            return self.workers
        gpu = self.device == "cuda" or (self.device == "auto" and _GPU.exists())
        return 2 if gpu else 0

    def _shared(self, part: type[Any]) -> dict[str, Any]:
        """The values of one part's fields."""
        return {field.name: getattr(self, field.name) for field in fields(part)}


def load(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """The settings of this process; flags that are None were not given.

    The TOML file is `config`, or what STATEVISOR_CONFIG names. Raises: InvalidRequest.
    """
    path = config or os.environ.get("STATEVISOR_CONFIG")
    given = {name: value for name, value in flags.items() if value is not None}
    merged = {**(_file(Path(path)) if path else {}), **_environment(), **given}
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        wrong = refused(error, "settings")
        wrong.hint = "See `statevisor serve --help`."
        raise wrong from None


def _environment() -> dict[str, str]:
    """What is set as STATEVISOR_<NAME>."""
    names = {name: f"STATEVISOR_{name.upper()}" for name in Settings.model_fields}
    return {name: os.environ[key] for name, key in names.items() if key in os.environ}


def _file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path}: {error}", hint="The file is TOML; its keys are the names of the flags."
        ) from None


def steer(environment: Mapping[str, str]) -> None:
    """Set variables that libraries read when they are loaded, where the user has not."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)
