"""What disturbed a case while it ran, found in its machine log: pure functions on data."""
