"""Pure functions on samples: nothing here knows what was measured."""
