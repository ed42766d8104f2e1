"""`specc diff`: what changes between two deployed models, in bits, in distributions, in text and in speed."""

from specc.diff.compare import Limits, diff

__all__ = ["Limits", "diff"]
