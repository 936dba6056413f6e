"""The PostgreSQL backend: connections, migrations, and each group of statements in a module of its own."""
