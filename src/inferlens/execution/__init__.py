"""From a plan to records: cases are expanded, scheduled, and run in processes of their own.

``run.py`` is the table of contents of a run; ``docs/architecture.md`` lists the files in reading order.
"""
