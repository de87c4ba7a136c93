"""What races among a few candidates came to: ``ab`` and tunings; and what is best by other measures than the median."""
