"""What recipes, plans and bundles are; imports neither torch nor the runtime."""
