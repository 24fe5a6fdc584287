"""Where it went wrong first: forward, backward or optimizer."""
