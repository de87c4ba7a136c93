"""One file a subject; every function in them with ``@rule`` above it is a rule: see ``rule.py`` beside this folder."""
