"""What races among a few candidates came to: ``ab``, and tunings."""
