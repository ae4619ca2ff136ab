"""Bodies of the API, and what OpenAPI says of them."""
