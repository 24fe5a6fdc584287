"""Read what profilers, logs and monitors wrote: traces of events, and tables; damaged files as far as they go."""

from telekit.diagnose.readers.folder import read

__all__ = ["read"]
