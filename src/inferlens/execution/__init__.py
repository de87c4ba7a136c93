"""From a plan to records: cases are expanded, scheduled, and run in processes of their own."""
