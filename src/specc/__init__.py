"""specc: exact speculative decoding for small devices, compiled into one bundle."""

__version__ = "0.1.0"
