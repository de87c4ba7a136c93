"""Models: from a name, a file or a live module to something a backend can prepare, and the inputs it takes."""
