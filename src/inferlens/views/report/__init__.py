"""The page of all that is known: its sections, and what they are made of."""
