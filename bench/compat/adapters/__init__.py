"""One plugin of pytest per peer: puts Sluice where the peer's tests start their own server."""
