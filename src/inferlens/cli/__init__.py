"""The command line: a module for each family of commands; a command's docstring is its help.

Tables and data go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 nothing could be
measured, 2 bad input, 130 interrupted, 141 nobody reads the output any more. ``compare`` and ``ab`` have codes of
their own, in their help.
"""
