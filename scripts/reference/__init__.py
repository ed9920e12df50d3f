"""Pages of the documentation, or parts of them, that are made from the code: `scripts/write-reference` writes them."""
