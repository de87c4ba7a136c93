"""From a plan to records: cases are expanded, scheduled, and run in processes of their own.

``docs/architecture.md`` lists the files in the order in which to read them. Tasks are a file each: ``measure_case``,
``profile``, ``trace``, ``build``. The ``rounds`` of a race, and ``ab``, have cases work in turns (``interleaver``).
"""
