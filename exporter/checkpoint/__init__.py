"""Reading what others trained."""
