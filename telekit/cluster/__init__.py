"""Where it is trained: devices and the links between them."""
