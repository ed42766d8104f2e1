"""Prompts in, text out: templates, runs, recordings."""
