"""Measuring a runner: warm-up, latency, throughput, memory, agreement, environment."""
