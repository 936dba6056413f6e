"""Tasks in memory, run where they were enqueued: what `app.testing()` gives. Production imports nothing of it."""
