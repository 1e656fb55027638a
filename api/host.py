"""What one process serves: nothing while the model loads, then one visor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from statevisor.hypervisor.errors import Draining, ModelLoading
from statevisor.hypervisor.turnstile import Turnstile

if TYPE_CHECKING:
    from statevisor.api.metrics import PrometheusMeter
    from statevisor.api.settings import ServerSettings
    from statevisor.hypervisor.commands import DrainView
    from statevisor.hypervisor.visor import Visor


@dataclass(slots=True, kw_only=True)
class Host:
    """The process as its routes see it."""

    settings: ServerSettings
    meter: PrometheusMeter
    version: str
    _visor: Visor | None = field(default=None, init=False)
    draining: bool = field(default=False, init=False)
    #: Before what many clients may want at once: who asks a short question does not wait for it.
    turnstile: Turnstile = field(default_factory=Turnstile, init=False)
    #: Called when a visor has come and when draining begins.
    changed: Callable[[], object] = field(default=lambda: None, init=False)

    def attach(self, visor: Visor) -> None:
        """Serve this visor from now on."""
        self._visor = visor
        self.changed()

    @property
    def loaded(self) -> bool:
        """Whether there is a visor."""
        return self._visor is not None

    @property
    def visor(self) -> Visor:
        """The visor. Raises: ModelLoading."""
        if self._visor is None:
            raise ModelLoading
        return self._visor

    def check_ready(self) -> None:
        """Raises: ModelLoading, Draining."""
        if self.draining:
            raise Draining
        if not self.visor.ready:
            raise ModelLoading

    async def drain(self) -> DrainView:
        """Take no new work, end what runs, and leave everything in the lowest tier."""
        visor = self.visor
        self.draining = True
        self.changed()
        return await visor.drain(self.settings.drain_s)

    async def page(self) -> bytes:
        """The metrics of this moment."""
        gauges: dict[str, float] = {}
        if self._visor is not None:
            tiers = await self._visor.tiers()
            gauges = {f"tier_bytes_{tier.tier.value}": tier.used_bytes for tier in tiers}
            gauges.update(self._visor.stats())
            # whoever is not in memory is at rest, and only the catalog has counted it
            counted = sum(n for name, n in gauges.items() if name.startswith("actors_"))
            elsewhere = sum(tier.actors for tier in tiers) - counted
            gauges["actors_hibernated"] = gauges.get("actors_hibernated", 0) + elsewhere
        return self.meter.page(gauges)


HOST = web.AppKey("host", Host)
REQUEST_ID = web.RequestKey("request_id", str)
#: Set for paths whose errors have OpenAI's shape.
OPENAI = web.RequestKey("openai", bool)
