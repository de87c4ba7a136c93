"""From a record to what runs its case: a callable in this process, or files that need no more of this library."""
