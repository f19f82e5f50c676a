"""The messages of proto/, as `make python` generates them."""
