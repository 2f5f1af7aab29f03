"""The kinds of `muster.dev/v1alpha1`: pydantic models, and all that is generated from them."""
