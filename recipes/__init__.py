"""Recipes that come along: data only, one YAML a bundle."""
