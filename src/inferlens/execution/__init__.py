"""From a plan to records: cases are expanded, scheduled, and run in processes of their own.

Read in this order, beginning with ``cli.bench``, which makes words of a person a plan:

* ``bench``, ``survey``, ``expand``: which cases there are, and what can run here;
* ``scheduler``: measures case after case, a second time where it was disturbed, and keeps each record at once;
* ``protocol``, ``subprocess``: what crosses to the child; its deadline, and what a crash becomes;
* ``worker``: what every child does first; ``benchmark``: what comes after, with ``measure.feeding``,
  ``measure.series`` and ``measure.stopping`` around the timed loops, which are in ``backends.clocks``;
* ``measure.agreement``: when outputs are wrong; ``interference``: what the machine did to the samples;
* ``record.store``: what is kept, and what tables are made of.

Other tasks are a file each: ``profile``, ``trace``, ``build``; and ``ab``, whose two cases the ``interleaver`` lets
work in turns.
"""
