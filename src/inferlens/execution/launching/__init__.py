"""Where a plan runs: ``launcher`` is the seam, ``local`` and ``on_ray`` are its members; ``parts`` divides the plan."""
