"""A kernel connection that sends each message at once: sliders feel it.

A page that moves a slider gets several small messages back. The socket holds the second until the first is
acknowledged (Nagle's algorithm), and the page acknowledges late: up to 40 ms lost on one move of two.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Jupyter's own connection, with the socket's delay switched off."""

    def connect(self) -> Any:
        """Connect a page to its kernel."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
