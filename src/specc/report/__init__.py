"""Pieces that pages of reports share."""
