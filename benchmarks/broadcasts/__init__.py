"""The processes of the broadcast benchmark, and the links between them."""
