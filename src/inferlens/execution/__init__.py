"""From a plan to records: cases are expanded, scheduled, and run in processes of their own.

``docs/architecture.md`` lists the files in the order in which to read them. Tasks are a file each: ``benchmark``,
``profile``, ``trace``, ``build``; and ``ab``, whose two cases the ``interleaver`` lets work in turns.
"""
