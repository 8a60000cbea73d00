"""What other libraries are to the scheduler: each module loads its own extra, and only when it is named."""
