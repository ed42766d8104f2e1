"""Judges of the built engine on this device: certificate, equality, two-sample and speed."""
