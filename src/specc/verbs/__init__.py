"""A verb of the command line a file; `specc.cli` lists them."""
