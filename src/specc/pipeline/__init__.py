"""From a recipe to a bundle, one stage a file."""
