"""Load tests: requests arrive as traffic, and a deployment serves them."""
