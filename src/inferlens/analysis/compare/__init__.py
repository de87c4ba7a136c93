"""Two records, or two sets of them, held against each other."""
