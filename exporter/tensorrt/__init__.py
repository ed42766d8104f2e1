"""Engines of TensorRT."""
