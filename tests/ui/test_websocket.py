"""The prompt connection: the socket's delay is off before the page is connected to its kernel."""

from types import SimpleNamespace

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from telekit.ui import lab, websocket


def test_the_delay_is_off_before_the_kernel_answers(monkeypatch):
    calls = []

    class Probe(websocket.PromptConnection):
        websocket_handler = SimpleNamespace(set_nodelay=lambda on: calls.append(("nodelay", on)))

    monkeypatch.setattr(ZMQChannelsWebsocketConnection, "connect", lambda self: calls.append("connected"))
    Probe.__new__(Probe).connect()
    assert calls == [("nodelay", True), "connected"]


def test_the_lab_uses_it(tmp_path):
    module, _, name = lab.PROMPT.rpartition(".")
    assert (module, getattr(websocket, name)) == (websocket.__name__, websocket.PromptConnection)
    assert f"--ServerApp.kernel_websocket_connection_class={lab.PROMPT}" in lab.arguments(
        tmp_path, False, None
    )
