"""Results: records and profiles as data with a schema, and the store that reads and writes them."""
