"""Views draw records and nothing else: no view ever sees a runner, and none needs a framework."""
