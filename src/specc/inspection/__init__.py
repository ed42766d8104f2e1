"""What a bundle and this machine are."""
