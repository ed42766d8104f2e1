"""Graphs and how they are written."""
