"""A Qdrant for tests: the REST protocol in front of the real engine, Qdrant Edge."""
