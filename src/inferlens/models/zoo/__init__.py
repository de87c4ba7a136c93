"""Models that Inferlens brings along; the module of each is imported when it is built, never before."""
