"""Each stage against the Hugging Face module."""
