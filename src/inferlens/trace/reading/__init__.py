"""Reading a trace: text out of a file, events out of the text, columns out of the events; and what is kept of it."""
