"""Makes services that read bodies in this process."""

from __future__ import annotations

from parallax_core.base.errors import ParallaxError
from parallax_core.deploy.deployment import Deployment
from parallax_core.deploy.services import ServiceMaker
from parallax_core.server.body_messages import ParserTraits
from parallax_core.server.body_reader import BodyReader
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import BODIES


class FailingReader(LocalReader):
    """A reader that cannot start."""

    def __init__(self, reader: BodyReader, fault: ParallaxError) -> None:
        super().__init__(reader)
        self._fault = fault

    async def start(self) -> None:
        raise self._fault


class LocalMaker(ServiceMaker):
    """Makes services without processes of their own; with a ``fault``, their readers cannot start."""

    fault: ParallaxError | None = None

    def _make_reader(self, deployment: Deployment) -> LocalReader:  # type: ignore[override]
        traits = ParserTraits.of(deployment.parser.spec) if deployment.parser else None
        reader = BodyReader(deployment.text, deployment.model_id, BODIES, traits)
        return FailingReader(reader, self.fault) if self.fault is not None else LocalReader(reader)
