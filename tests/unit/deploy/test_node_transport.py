from __future__ import annotations

import pytest

from parallax_core.base.errors import UsageError
from parallax_core.config.config import Config
from parallax_core.deploy.node_transport import choose_listen, make_transport
from parallax_core.plugins.host import PluginHost


def test_transport_chooses_where_a_node_listens_unless_its_user_does() -> None:
    offer = PluginHost.discover(Config()).transports().get("zmq")
    assert choose_listen(offer, "tcp://0.0.0.0:9001", "tcp://127.0.0.1:9000", "mini/7") == "tcp://0.0.0.0:9001"
    assert choose_listen(offer, None, "tcp://127.0.0.1:9000", "mini/7") == "tcp://127.0.0.1:0"


async def test_transport_that_cannot_choose_needs_an_address() -> None:
    offer = PluginHost.discover(Config()).transports().get("inprocess")
    with pytest.raises(UsageError, match="'inprocess' cannot choose an address") as caught:
        choose_listen(offer, None, "inprocess://head", "mini/7")
    assert "--listen" in caught.value.hint
    transport = make_transport(offer, "mini/7", choose_listen(offer, "inprocess://", "", "mini/7"), {}, None)
    await transport.start()
    assert transport.address.startswith("inprocess://")
    await transport.stop()
