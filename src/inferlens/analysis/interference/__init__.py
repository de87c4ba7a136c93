"""What else the machine did while it measured: which samples count, and the energy of one call."""
