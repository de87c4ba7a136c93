"""Measuring a runner: warm-up, latency, throughput, the output check, environment, ceilings, the monitor."""
