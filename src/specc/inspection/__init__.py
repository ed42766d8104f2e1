"""What a bundle is (`bundle`) and what this machine is (`machine`)."""
