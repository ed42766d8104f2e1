"""Keep warnings of other libraries off the terminal."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

LOGGERS = ("torch.onnx._internal.exporter._registration", "root")


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Suppress warnings, and log records below errors of the tracer and the converter, while the block
    runs.
    """
    loggers = [logging.getLogger(None if name == "root" else name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
