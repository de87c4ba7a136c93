"""Watching the machine from outside while a case runs: GPU through NVML, CPUs through ``/proc`` and ``/sys``.

The monitor is a thread of the process that started the case. It asks, it never sets; and what it cannot
learn becomes an entry of ``absent``, never an error of the case.
"""
