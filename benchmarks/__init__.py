"""What Inferlens itself costs, measured beside its peers in the same run. Run by hand: ``make benchmark``."""
