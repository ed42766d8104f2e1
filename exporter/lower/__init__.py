"""Weights and operators of each dialect."""
