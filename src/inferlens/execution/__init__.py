"""From a plan to records: cases are expanded, scheduled, and run in processes of their own.

Read in this order, beginning with ``cli.bench``, which makes words of a person a plan: ``bench``, ``survey``,
``expand`` (which cases there are, and what can run here), ``scheduler`` (measures case after case and keeps each record
at once), ``protocol``, ``subprocess`` (what crosses to the child; its deadline, and what a crash becomes), ``worker``
(what every child does first), ``benchmark`` (what comes after), ``interference`` (what the machine did to the samples).
Other tasks are a file each: ``profile``, ``trace``, ``build``; and ``ab``, whose two cases the ``interleaver`` lets
work in turns.
"""
