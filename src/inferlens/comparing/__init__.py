"""Two sets of records of the same cases against each other: which belong together, how alike they are, the verdicts."""
