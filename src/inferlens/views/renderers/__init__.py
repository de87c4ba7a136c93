"""Formats: each module writes a document, by ``render(document, width, color)``."""
