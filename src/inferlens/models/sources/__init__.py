"""Where models come from: one small module per source. ``resolve`` has the order in which they are asked."""
