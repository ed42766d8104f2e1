"""specc: exact speculative decoding for small devices, compiled into one bundle."""

from specc.version import __version__ as __version__
