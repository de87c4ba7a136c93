"""Watching the machine from outside while a case runs: GPU through NVML, CPUs through ``/proc`` and ``/sys``."""
