"""The search of ``inferlens tune``: its candidates, its choice of the next ones, and its run."""
