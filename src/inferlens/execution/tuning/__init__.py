"""``inferlens tune``: what is tried, which of it next, and the finals that prove the winner."""
